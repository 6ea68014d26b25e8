"""What a training run is made of, as a TOML file says it. Everything has a default but the arms; unknown keys are
errors.

::

    [policy]                 # the embedded one by default; or source = "DIRECTORY" or a hub id
    [tasks]
    source = "embedded"      # or reasoning-gym:..., gsm8k:DIR, math500:DIR, jsonl:FILE
    [train]
    steps = 120
    rollouts = 32            # a step, in every arm
    learning_rate = 2e-4
    [arms.flashreinforce]
    baseline = "flashreinforce"
    [arms.grpo]
    baseline = "grpo"
    group_size = 8
    [compare]
    seeds = [0, 1, 2]
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from rollonce.training.sections import Count, Natural, Positive, Section, Share

LOCAL_ONLY = ("device", "bf16", "gradient_checkpointing", "attention", "sample_rows", "train_rows")
SERVICE_ONLY = ("base_url", "renderer", "reduction")


class PolicyConfig(Section):
    """Which model, and how it computes.

    Attributes:
        source: ``embedded``, a directory or a hub id; with ``engine = "tinker"`` the service's name of the model.
        engine: ``local`` (our loop, transformers, this machine), ``trl`` (TRL's GRPOTrainer on this machine, extra
            ``trl``), or ``tinker`` (our loop on a Tinker-compatible service).
        trl: For ``engine = "trl"``: fields of TRL's GRPOConfig that this file has no words for (``use_vllm``,
            ``deepspeed``, ``fsdp`` ...).
        lora_rank: Rank of the adapters; 0 trains every weight.
        seed: Of fresh adapters and of a fresh value head: the same in all arms and seeds of a comparison unless
            ``seed_follows_run``.
        seed_follows_run: Let adapters start from the run's seed instead.
        device, bf16, gradient_checkpointing, attention: See `rollonce.policies.TransformersPolicy.load`.
        sample_rows, train_rows: Rollouts at once when sampling (None for at most 2,048) and in a micro-batch of the
            update (None for all).
        local_only: Never ask a hub for the model.
        prompt_template, system: See `TransformersPolicy`.
        base_url, renderer: For a service: its address (default TINKER_BASE_URL), and how prompts become tokens:
            ``text``, ``chat`` (the tokenizer's template) or the name of one of tinker-cookbook's renderers; None: raw
            text.
        reduction: For a service: whether its loss adds a rollout's tokens up (``sum``, as Tinker does) or takes their
            mean first (``sequence_mean``, SkyRL's JAX backend).
    """

    source: str = "embedded"
    engine: Literal["local", "trl", "tinker"] = "local"
    trl: dict[str, Any] = {}
    lora_rank: Natural = 0
    seed: int = 0
    seed_follows_run: bool = False
    device: str = "cpu"
    bf16: bool = False
    gradient_checkpointing: bool = False
    attention: str | None = None
    sample_rows: Count | None = None
    train_rows: Count | None = None
    local_only: bool = True
    prompt_template: str = "{prompt}"
    system: str | None = None
    base_url: str | None = None
    renderer: str | None = None
    reduction: Literal["sum", "sequence_mean"] = "sum"

    @model_validator(mode="after")
    def _check_engine_settings(self) -> PolicyConfig:
        elsewhere = LOCAL_ONLY if self.engine == "tinker" else SERVICE_ONLY
        if odd := [
            k
            for k in elsewhere
            if k in self.model_fields_set and getattr(self, k) != type(self).model_fields[k].default
        ]:
            raise ValueError(f"{', '.join(odd)}: without effect with engine = {self.engine!r}; leave it out")
        if self.trl and self.engine != "trl":
            raise ValueError(f"trl: without effect with engine = {self.engine!r}; leave it out")
        if (
            self.engine != "tinker"
            and self.source == "embedded"
            and (self.prompt_template != "{prompt}" or self.system is not None)
        ):
            raise ValueError("the embedded policy reads prompts as they are: leave prompt_template and system out")
        return self


class TasksConfig(Section):
    """Which tasks; the three splits share no prompt.

    Attributes:
        source: See `rollonce.tasks.load_tasks`.
        train: Tasks to train on; they are gone through in an order drawn by the run's seed, and again if steps ask for
            more.
        holdout: Tasks set apart to choose rates by and to draw learning curves with.
        test: Tasks for the final figures; nothing is ever chosen by them.
        seed: Which tasks are drawn: the same in all arms and seeds.
        grader, columns: For ``jsonl``.
        time_limit: Seconds a response may take to grade.
    """

    source: str = "embedded"
    train: Count | None = None
    holdout: Natural = 150
    test: Natural | None = 450
    seed: int = 0
    grader: str = "exact"
    columns: tuple[str, ...] = ()
    time_limit: Positive = 5.0


class LossConfig(Section):
    """The objective, alike in all arms.

    Attributes:
        aggregation: ``token-mean`` (sum over all response tokens over their number) or ``sequence-mean`` (mean over
            each rollout's tokens, then over rollouts).
        clip: Clip the importance ratio to [1 - clip, 1 + clip] as PPO does; None: no clipping.
        clip_high: Upper side, where it differs from ``clip``.
        kl: Weight of the KL penalty to the start policy (nats a token, the estimator k3 of Schulman 2020).
        gate: FlashREINFORCE's: drop a trajectory whose mean Bernoulli KL between the sampling and the current policy
            exceeds this, denominators unchanged. None: no gate.
        lag: Sample from the policy of this many steps ago: staleness, on purpose.
        epochs: Updates per batch of rollouts; ratio and clip matter from the second on.
    """

    aggregation: Literal["token-mean", "sequence-mean"] = "token-mean"
    clip: Positive | None = None
    clip_high: Positive | None = None
    kl: Annotated[float, Field(ge=0)] = 0.0
    gate: Positive | None = None
    lag: Natural = 0
    epochs: Count = 1

    @model_validator(mode="after")
    def _check_clip_sides(self) -> LossConfig:
        if self.clip_high is not None and self.clip is None:
            raise ValueError("clip_high is the upper side of clip: give clip too")
        return self


class TrainConfig(Section):
    """The run.

    Attributes:
        steps: Updates.
        rollouts: A step, in every arm: ``rollouts / group_size`` tasks.
        learning_rate: Of Adam.
        beta1, beta2, epsilon, weight_decay: Of Adam (decoupled decay).
        max_grad_norm: Clip the gradient's norm; None: no clipping.
        temperature, max_new_tokens: Of sampling; None: the policy's own limit (96 for the embedded one, 512 else).
        checkpoint_every: Steps between checkpoints; a killed run repeats at most so many.
        kl_every: Steps between measurements of the KL to the start policy (an extra forward pass); 0 never.
        shadow: Baselines scored beside the arm's own on the same rollouts, without touching the training.
        log_rollouts: Write every rollout's task, reward, summed log-probability and length to ``rollouts.jsonl``, which
            ``rollonce score`` and ``rollonce watch`` read.
        audit_weights: Log the largest weight of a rollout's own reward in its baseline (computes the weights once
            more).
        collapse_truncated, collapse_entropy, collapse_steps: The run counts as collapsed, and stops, when for so many
            steps in a row more than this share of rollouts was truncated, or entropy was below this many nats a token.
    """

    steps: Count = 120
    rollouts: Count = 32
    learning_rate: Positive = 2e-4
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    epsilon: Positive = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_grad_norm: Positive | None = 1.0
    temperature: Positive = 1.0
    max_new_tokens: Count | None = None
    checkpoint_every: Count = 10
    kl_every: Natural = 10
    shadow: tuple[str, ...] = ("loo", "gs1_tfidf", "gs1_buckets")
    log_rollouts: bool = True
    audit_weights: bool = False
    collapse_truncated: Share = 0.95
    collapse_entropy: Annotated[float, Field(ge=0)] = 1e-4
    collapse_steps: Count = 5


class EvaluationConfig(Section):
    """Held-out evaluation.

    Attributes:
        every: Steps between evaluations on the hold-out (sampled): the learning curve; 0 only at start and end.
        repeats: Sampled rollouts a hold-out task.
        test_repeats: Sampled rollouts a test task, before and after training.
        greedy: Evaluate the test tasks greedily as well.
        rows: Rollouts at once.
    """

    every: Natural = 20
    repeats: Count = 1
    test_repeats: Count = 1
    greedy: bool = True
    rows: Count = 256


class CriticConfig(Section):
    """A token-level critic (value function) and GAE.

    Attributes:
        kind: ``head``: a small network on the policy's last hidden state, which it does not change; ``network``: a copy
            of the start policy with a value output, trained as a whole.
        learning_rate: Of its own Adam.
        discount, gae_lambda: GAE(lambda); with both 1 the advantage is the reward minus the value.
        clip: Clip the value's change per step as PPO does; None: no clipping.
        epochs: Updates per batch of rollouts.
        warmup: Steps in which the critic learns and the policy stands still. Their rollouts count.
        hidden: Width of the head's hidden layer.
    """

    kind: Literal["head", "network"] = "head"
    learning_rate: Positive = 1e-3
    discount: Annotated[float, Field(gt=0, le=1)] = 1.0
    gae_lambda: Share = 1.0
    clip: Positive | None = 0.2
    epochs: Count = 4
    warmup: Natural = 3
    hidden: Count = 128


class OracleConfig(Section):
    """The true mean by extra rollouts, outside the rollout and time budget: a ceiling, not a method.

    Attributes:
        rollouts: Extra ones a task.
        every: Steps between measurements; the tasks of so many steps are measured at once, so the mean grows that
            stale.
    """

    rollouts: Count = 8
    every: Count = 5


class ArmConfig(Section):
    """One way of getting advantages, all else equal.

    Attributes:
        baseline: A name (`rollonce.baselines.catalogue`; and ``oracle``, ``otb`` and ``otb_batch``), ``module:name``,
            a ``baseline.json`` that ``rollonce tune`` wrote, or a table with the configuration of a baseline
            (``{type = "kriging", window = 128}``). None with a token-level critic.
        group_size: Rollouts of each task; ``rollouts`` must be a multiple.
        rollouts: A step, instead of the run's: a positive control with another batch.
        critic: A table: a token-level critic in place of a baseline.
        oracle: A table, for ``baseline = "oracle"``.
        learning_rate: Instead of the run's.
        learning_rates: A grid: each makes an arm of its own, ``NAME@RATE``.
        loss: Keys that differ from ``[loss]``.
    """

    baseline: str | dict[str, Any] | None = None
    group_size: Count = 1
    rollouts: Count | None = None
    critic: CriticConfig | None = None
    oracle: OracleConfig | None = None
    learning_rate: Positive | None = None
    learning_rates: tuple[Positive, ...] = ()
    loss: dict[str, Any] = {}

    @model_validator(mode="after")
    def _check_arm_settings(self) -> ArmConfig:
        if (self.baseline is None) == (self.critic is None):
            raise ValueError("an arm has a baseline or a critic table, and not both")
        if self.learning_rate is not None and self.learning_rates:
            raise ValueError("give an arm learning_rate or learning_rates, not both")
        if len({f"{rate:g}" for rate in self.learning_rates}) < len(self.learning_rates):
            raise ValueError("two of learning_rates have the same name (six digits count); each must differ")
        if self.baseline == "otb" and self.group_size < 2:
            raise ValueError(
                "baseline 'otb' needs several rollouts of each task: set group_size = 8, say, or take 'otb_batch', "
                "which compares with the batch's other rollouts"
            )
        if self.oracle is not None and self.baseline != "oracle":
            raise ValueError("an oracle table is for baseline = 'oracle' alone")
        return self


class CompareConfig(Section):
    """Which runs, and how they are told apart.

    Attributes:
        seeds: Each gives an order of tasks and a stream of samples; the same in all arms.
        processes: Runs at once, one thread each; None: as many as there are devices, or cores without ``devices``.
        devices: A device for each run: ``"auto"`` (every GPU there is) or a list like ``["cuda:0", "cuda:1"]``. Runs
            that have none wait until one is free. Instead of ``policy.device``. None: all runs on that one.
        reference: The arm that others are compared with; None: ``flashreinforce`` if there is one, else the first.
    """

    seeds: tuple[Natural, ...] = (0,)
    processes: Count | None = None
    devices: Literal["auto"] | tuple[str, ...] | None = None
    reference: str | None = None

    @field_validator("devices")
    @classmethod
    def _check_device_names(cls, devices: tuple[str, ...] | str | None) -> tuple[str, ...] | str | None:
        if devices == ():
            raise ValueError('devices must name at least one, as in ["cuda:0"], or be "auto"')
        return devices

    @field_validator("seeds")
    @classmethod
    def _check_distinct_seeds(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if not seeds or len(set(seeds)) < len(seeds):
            raise ValueError("seeds must be different from each other, and at least one")
        return seeds


class TrackConfig(Section):
    """Trackers beside the JSONL files, where their packages are installed.

    Attributes:
        to: Any of ``wandb``, ``trackio``, ``tensorboard``.
        project: What they call the project.
    """

    to: tuple[Literal["wandb", "trackio", "tensorboard"], ...] = ()
    project: str = "rollonce"


class ExperimentConfig(Section):
    """A whole file: what all arms share, and the arms."""

    policy: PolicyConfig = PolicyConfig()
    tasks: TasksConfig = TasksConfig()
    train: TrainConfig = TrainConfig()
    loss: LossConfig = LossConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    compare: CompareConfig = CompareConfig()
    track: TrackConfig = TrackConfig()
    arms: dict[str, ArmConfig]

    @model_validator(mode="after")
    def _check_arms_and_devices(self) -> ExperimentConfig:
        if not self.arms:
            raise ValueError("there is no arm: add a table like [arms.flashreinforce] with baseline = 'flashreinforce'")
        for name, arm in self.arms.items():
            if not re.fullmatch(r"[A-Za-z0-9][\w.+-]{0,60}", name):
                raise ValueError(
                    f"the arm name {name!r} becomes a directory: use letters, digits, '_', '.', '+' and '-'"
                )
            rollouts = arm.rollouts or self.train.rollouts
            if rollouts % arm.group_size:
                raise ValueError(
                    f"arm {name!r}: {rollouts} rollouts per step are no multiple of group_size {arm.group_size}"
                )
        if self.compare.devices is not None:
            if self.policy.engine == "tinker":
                raise ValueError("compare.devices: a service has its own; leave it out")
            if "device" in self.policy.model_fields_set:
                raise ValueError("compare.devices says where runs go: leave policy.device out")
        reference = self.compare.reference
        if reference is not None and reference not in self.arms:
            base = reference.partition("@")[0]
            hint = f"; rates of a grid are compared under the arm's name: give {base!r}" if base in self.arms else ""
            raise ValueError(f"compare.reference {reference!r} is no arm; there are {', '.join(self.arms)}{hint}")
        return self


class RunConfig(Section):
    """One arm, one seed: what a run directory's ``config.json`` holds."""

    name: str
    arm: ArmConfig
    seed: Natural = 0
    policy: PolicyConfig = PolicyConfig()
    tasks: TasksConfig = TasksConfig()
    train: TrainConfig = TrainConfig()
    loss: LossConfig = LossConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    track: TrackConfig = TrackConfig()

    @property
    def learning_rate(self) -> float:
        return self.arm.learning_rate or self.train.learning_rate

    @property
    def tasks_per_step(self) -> int:
        """Different tasks a step."""
        return self.train.rollouts // self.arm.group_size
