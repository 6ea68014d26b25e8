"""What is asked for, which of it may change when a collection goes on, and the seed of each rollout."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from rollonce.errors import InputError
from rollonce.readers.generic import USUAL
from rollonce.tasks import SPLITS, Task, canonical_split_name, parse_source_spec

APIS = ("chat", "completions")
LOG_PROBS = ("auto", "on", "off")
ALL = "all"
ENVIRONMENT = "verifiers"
"""The source of tasks that rolls out and scores by itself, and so is none of the registry's."""


@dataclass(frozen=True)
class CollectSettings:
    """What one collection is asked for.

    Attributes:
        policy: ``embedded``; a directory or hub id of a causal language model; with ``url`` the model's name at that
            server.
        tasks_from: What `rollonce.tasks.load_tasks` takes, or ``verifiers:TASKSET``.
        out: The file to write, JSON Lines.
        n_tasks, n_rollouts: N and G.
        url: An OpenAI-compatible server, up to and with its ``/v1``; None for a model on this machine.
        api: ``chat`` (/chat/completions) or ``completions`` (/completions, for base models).
        split: ``holdout``, ``train``, ``test``, or ``all`` (a finite set, whole).
        seed: Which tasks, and the seed of every rollout.
        temperature: What logits are divided by.
        max_tokens: Limit of a response; one that meets it is truncated and has reward 0.
        log_probs: Whether rows get ``log_prob``: ``auto`` (a model on this machine: always; a server: at temperature 1,
            where it returns them); ``on`` (a server's at other temperatures too, where they are taken after the
            temperature); ``off``.
        system: A system message.
        template: Holds ``{prompt}``; what is sent.
        extra: More fields of each request, sent as they are.
        grader, columns: For ``jsonl:`` tasks.
        time_limit: Seconds that the grader of one response may take.
        device: Of a model on this machine.
        batch_rows: Rollouts sampled at once by a model on this machine.
        concurrency: Requests under way at once, at most.
        retries: How often a request that failed for the moment is sent again.
        timeout: Seconds a request may take.
        key_env: The environment variable that holds the key. The key itself is in no setting.
        price_in, price_out: Money for a million tokens of prompt and response.
    """

    policy: str
    tasks_from: str
    out: str
    n_tasks: int = 64
    n_rollouts: int = 8
    url: str | None = None
    api: str = "chat"
    split: str = "holdout"
    seed: int = 0
    temperature: float = 1.0
    max_tokens: int = 2048
    log_probs: str = "auto"
    system: str | None = None
    template: str = "{prompt}"
    extra: Mapping[str, Any] = field(default_factory=dict)
    grader: str = "exact"
    columns: tuple[str, ...] = ()
    time_limit: float = 5.0
    device: str = "cpu"
    batch_rows: int = 64
    concurrency: int = 16
    retries: int = 6
    timeout: float = 600.0
    key_env: str | None = None
    price_in: float | None = None
    price_out: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "split", canonical_split_name(self.split))

    @property
    def is_local_model(self) -> bool:
        """Whether the model runs in this process."""
        return self.url is None

    @property
    def uses_environment(self) -> bool:
        """Whether a verifiers environment rolls out and scores."""
        return self.tasks_from.startswith(f"{ENVIRONMENT}:")

    def pinned_settings(self) -> dict[str, Any]:
        """What decides the distribution of rollouts and rewards: the same from the first row to the last, or the table
        is of no policy.

        Not the server's address (it may have been started again on another port), nor the numbers of tasks and
        rollouts, which may grow.
        """
        names = [
            "policy",
            "tasks_from",
            "split",
            "seed",
            "temperature",
            "max_tokens",
            "system",
            "template",
            "grader",
            "time_limit",
        ]
        names += ["batch_rows"] if self.is_local_model else ["api"]
        both = {n: getattr(self, n) for n in names} | {"columns": list(self.columns), "extra": dict(self.extra)}
        return json.loads(json.dumps(both | {"where": "this machine" if self.is_local_model else "a server"}))

    def read_key_from_environment(self) -> str | None:
        """The key, from the environment.

        Raises:
            InputError: the variable is not set, or holds what no header can.
        """
        if self.key_env is None:
            return None
        key = os.environ.get(self.key_env, "").strip()
        if not key:
            raise InputError(
                f"--key-env names the environment variable {self.key_env!r}, which is not set; export "
                f"{self.key_env}=..."
            )
        if not key.isascii() or not key.isprintable():
            raise InputError(
                f"the environment variable {self.key_env!r} holds characters that no HTTP header may have; set it anew"
            )
        return key


def check_collect_settings(s: CollectSettings) -> CollectSettings:
    """The same settings, once they make sense.

    Raises:
        InputError: naming the option.
    """
    least = {"n_tasks": 2, "n_rollouts": 1, "max_tokens": 1, "concurrency": 1, "retries": 0, "batch_rows": 1, "seed": 0}
    for name, low in least.items():
        if getattr(s, name) < low:
            raise InputError(f"{_option_spelling(name)} must be at least {low}, not {getattr(s, name)}")
    for name in ("temperature", "price_in", "price_out"):
        value = getattr(s, name)
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise InputError(f"{_option_spelling(name)} must be a finite number, at least 0, not {value}")
    for name in ("timeout", "time_limit"):
        if not (math.isfinite(getattr(s, name)) and getattr(s, name) > 0):
            raise InputError(f"{_option_spelling(name)} must be a number of seconds above 0, not {getattr(s, name)}")
    if s.temperature == 0 and s.n_rollouts > 1:
        raise InputError(
            "--temperature 0 gives the same rollout every time; without differences within a task there is nothing to "
            "measure"
        )
    if s.api not in APIS:
        raise InputError(f"--api must be one of {', '.join(APIS)}, not {s.api!r}")
    if s.log_probs not in LOG_PROBS:
        raise InputError(f"--log-probs must be one of {', '.join(LOG_PROBS)}, not {s.log_probs!r}")
    if s.split not in (*SPLITS, ALL):
        raise InputError(f"--split must be one of {', '.join((*SPLITS, ALL))}, not {s.split!r}")
    if "{prompt}" not in s.template:
        raise InputError(f"--template must hold {{prompt}}; {s.template!r} does not")
    if re.search(r"\.(gz|zst|csv|tsv|parquet|json)$", s.out, re.IGNORECASE):
        raise InputError("rollouts are written as plain JSON Lines; give --out a name that ends in .jsonl", file=s.out)
    check_source_options(s.tasks_from, s.grader, s.columns)
    if s.uses_environment and s.time_limit != CollectSettings.time_limit:
        raise InputError(
            "--time-limit is for our graders, and a verifiers environment scores its own rollouts; leave it out"
        )
    if s.uses_environment and s.log_probs == "on":
        raise InputError("a verifiers environment asks the server by itself, without them: leave out --log-probs")
    if s.url is None:
        _check_local_model(s)
    else:
        _check_server_settings(s)
    return s


def check_source_options(tasks_from: str, grader: str, columns: Sequence[str]) -> None:
    """Refuse a grader or columns for tasks that have their own.

    Raises:
        InputError: naming the option.
    """
    name = tasks_from.partition(":")[0]
    if name != ENVIRONMENT and parse_source_spec(tasks_from)[0].takes_grader:
        return
    for option, given in (("--grader", grader != CollectSettings.grader), ("--columns", bool(columns))):
        if given:
            raise InputError(
                f"{option} belongs to tasks of jsonl:FILE, and those of {name} have their own; leave it out"
            )


def _check_local_model(s: CollectSettings) -> None:
    usual = {"key_env": None, "extra": {}, "price_in": None, "price_out": None}
    usual |= {name: getattr(CollectSettings, name) for name in ("api", "concurrency", "retries", "timeout")}
    for name, default in usual.items():
        if getattr(s, name) != default:
            raise InputError(
                f"{_option_spelling(name)} belongs to a server; give its address with --url, or leave it out"
            )
    if re.match(r"https?://", s.policy):
        raise InputError(f"{s.policy!r} is an address: give it as --url, and the model's name at that server as POLICY")
    if s.uses_environment:
        raise InputError("a verifiers environment asks a server for its responses; serve the model and give --url")


def _check_server_settings(s: CollectSettings) -> None:
    assert s.url is not None
    for name in ("device", "batch_rows"):
        if getattr(s, name) != getattr(CollectSettings, name):
            raise InputError(
                f"{_option_spelling(name)} belongs to a model on this machine, not to one at --url; leave it out"
            )
    try:
        parts = urlsplit(s.url)
        parts.port  # noqa: B018  a port that is no number raises here
    except ValueError as error:
        raise InputError(f"--url {s.url!r} is no address ({error}); write it as http://localhost:8000/v1") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"--url {s.url!r} is no address; write it as http://localhost:8000/v1")
    if parts.username or parts.password or parts.query:
        raise InputError(
            "--url must hold no user name, password or query: the address is written into the provenance; keys go by "
            "--key-env"
        )
    reserved = {"model", "messages", "prompt", "temperature", "max_tokens", "seed", "stream", "n", "logprobs"}
    reserved &= set(s.extra)
    if reserved:
        raise InputError(f"--extra must not hold {sorted(reserved)[0]!r}, which is sent already")


def _option_spelling(name: str) -> str:
    return {"n_tasks": "--tasks", "n_rollouts": "--rollouts"}.get(name, "--" + name.replace("_", "-"))


def option_name_of_setting(name: str) -> str:
    """The command line's name of a setting, for messages."""
    return {"policy": "POLICY", "where": "--url"}.get(name, _option_spelling(name))


def seed_of_rollout(seed: int, task_id: str, rollout: int) -> int:
    """The seed of one rollout, 31 bits (the most that every server takes).

    By the task's id, not its position: growing the set moves no seed.

    >>> seed_of_rollout(0, "a", 1) == seed_of_rollout(0, "a", 1) != seed_of_rollout(0, "a", 2)
    True
    """
    digest = hashlib.blake2b(f"{seed}\0{task_id}\0{rollout}".encode("utf-8", "surrogatepass"), digest_size=4).digest()
    return int.from_bytes(digest, "big") & 0x7FFFFFFF


class Sampled(NamedTuple):
    """A response as the policy gave it.

    Attributes:
        text: The response.
        prompt_tokens, tokens: How many tokens prompt and response have; None where the server does not say.
        truncated: Whether the limit came before the end.
        log_prob: Natural logarithm of the response's probability under the distribution that it was drawn from: the
            sum over its tokens, the end-of-sequence token included. None where it is not known.
        finish: The server's reason, where it is neither the usual end nor the limit.
        reward: The reward, where the source of tasks scores by itself; None where it is to be graded.
        failure: Why ``reward`` is 0 by rule, if it is.
    """

    text: str
    prompt_tokens: int | None = None
    tokens: int | None = None
    truncated: bool = False
    log_prob: float | None = None
    finish: str = ""
    reward: float | None = None
    failure: str = ""


OWN_KEYS = (
    "task_id",
    "rollout_id",
    "prompt",
    "reward",
    "response",
    "response_length",  # the name of response_tokens in older files
    "response_tokens",
    "prompt_tokens",
    "log_prob",
    "truncated",
    "seed",
    "failure",
    "finish",
)


def check_task_columns(task: Task) -> None:
    """Refuse a task with a column that the reader would take for something else.

    Raises:
        InputError: naming the column.
    """
    taken = {*OWN_KEYS, *USUAL["step"], *USUAL["rollout"], *USUAL["task"], *USUAL["log_prob"]}
    for name in task.columns:
        if name in taken:
            raise InputError(
                f"task {task.id!r} has a column named {name!r}, which a row of rollouts holds already; rename it"
            )


def make_rollout_row(
    task: Task, sampled: Sampled, *, rollout: int, seed: int | None, reward: float, failure: str
) -> dict[str, Any]:
    """One row of the file, in the generic format of docs/formats.md."""
    out: dict[str, Any] = {
        "task_id": task.id,
        "rollout_id": rollout,
        "prompt": task.prompt,
        "reward": reward,
        "response": sampled.text,
        "response_tokens": sampled.tokens,
        "prompt_tokens": sampled.prompt_tokens,
        "truncated": sampled.truncated,
        "seed": seed,
    }
    if sampled.log_prob is not None:
        out["log_prob"] = round(sampled.log_prob, 6)
    if failure:
        out["failure"] = failure
    if sampled.finish:
        out["finish"] = sampled.finish
    return out | dict(task.columns)
