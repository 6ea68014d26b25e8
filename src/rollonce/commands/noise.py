"""``rollonce noise``: gradient noise of every baseline at a fixed policy, measured, beside what B_eff predicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import UseAppendAction, arg

from rollonce.commands.terminal import Bars, Flag, command_line, out, print_json, remark
from rollonce.errors import InputError
from rollonce.tasks import SPLITS, source_usages, split_named

if TYPE_CHECKING:
    from rollonce.noise.gradients import ScoreGradients
    from rollonce.noise.report import NoiseReport
    from rollonce.policies import TransformersPolicy
    from rollonce.rollouts import Rollouts
    from rollonce.tasks import TaskSet

HELP = """\
Does B_eff tell the truth here? A baseline's effective batch size is derived from
its squared advantages alone; what training feels is the noise of the gradient.
This measures it: rollouts of a policy on hold-out tasks, the gradient of
each, batches of B tasks with one rollout each, common to all baselines. Beside
it stands what B_eff predicts, and each approximation of the derivation on its
own: covariance of rollouts, score norm against advantage, signal against noise,
sampler against trainer. Needs the extra: pip install 'rollonce[train]'.

Noise below 1 is less than that of the in-batch leave-one-out mean (LOO).

Examples:
  rollonce noise
      The policy and tasks that come with rollonce: about a minute.
  rollonce noise --baseline baseline.json --json
      A baseline that `rollonce tune` saved, among the others, on test tasks.
  rollonce noise --policy ./my-model --tasks gsm8k:./gsm8k --n-tasks 128
      Your own; on a GPU with --device cuda --bf16. --lora-rank 32 for adapters.
  rollonce noise --lagged ./checkpoint-of-8-steps-ago
      The same again with rollouts of an older policy: what staleness does.
"""
_Name = arg(metavar="NAME", help_behavior_hint="")


@dataclass
class Args:
    """Options of ``rollonce noise``."""

    policy: Annotated[str, arg(metavar="DIR")] = "embedded"
    """The policy: the one that comes with rollonce, or a directory of transformers."""
    tasks: Annotated[str, arg(metavar="SOURCE", help=f"One of {source_usages()}.")] = "embedded"
    split: Annotated[str | None, arg(metavar="SPLIT", help_behavior_hint="")] = None
    """Which of its splits: train, holdout or test. Default: holdout; with --baseline test, which `collect`
    leaves alone."""
    n_tasks: Annotated[int, arg(metavar="N")] = 256
    """Tasks; at least twice the batch size. What a window holds are the others of them."""
    rollouts: Annotated[int, arg(metavar="G", aliases=["-G"])] = 8
    """Rollouts of each task, at least 2; 3 for the oracle, 8 to measure groups of 8."""
    batch_size: Annotated[int, arg(metavar="B", aliases=["-B"])] = 32
    """Rollouts in a step, one per task."""
    window: Annotated[int, arg(metavar="ROWS")] = 512
    """Rows of earlier steps for the baselines that keep any; at most N - B are there."""
    batches: Annotated[int, arg(metavar="K")] = 4000
    """Common batches behind each value."""
    baseline: Annotated[tuple[str, ...], UseAppendAction, arg(metavar="FILE")] = ()
    """A saved baseline to measure as well, as it was fitted."""
    aggregation: Annotated[Literal["token", "sequence"], arg(metavar="HOW")] = "token"
    """The loss's: token (sum over all tokens by one denominator) or sequence (mean of each rollout first)."""
    metric: Annotated[Literal["plain", "adam"], arg(metavar="HOW")] = "plain"
    """Of gradients: plain, or adam (each parameter by its own root mean square), as Adam's steps see noise."""
    max_new_tokens: Annotated[int, arg(metavar="N")] = 96
    """Limit of a rollout; cut off there, its reward is 0."""
    temperature: Annotated[float, arg(metavar="T")] = 1.0
    """Of sampling, above 0."""
    lagged: Annotated[str | None, arg(metavar="DIR", help_behavior_hint="")] = None
    """An older policy: sample from it too, and take the gradient of --policy with importance ratios, as a lagging loop
    does."""
    sketch: Annotated[int, arg(metavar="D")] = 16384
    """Numbers kept of each gradient (relative error sqrt(2/D)); 0 keeps all."""
    lora_rank: Annotated[int, arg(metavar="R")] = 0
    """Gradients of fresh adapters of this rank instead of all weights."""
    grader: Annotated[str, _Name] = "exact"
    """For jsonl: exact, numeric_exact, math_verify, contains or module:callable."""
    columns: Annotated[tuple[str, ...], UseAppendAction, arg(metavar="COLUMN")] = ()
    """For jsonl: keys known before the rollout."""
    device: Annotated[str, arg(metavar="DEVICE")] = "cpu"
    """cpu, cuda ..."""
    bf16: Flag = False
    """Compute in bfloat16."""
    sample_rows: Annotated[int, arg(metavar="N")] = 256
    """Prompts sampled at once."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Of tasks, rollouts, sketch and batches: same seed, same table."""
    report: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Write one self-contained HTML page as well."""
    json: Flag = False
    """Print JSON and nothing else."""


def run(args: Args) -> int:
    """Sample, take gradients, measure and print.

    Raises:
        InputError: for anything wrong with options, policy, tasks or rewards.
    """
    from rollonce.commands.saved import load_saved
    from rollonce.files import check_writable
    from rollonce.policies import load_embedded  # noqa: F401  (a missing extra is said before tasks are made)

    _check(args)
    check_writable(args.report)
    saved = [load_saved(path) for path in args.baseline]
    with Bars() as bars:
        tasks = _tasks(args)
        policy = _policy(args, args.policy)
        on = _measure(args, policy, policy, tasks, saved, bars, "")
        if saved:
            on = (on[0], on[1], on[2]._replace(notes=[_seen(args), *on[2].notes]))
        lagged = lag = None
        if args.lagged is not None:
            from rollonce.noise.moments import lag_effect

            lagged = _measure(
                args, policy, _policy(args, args.lagged, sampler=True), tasks, saved, bars, "lagged: ", on[1]
            )
            lag = lag_effect((on[0], on[1].sketches_RD, on[2]), (lagged[0], lagged[1].sketches_RD, lagged[2]))
    if args.report:
        from rollonce.reports.noise_page import write_noise_page

        late = (lagged[2], lagged[1], lag) if lagged is not None else (None, None, None)
        write_noise_page(args.report, on[2], on[1], command_line("noise"), *late)
    if args.json:
        from rollonce import __version__
        from rollonce.reports.noise import noise_json

        document: dict[str, Any] = {
            "rollonce": __version__,
            "command": command_line("noise"),
            "settings": _settings(args),
        }
        document |= noise_json(on[2], on[1])
        if lagged is not None and lag is not None:
            document["lagged"] = noise_json(lagged[2], lagged[1], lag)
        print_json(document)
    else:
        from rollonce.reports.noise import print_noise

        print_noise(out(), on[2], on[1], lagged[2] if lagged else None, lagged[1] if lagged else None, lag)
    if args.report:
        remark(f"wrote {args.report}")
    return 0


def _check(args: Args) -> None:
    from rollonce.collecting.settings import check_source

    check_source(args.tasks, args.grader, args.columns)
    least = {
        "rollouts": 2,
        "batch_size": 2,
        "window": 0,
        "batches": 100,
        "max_new_tokens": 1,
        "sketch": 0,
        "lora_rank": 0,
        "sample_rows": 1,
    }
    for name, bound in {**least, "seed": 0}.items():
        if getattr(args, name) < bound:
            raise InputError(f"--{name.replace('_', '-')} must be at least {bound}, not {getattr(args, name)}")
    if _split(args) not in SPLITS:
        raise InputError(f"--split must be one of {', '.join(SPLITS)}, not {args.split!r}")
    if args.n_tasks < 2 * args.batch_size:
        raise InputError(f"--n-tasks must be at least twice the batch size, {2 * args.batch_size}, not {args.n_tasks}")
    if not args.temperature > 0:
        raise InputError(
            f"--temperature must be above 0, not {args.temperature:g}: a greedy policy has no gradient noise"
        )
    if args.lagged is not None and args.lora_rank:
        raise InputError(
            "--lagged compares whole policies; save the adapters and give their directory as --policy instead of "
            "--lora-rank"
        )


def _settings(args: Args) -> dict[str, Any]:
    return {k: list(v) if isinstance(v := getattr(args, k), tuple) else v for k in args.__dataclass_fields__} | {
        "split": _split(args)
    }


def _split(args: Args) -> str:
    # `collect` draws from the hold-out by the same seed, so that there a baseline tuned on its rollouts would meet its
    # own tasks again.
    return split_named(args.split) if args.split else "test" if args.baseline else "holdout"


def _seen(args: Args) -> str:
    """What is known of the tasks that a saved baseline was tuned on."""
    split = _split(args)
    if split == "test":
        return (
            "Tasks are of the split test: a saved baseline tuned on hold-out tasks, which `rollonce collect` draws "
            "by default, has not "
            "seen them. Whether it was tuned on test tasks all the same cannot be known from its file."
        )
    why = ", which `rollonce collect` draws from by the same seed" if split == "holdout" else ""
    return (
        f"Tasks are of the split {split}{why}: a saved baseline may have been tuned on these very tasks, and then "
        "looks better than it is. --split test has others."
    )


def _tasks(args: Args) -> TaskSet:
    from rollonce.tasks import TaskRequest, choose, load_tasks, source_of

    split = _split(args)
    numbers = source_of(args.tasks)[0].numbers_for(split, args.n_tasks)
    request = TaskRequest(seed=args.seed, grader=args.grader, columns=args.columns, **numbers)
    chosen = getattr(load_tasks(args.tasks, request), split)
    if len(chosen) < args.n_tasks:
        raise InputError(
            f"the {split} split of {args.tasks} has {len(chosen)} tasks, fewer than --n-tasks {args.n_tasks}"
        )
    return choose(chosen, args.n_tasks, args.seed) if len(chosen) > args.n_tasks else chosen


def _policy(args: Args, source: str, sampler: bool = False) -> TransformersPolicy:
    from rollonce.policies import LoraSettings, TransformersPolicy, load_embedded

    options: dict[str, Any] = {"device": args.device, "bf16": args.bf16, "sample_rows": args.sample_rows}
    if args.lora_rank and not sampler:
        options["lora"] = LoraSettings(args.lora_rank, seed=args.seed)
    return load_embedded(**options) if source == "embedded" else TransformersPolicy.load(source, **options)


def _measure(
    args: Args,
    policy: TransformersPolicy,
    sampler: TransformersPolicy,
    tasks: TaskSet,
    saved: list[Any],
    bars: Bars,
    name: str,
    like: ScoreGradients | None = None,
) -> tuple[Rollouts, ScoreGradients, NoiseReport]:
    """Sample and measure; in the metric of ``like``, where given."""
    from rollonce.noise.gradients import score_gradients
    from rollonce.noise.measure import measure_noise, noise_baselines, with_joint_column
    from rollonce.rollouts import Rollouts
    from rollonce.tasks import grade

    every = [task for task in tasks for _ in range(args.rollouts)]
    bars.tell(f"{name}sampling", "", 0, 1)
    samples = sampler.sample(
        [t.prompt for t in every], max_new_tokens=args.max_new_tokens, temperature=args.temperature, generator=args.seed
    )
    bars.tell(f"{name}sampling", "", 1, 1)
    grades = grade(every, samples.texts, truncated=samples.truncated_B.tolist())
    if grades.n_failed:
        remark(f"{name}the grader failed on {grades.n_failed} of {len(every)} rollouts (reward 0): {grades.counts}")
    known = tasks.as_tasks()
    columns = with_joint_column({c: known.column(c).tolist() for c in known.column_names})
    groups = [grades.rewards[i : i + args.rollouts] for i in range(0, len(every), args.rollouts)]
    table = Rollouts.from_groups(
        groups, known.prompts, task_ids=[str(t) for t in known.task_ids], columns=columns, name=tasks.name
    )
    if len(set(grades.rewards)) == 1:
        raise InputError(
            f"all {len(every)} rollouts earned {grades.rewards[0]:g}: there is no noise to compare on these tasks"
        )
    gradients = score_gradients(
        policy,
        samples,
        aggregation=args.aggregation,
        metric=args.metric,
        buckets=args.sketch,
        seed=args.seed,
        weights=like.weights if like is not None else None,
        progress=lambda done, total: bars.tell(f"{name}gradients", "", done, total),
    )
    report = measure_noise(
        table,
        gradients.gram_RR,
        [*noise_baselines(table, args.window), *saved],
        lengths_R=gradients.lengths_R,
        batch_size=args.batch_size,
        n_batches=args.batches,
        seed=args.seed,
        progress=lambda what, done, total: bars.tell(f"{name}noise", what, done, total),
    )
    return table, gradients, report
