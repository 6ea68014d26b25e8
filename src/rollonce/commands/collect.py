"""``rollonce collect``: calibration rollouts from a policy."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from tyro.conf import Positional, UseAppendAction, arg

from rollonce.collecting.run import Collected, collect_rollouts
from rollonce.collecting.settings import CollectSettings
from rollonce.collecting.store import Store
from rollonce.collecting.summary import Cost, Summary, compute_collection_cost, summarise_collection
from rollonce.commands.terminal import Bars, Flag, print_json_document, print_remark, results_console
from rollonce.errors import InputError
from rollonce.reports.collect import print_collection
from rollonce.rollouts import Rollouts
from rollonce.tasks import list_source_usages

HELP = """\
Calibration rollouts from a policy: some tasks, several rollouts of each, graded
and written to one file that the other commands read. It can be stopped or
killed at any moment; the same command goes on from there, and with larger
--tasks or --rollouts it adds to what is there.

POLICY is `embedded`, the directory of a model on this machine, or, with --url,
the name of a model at any OpenAI-compatible server (vLLM, SGLang, llama.cpp,
transformers serve, Tinker's, a provider's).

Examples:
  rollonce collect embedded --out calibration.jsonl
  rollonce collect Qwen/Qwen3-8B --url http://localhost:8000/v1
      --tasks-from gsm8k:data/gsm8k --out gsm8k_qwen3_8b.jsonl
  rollonce collect my-model --url https://api.example.com/v1 --key-env API_KEY
      --tasks-from jsonl:tasks.jsonl --split all --price-in 0.5 --price-out 1.5
      --out mine.jsonl
  rollonce collect ./checkpoint --tasks-from "reasoning-gym:chain_sum + gcd"
      --out rg.jsonl
"""
_SOURCES = f"One of {list_source_usages()}, verifiers:TASKSET. The policy embedded has embedded by default."
_Text = arg(metavar="TEXT", help_behavior_hint="")
_Price = arg(metavar="X", help_behavior_hint="")


@dataclass
class Args:
    """Options of ``rollonce collect``."""

    policy: Annotated[str, Positional, arg(metavar="POLICY", help_behavior_hint="")]
    """`embedded`, a directory, or the model's name at --url."""
    out: Annotated[str, arg(metavar="FILE", help_behavior_hint="")]
    """Where the rollouts go, as JSON Lines."""
    tasks_from: Annotated[str | None, arg(metavar="SOURCE", help_behavior_hint="", help=_SOURCES)] = None
    tasks: Annotated[int, arg(metavar="N")] = 64
    """Tasks."""
    rollouts: Annotated[int, arg(metavar="G")] = 8
    """Rollouts of each."""
    split: Annotated[str, arg(metavar="SPLIT")] = "holdout"
    """holdout, train, test, or all of a finite set."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Which tasks are drawn, and the seed of every rollout."""
    grader: Annotated[str, arg(metavar="NAME")] = "exact"
    """For jsonl tasks: exact, numeric_exact, math_verify, contains, or module:callable."""
    columns: Annotated[tuple[str, ...], UseAppendAction, arg(metavar="COLUMN")] = ()
    """For jsonl tasks: keys to keep as columns known before the rollout."""
    time_limit: Annotated[float, arg(metavar="SECONDS")] = 5.0
    """For grading one response; a grader that takes longer gives 0."""
    temperature: Annotated[float, arg(metavar="X")] = 1.0
    """Sampling temperature: that of your training."""
    max_tokens: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None
    """Limit of a response; cut off there it has reward 0. Default 2048; 96 for the embedded policy."""
    log_probs: Annotated[str, arg(metavar="WHEN")] = "auto"
    """Log-probabilities of responses: auto, on or off. A server's are stored at temperature 1 alone, where all servers
    mean the same by them; on stores them at any, for servers that take them after the temperature."""
    system: Annotated[str | None, _Text] = None
    """A system message."""
    template: Annotated[str, arg(metavar="TEXT")] = "{prompt}"
    """What is sent, {prompt} standing for the task's prompt."""
    url: Annotated[str | None, arg(metavar="URL", help_behavior_hint="")] = None
    """Address of an OpenAI-compatible server, with its /v1."""
    api: Annotated[str, arg(metavar="API")] = "chat"
    """chat, or completions for base models."""
    key_env: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")] = None
    """Environment variable that holds the server's key. The key is written nowhere."""
    extra: Annotated[str | None, arg(metavar="JSON", help_behavior_hint="")] = None
    """More fields for each request: '{"top_k": -1}'. Written into the provenance."""
    concurrency: Annotated[int, arg(metavar="N")] = 16
    """Requests under way at once, at most."""
    retries: Annotated[int, arg(metavar="N")] = 6
    """Times that a request is sent again after 429, 5xx or a broken connection, with growing waits."""
    timeout: Annotated[float, arg(metavar="SECONDS")] = 600.0
    """For one request."""
    price_in: Annotated[float | None, _Price] = None
    """Money for a million prompt tokens."""
    price_out: Annotated[float | None, _Price] = None
    """Money for a million response tokens."""
    device: Annotated[str, arg(metavar="NAME")] = "cpu"
    """Of a model on this machine: cpu, cuda, cuda:1, mps."""
    batch_rows: Annotated[int, arg(metavar="N")] = 64
    """Rollouts sampled at once by a model on this machine."""
    json: Flag = False
    """Print JSON and nothing else."""


def run(args: Args) -> int:
    """Collect, then say what came of it.

    Raises:
        InputError: for anything that the user can mend.
    """
    settings = _settings_from_arguments(args)
    with Bars() as bars:
        done = collect_rollouts(settings, tell=_make_progress_reporter(settings, bars), say=print_remark)
    from rollonce.readers import read_rollouts

    table = read_rollouts([str(done.path)], columns=_find_shared_columns(done))
    summary = summarise_collection(table, done.path, seed=settings.seed)
    cost = compute_collection_cost(done.counts, settings)
    following = _suggest_next_command(done, table)
    if args.json:
        print_json_document(_collection_as_json(settings, done, summary, cost, following))
    else:
        print_collection(results_console(), settings, done, table, summary=summary, cost=cost, next_command=following)
    return 0


def _settings_from_arguments(args: Args) -> CollectSettings:
    embedded = args.policy == "embedded" and args.url is None
    source = args.tasks_from or ("embedded" if embedded else None)
    if source is None:
        raise InputError(f"say where the tasks come from with --tasks-from: one of {list_source_usages()}")
    try:
        extra = {} if args.extra is None else json.loads(args.extra)
    except ValueError as error:
        raise InputError(f"--extra is no JSON ({error}); write it as '{{\"top_k\": -1}}'") from None
    if not isinstance(extra, dict):
        raise InputError(f"--extra must be a JSON object, as in '{{\"top_k\": -1}}', not {args.extra!r}")
    same = (
        "policy",
        "out",
        "url",
        "api",
        "split",
        "seed",
        "temperature",
        "log_probs",
        "system",
        "template",
        "grader",
        "columns",
        "time_limit",
    )
    same += ("device", "batch_rows", "concurrency", "retries", "timeout", "key_env", "price_in", "price_out")
    return CollectSettings(
        tasks_from=source,
        n_tasks=args.tasks,
        n_rollouts=args.rollouts,
        max_tokens=args.max_tokens if args.max_tokens is not None else 96 if embedded else 2048,
        extra=extra,
        **{name: getattr(args, name) for name in same},
    )


def _make_progress_reporter(settings: CollectSettings, bars: Bars) -> Callable[[Store, int], None]:
    def report_rollouts_done(store: Store, total: int) -> None:
        counts = store.count_rollouts_and_tokens()
        mean = sum(reward for reward, _, _ in store.rows.values()) / len(store.rows)
        money = compute_collection_cost(counts, settings).money
        spent = f"{counts.response_tokens / 1000:.0f}k tokens" if money is None else f"{money:.2f} spent"
        bars.report_progress("rollouts", f"mean {mean:.2f}, {spent}", counts.rollouts, total)

    return report_rollouts_done


def _find_shared_columns(done: Collected) -> list[str]:
    """The columns that every row has: those that a baseline may read."""
    import orjson

    from rollonce.collecting.settings import OWN_KEYS

    shared: dict[str, None] | None = None
    for line in done.path.read_bytes().splitlines():
        r = orjson.loads(line)
        mine = [k for k, v in r.items() if k not in OWN_KEYS and isinstance(v, str | int | float)]
        shared = dict.fromkeys(mine if shared is None else [k for k in shared if k in mine])
    return list(shared or ())


def _suggest_next_command(done: Collected, table: Rollouts) -> str:
    words = ["rollonce", "score", str(done.path)]
    for name in table.tasks.column_names:
        if len(set(map(str, table.tasks.column(name)))) > 1:
            words += ["--columns", name]
    if table.n_tasks < 32:
        words += ["--batch-size", str(table.n_tasks)]
    return shlex.join(words)


def _collection_as_json(
    s: CollectSettings, done: Collected, summary: Summary, cost: Cost, following: str
) -> dict[str, Any]:
    top = summary._asdict() | {"file": str(done.path), "added": done.added, "next": following}
    return top | {
        "counts": done.counts,
        "cost": cost,
        "server": done.server,
        "settings": s.pinned_settings(),
    }
