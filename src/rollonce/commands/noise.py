"""``rollonce noise``: what a training step feels of each baseline at a fixed policy, beside what B_eff predicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import UseAppendAction, arg

from rollonce.commands.terminal import Bars, Flag, command_as_typed, print_json_document, print_remark, results_console
from rollonce.errors import InputError
from rollonce.tasks import SPLITS, canonical_split_name, list_source_usages

if TYPE_CHECKING:
    from rollonce.noise.session import MeasurementSettings
    from rollonce.policies import TransformersPolicy
    from rollonce.tasks import TaskSet

HELP = """\
What does a training step feel of a baseline? Rollouts of a policy on hold-out
tasks, the gradient of each, and the optimizer's own steps from batches of B
tasks with one rollout each, common to all baselines: how far do they point
along the true gradient (progress, relative to the in-batch leave-one-out mean,
LOO), and how large a batch would LOO need for that (equivalent batch)? Beside
it stand B_eff, which counts squared errors of rewards alone, and the arithmetic
noise of the gradient with each approximation of B_eff's derivation on its own.
Needs the extra: pip install 'rollonce[train]'.

Examples:
  rollonce noise
      The policy and tasks that come with rollonce: about three CPU minutes.
  rollonce noise --baseline baseline.json --arms critic_token --json
      A baseline that `rollonce tune` saved and a trained value head as well.
  rollonce noise --config run.toml --save exponent.json
      With the optimizer of a training configuration; the exponent that
      `rollonce score --exponent exponent.json` predicts progress with.
  rollonce noise --policy ./my-model --tasks gsm8k:./gsm8k --n-tasks 128
      Your own; on a GPU with --device cuda --bf16. --lora-rank 32 for adapters.
  rollonce noise --lagged ./checkpoint-of-8-steps-ago
      The noise again with rollouts of an older policy: what staleness does.
"""
_Name = arg(metavar="NAME", help_behavior_hint="")


@dataclass
class Args:
    """Options of ``rollonce noise``."""

    policy: Annotated[str, arg(metavar="DIR")] = "embedded"
    """The policy: the one that comes with rollonce, or a directory of transformers."""
    tasks: Annotated[str, arg(metavar="SOURCE", help=f"One of {list_source_usages()}.")] = "embedded"
    split: Annotated[str | None, arg(metavar="SPLIT", help_behavior_hint="")] = None
    """Which of its splits: train, holdout or test. Default: holdout; with --baseline test, which `collect`
    leaves alone."""
    n_tasks: Annotated[int, arg(metavar="N")] = 256
    """Tasks; at least three times the batch size. What a window holds are the others of them."""
    rollouts: Annotated[int, arg(metavar="G", aliases=["-G"])] = 16
    """Rollouts of each task, at least 2; 3 for the oracle, 8 to measure groups of 8. The true gradient is estimated
    from all of them: with few, intervals are wide."""
    batch_size: Annotated[int, arg(metavar="B", aliases=["-B"])] = 32
    """Rollouts in a step, one per task."""
    window: Annotated[int, arg(metavar="ROWS")] = 512
    """Rows of earlier steps for the baselines that keep any; at most N - B are there."""
    batches: Annotated[int, arg(metavar="K")] = 4000
    """Common batches behind each value."""
    baseline: Annotated[tuple[str, ...], UseAppendAction, arg(metavar="BASELINE")] = ()
    """Measure this one as well: a saved baseline, as it was fitted, or your own code as module:name."""
    arms: Annotated[tuple[str, ...], UseAppendAction, arg(metavar="NAME")] = ()
    """Another baseline by its name (`rollonce baselines`), or critic_token (a value head)."""
    config: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """A training configuration (TOML): its optimizer and clipping, unless said otherwise here."""
    optimizer: Annotated[Literal["adam", "sgd", "normalised-sgd"], arg(metavar="NAME")] = "adam"
    """Whose step: adam, sgd or normalised-sgd (a step of length one)."""
    max_grad_norm: Annotated[float | None, arg(metavar="NORM", help_behavior_hint="")] = None
    """Clip the gradient's norm to this first; 0 for no clipping. Default: 1, as `rollonce train` does."""
    replications: Annotated[int, arg(metavar="R")] = 24
    """Weightings of the tasks behind the intervals of progress, an even number."""
    coordinates: Annotated[int, arg(metavar="D")] = 16_000
    """Parameters, chosen at random, whose steps are followed."""
    save: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Write the exponent of the surprisal, for `rollonce score --exponent`."""
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
    template: Annotated[str, arg(metavar="TEXT", help_behavior_hint="")] = "{prompt}"
    """What the policy reads, with {prompt} in it: few-shot examples, an instruction."""
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
    from rollonce.files import check_files_writable, convert_to_plain_json, write_json_file
    from rollonce.policies import load_embedded  # noqa: F401  (a missing extra is said before tasks are made)
    from rollonce.testing.given import load_given_baseline

    _check_noise_options(args)
    check_files_writable(args.report, args.save)
    from rollonce.noise.session import measure_policy
    from rollonce.scoring.exponent import exponent_document

    given = [load_given_baseline(what) for what in args.baseline]
    settings = _make_measurement_settings(args)
    with Bars() as bars:
        tasks = _load_requested_tasks(args)
        given = [baseline.fit(tasks.as_feature_tasks()) for baseline in given]
        policy = _load_requested_policy(args, args.policy)
        measured = measure_policy(policy, tasks, settings, baselines=given, tell=bars.report_progress)
        if any(baseline.keeps_existing_fit for baseline in given):
            notes = [_note_on_seen_tasks(args), *measured.noise.notes]
            measured = measured._replace(noise=measured.noise._replace(notes=notes))
        lagged = lag = None
        if args.lagged is not None:
            from rollonce.noise.moments import measure_lag_effect

            sampler = _load_requested_policy(args, args.lagged, sampler=True)
            lagged = measure_policy(
                policy,
                tasks,
                settings,
                baselines=given,
                sampler=sampler,
                like=measured.gradients,
                tell=lambda what, *rest: bars.report_progress(f"lagged: {what}", *rest),
            )
            lag = measure_lag_effect(*((m.rollouts, m.gradients.sketches_RD, m.noise) for m in (measured, lagged)))
    for which in (measured, lagged):
        if which is not None and which.grader_failures:
            print_remark(f"the grader failed on {which.grader_failures}")
    if args.save:
        exponents = {e.metric: convert_to_plain_json(e) for e in measured.exponents}
        write_json_file(args.save, exponent_document(exponents, args.policy))
    if args.report:
        from rollonce.reports.noise_page import write_noise_page

        write_noise_page(args.report, measured, command_as_typed("noise"), lagged, lag)
    if args.json:
        from rollonce import __version__
        from rollonce.reports.noise import make_noise_json

        document: dict[str, Any] = {
            "rollonce": __version__,
            "command": command_as_typed("noise"),
            "settings": _settings_as_json(args),
        }
        document |= make_noise_json(measured)
        if lagged is not None and lag is not None:
            document["lagged"] = make_noise_json(lagged, lag)
        print_json_document(document)
    else:
        from rollonce.reports.noise import print_noise_report

        print_noise_report(results_console(), measured, lagged, lag)
    for path in filter(None, (args.report, args.save)):
        print_remark(f"wrote {path}")
    return 0


def _check_noise_options(args: Args) -> None:
    from rollonce.collecting.settings import check_source_options

    check_source_options(args.tasks, args.grader, args.columns)
    least = {
        "rollouts": 2,
        "batch_size": 2,
        "window": 0,
        "batches": 100,
        "max_new_tokens": 1,
        "sketch": 0,
        "lora_rank": 0,
        "sample_rows": 1,
        "replications": 4,
        "coordinates": 100,
    }
    for name, bound in {**least, "seed": 0}.items():
        if getattr(args, name) < bound:
            raise InputError(f"--{name.replace('_', '-')} must be at least {bound}, not {getattr(args, name)}")
    if _choose_task_split(args) not in SPLITS:
        raise InputError(f"--split must be one of {', '.join(SPLITS)}, not {args.split!r}")
    if args.n_tasks < 3 * args.batch_size:
        raise InputError(
            f"--n-tasks must be at least three times the batch size, {3 * args.batch_size}, not {args.n_tasks}: "
            "batches come from one half of the tasks, the true gradient from the other"
        )
    if args.replications % 2:
        raise InputError(f"--replications must be an even number, not {args.replications}: they come in mirrored pairs")
    if args.max_grad_norm is not None and args.max_grad_norm < 0:
        raise InputError(f"--max-grad-norm must be at least 0, not {args.max_grad_norm:g}")
    if "{prompt}" not in args.template:
        raise InputError(f"--template must hold {{prompt}}, where the task's prompt goes; it is {args.template!r}")
    if args.policy == "embedded" and args.template != "{prompt}":
        raise InputError("the embedded policy reads prompts as they are: leave --template out")
    if not args.temperature > 0:
        raise InputError(
            f"--temperature must be above 0, not {args.temperature:g}: a greedy policy has no gradient noise"
        )
    if args.lagged is not None and args.lora_rank:
        raise InputError(
            "--lagged compares whole policies; save the adapters and give their directory as --policy instead of "
            "--lora-rank"
        )


def _make_measurement_settings(args: Args) -> MeasurementSettings:
    from rollonce.noise.optimizers import OptimizerSettings
    from rollonce.noise.session import MeasurementSettings
    from rollonce.training.config import TrainConfig
    from rollonce.training.loading import load_experiment_config

    train = load_experiment_config(args.config).train if args.config else TrainConfig()
    limit = train.max_grad_norm if args.max_grad_norm is None else args.max_grad_norm or None
    optimizer = OptimizerSettings(args.optimizer, train.beta1, train.beta2, train.epsilon, limit)
    return MeasurementSettings(
        rollouts=args.rollouts,
        batch_size=args.batch_size,
        window=args.window,
        batches=args.batches,
        replications=args.replications,
        optimizer=optimizer.checked_settings(),
        arms=args.arms,
        aggregation=args.aggregation,
        metric=args.metric,
        sketch=args.sketch,
        coordinates=args.coordinates,
        max_new_tokens=args.max_new_tokens,
        temperature=args.temperature,
        seed=args.seed,
    )


def _settings_as_json(args: Args) -> dict[str, Any]:
    return {k: list(v) if isinstance(v := getattr(args, k), tuple) else v for k in args.__dataclass_fields__} | {
        "split": _choose_task_split(args)
    }


def _choose_task_split(args: Args) -> str:
    # `collect` draws from the hold-out by the same seed, so that there a baseline tuned on its rollouts would meet its
    # own tasks again.
    return canonical_split_name(args.split) if args.split else "test" if args.baseline else "holdout"


def _note_on_seen_tasks(args: Args) -> str:
    """What is known of the tasks that a saved baseline was tuned on."""
    split = _choose_task_split(args)
    if split == "test":
        return (
            "Tasks are of the split test: a saved baseline tuned on hold-out tasks, which `rollonce collect` draws by "
            "default, has not seen them. Whether it was tuned on test tasks all the same cannot be known from its file."
        )
    why = ", which `rollonce collect` draws from by the same seed" if split == "holdout" else ""
    return (
        f"Tasks are of the split {split}{why}: a saved baseline may have been tuned on these very tasks, and then "
        "looks better than it is. --split test has others."
    )


def _load_requested_tasks(args: Args) -> TaskSet:
    from rollonce.tasks import TaskRequest, choose_tasks, load_tasks, parse_source_spec

    split = _choose_task_split(args)
    numbers = parse_source_spec(args.tasks)[0].numbers_for_one_split(split, args.n_tasks)
    request = TaskRequest(seed=args.seed, grader=args.grader, columns=args.columns, **numbers)
    chosen = getattr(load_tasks(args.tasks, request), split)
    if len(chosen) < args.n_tasks:
        raise InputError(
            f"the {split} split of {args.tasks} has {len(chosen)} tasks, fewer than --n-tasks {args.n_tasks}"
        )
    return choose_tasks(chosen, args.n_tasks, args.seed) if len(chosen) > args.n_tasks else chosen


def _load_requested_policy(args: Args, source: str, sampler: bool = False) -> TransformersPolicy:
    from rollonce.policies import LoraSettings, TransformersPolicy, load_embedded

    options: dict[str, Any] = {"device": args.device, "bf16": args.bf16, "sample_rows": args.sample_rows}
    if args.template != "{prompt}":
        options["prompt_template"] = args.template
    if args.lora_rank and not sampler:
        options["lora"] = LoraSettings(args.lora_rank, seed=args.seed)
    return load_embedded(**options) if source == "embedded" else TransformersPolicy.load(source, **options)
