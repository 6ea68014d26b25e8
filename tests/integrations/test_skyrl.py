"""SkyRL 0.4.0: our estimators in its registry, its trainer with the prompts, its padding, turns and checkpoints.

Each test runs against a stand-in; with SkyRL's trainer installed (run_real.sh; Python 3.12) also against the real
`RayPPOTrainer`,
batch layout, padding and settings. Models, workers and generation are left out: they need GPUs.
"""

import asyncio
import inspect
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fake_modules import installed, module, namespace, with_settings, without  # noqa: E402
from surprise import MeanSurprise  # noqa: E402

from rollonce.baselines import Batch, KernelBaseline, LeaveOneOut  # noqa: E402
from rollonce.errors import InputError, MissingExtraError  # noqa: E402
from rollonce.integrations import AdvantageWarning  # noqa: E402
from rollonce.integrations import skyrl as ours  # noqa: E402

REAL = installed("skyrl") and installed("skyrl_gym") and installed("ray")
needs_skyrl = pytest.mark.skipif(
    not REAL, reason="SkyRL is not installed: run_real.sh runs this against SkyRL 0.4.0 on Python 3.12"
)
WORDS = ["add", "sort", "prove", "count", "spell"]
PROMPTS = [f"{WORDS[i % 5]} the {WORDS[(2 * i + 1) % 5]} of {i}" for i in range(40)]
SETTINGS = {
    "trainer": {
        "algorithm": {"advantage_estimator": "gs1", "gamma": 1.0, "lambd": 1.0, "grpo_norm_by_std": True},
        "critic": {"model": {"path": None}},
        "ckpt_path": "",
    },
    "generator": {"n_samples_per_prompt": 1, "step_wise_trajectories": False},
}


class Tokenizer:
    """One token per byte; 0 pads."""

    def __call__(self, text):
        return list(text.encode())

    def decode(self, tokens, skip_special_tokens=False):
        return bytes(int(t) for t in tokens).decode()


def rollout(uid, prompt, reward, length=3, last=True, loss=1, log_probs=None):
    log_probs = [0.0] * length if log_probs is None else log_probs
    return SimpleNamespace(
        uid=uid, prompt=prompt, reward=reward, length=length, last=last, loss=loss, log_probs=log_probs
    )


def rollouts(rng, n=8):
    at = rng.choice(len(PROMPTS), n, replace=False)
    return [rollout(str(k), PROMPTS[k], float(np.float32(rng.random())), int(rng.integers(1, 6))) for k in at]


# ---------------------------------------------------------------------- the stand-in


class StandInBatch(dict):
    metadata: dict

    def to(self, device):
        return self


def stand_in(monkeypatch):
    functions = {"grpo": None}

    class AdvantageEstimatorRegistry:
        @classmethod
        def list_available(cls):
            return list(functions)

        @classmethod
        def register(cls, name, func):
            if name in functions:
                raise ValueError(f"'{name}' already registered")
            functions[name] = func

    class RayPPOTrainer:
        async def generate(self, input_batch):
            return input_batch

        def compute_advantages_and_returns(self, data):
            rewards, mask, uids = data["rewards"], data["response_mask"], data.metadata["uids"]
            rows = slice(None)
            if self.cfg.generator.step_wise_trajectories:
                rows = torch.tensor(data.metadata["is_last_step"])
            algorithm = self.cfg.trainer.algorithm
            advantages, returns = functions[algorithm.advantage_estimator](
                token_level_rewards=rewards[rows],
                response_mask=torch.ones_like(mask[rows], dtype=torch.float)
                if self.cfg.generator.step_wise_trajectories
                else mask,
                index=np.array(uids)[rows.numpy()] if self.cfg.generator.step_wise_trajectories else uids,
                values=data["values"],
                config=algorithm,
                gamma=1.0,
                lambd=1.0,
                grpo_norm_by_std=True,
            )
            if self.cfg.generator.step_wise_trajectories:
                of = torch.cat([torch.tensor([False]), rows[:-1]]).int().cumsum(0)
                advantages, returns = advantages[of] * mask, returns[of] * mask
            data["advantages"], data["returns"] = advantages, returns
            return data

        def save_checkpoints(self):
            return ""

        def load_checkpoints(self):
            return self.global_step, self.folder

    module(
        monkeypatch, "skyrl.backends.skyrl_train.utils.ppo_utils", AdvantageEstimatorRegistry=AdvantageEstimatorRegistry
    )
    import os

    io = SimpleNamespace(makedirs=os.makedirs, open_file=open, exists=os.path.exists)
    module(monkeypatch, "skyrl.backends.skyrl_train.utils.io", io=io)

    def batch(rows, pads):
        rows = [
            *rows,
            *[rollout(f"pad{i}", rows[0].prompt, rows[0].reward, rows[0].length, loss=0) for i in range(pads)],
        ]
        prompts = [Tokenizer()(r.prompt) for r in rows]
        wide, width = max(len(p) + r.length for p, r in zip(prompts, rows, strict=True)), max(r.length for r in rows)
        data = StandInBatch(
            sequences=torch.zeros(len(rows), wide, dtype=torch.int64),
            attention_mask=torch.zeros(len(rows), wide, dtype=torch.int64),
            response_mask=torch.zeros(len(rows), width, dtype=torch.int64),
            loss_mask=torch.zeros(len(rows), width, dtype=torch.int64),
            rewards=torch.zeros(len(rows), width),
            rollout_logprobs=torch.zeros(len(rows), width),
            values=None,
        )
        for i, (p, r) in enumerate(zip(prompts, rows, strict=True)):  # left-padded: everything ends at the right
            data["sequences"][i, wide - len(p) - r.length :] = torch.tensor(p + [65] * r.length)
            data["attention_mask"][i, wide - len(p) - r.length :] = 1
            data["response_mask"][i, width - r.length :] = 1
            data["loss_mask"][i, width - r.length :] = r.loss
            data["rewards"][i, -1] = r.reward
            data["rollout_logprobs"][i, width - r.length :] = torch.tensor(r.log_probs)
        data.metadata = {"uids": [r.uid for r in rows], "is_last_step": [r.last for r in rows], "pad_size": pads}
        return data

    return SimpleNamespace(
        trainer=RayPPOTrainer,
        estimator=lambda name: functions[name],
        settings=lambda changes: namespace(with_settings(SETTINGS, changes)),
        batch=batch,
        stock=False,
    )


# ---------------------------------------------------------------------- the real one


def real():
    from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch, pad_training_input_batch
    from skyrl.backends.skyrl_train.utils import ppo_utils
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.dataset.preprocess import convert_prompts_responses_to_batch_tensors
    from skyrl.train.trainer import RayPPOTrainer

    ppo_utils.repopulate_all_registries()

    def settings(changes):
        cfg = SkyRLTrainConfig()
        for name, value in {
            "trainer.algorithm.advantage_estimator": "gs1",
            "generator.n_samples_per_prompt": 1,
            **changes,
        }.items():
            *path, last = name.split(".")
            at = cfg
            for part in path:
                at = getattr(at, part)
            assert hasattr(at, last), f"SkyRL has no setting {name} any more"
            setattr(at, last, value)
        return cfg

    def batch(rows, pads):
        prompts, responses = [Tokenizer()(r.prompt) for r in rows], [[65] * r.length for r in rows]
        tensors = convert_prompts_responses_to_batch_tensors(
            0,
            prompts,
            responses,
            [[0.0] * (r.length - 1) + [r.reward] for r in rows],
            [[r.loss] * r.length for r in rows],
            [r.log_probs for r in rows],
        )
        names = ["sequences", "attention_mask", "response_mask", "rewards", "loss_mask", "rollout_logprobs"]
        data = TrainingInputBatch({**dict(zip(names, tensors, strict=False)), "values": None})
        data.metadata = {
            "uids": [r.uid for r in rows],
            "is_last_step": [r.last for r in rows],
            "avg_response_length": 3.0,
        }
        return pad_training_input_batch(data, pads)

    return SimpleNamespace(
        trainer=RayPPOTrainer,
        estimator=ppo_utils.AdvantageEstimatorRegistry.get,
        settings=settings,
        batch=batch,
        stock=True,
        module=ppo_utils,
    )


@pytest.fixture(params=["stand-in", pytest.param("real", marks=needs_skyrl)])
def skyrl(request, monkeypatch):
    made = stand_in(monkeypatch) if request.param == "stand-in" else real()
    ours.register()
    return made


def make(skyrl, baseline=None, **changes):
    trainer = skyrl.trainer.__new__(skyrl.trainer)  # its own __init__ wants engines, data and a placement group
    trainer.cfg = skyrl.settings({k.replace("__", "."): v for k, v in changes.items()})
    trainer.all_metrics, trainer.tokenizer, trainer.global_step = {}, Tokenizer(), 1
    return ours.use_baseline(trainer, KernelBaseline(window=24).fit(PROMPTS) if baseline is None else baseline)


def advantages(skyrl, trainer, rows, pads=0):
    """One number per row, after a check that it stands at every response token and nowhere else; padding rows must have
    none."""
    data = trainer.compute_advantages_and_returns(skyrl.batch(rows, pads))
    out = []
    for a, r, mask in zip(data["advantages"], data["returns"], data["response_mask"], strict=True):
        value = a[mask.bool()][0]
        torch.testing.assert_close(a, value * mask.to(a.dtype), rtol=0, atol=0)
        torch.testing.assert_close(a, r, rtol=0, atol=0)
        out.append(float(value))
    assert out[len(rows) :] == [0.0] * pads
    return np.array(out[: len(rows)])


def pure(baseline, rows):
    batch = Batch.of([r.prompt for r in rows], [r.reward for r in rows])
    return batch.rewards_B - baseline.predict(batch).baseline_B, batch


def test_three_steps_are_those_of_the_pure_function_with_or_without_padding(skyrl):
    trainer, plain, rng = make(skyrl), KernelBaseline(window=24).fit(PROMPTS), np.random.default_rng(0)
    for pads in (0, 3, 1):
        rows = rollouts(rng)
        expected, batch = pure(plain, rows)
        np.testing.assert_allclose(advantages(skyrl, trainer, rows, pads), expected, rtol=1e-5, atol=1e-6)
        assert np.ptp(batch.rewards_B - expected) > 1e-6
        assert trainer.all_metrics["rollonce/rows_dropped"] == pads
        plain.observe(batch)
    assert len(trainer.gs1.baseline.history) == 24


def test_prompts_come_from_the_messages_that_were_sampled_from(skyrl):
    """The tokens hold the chat template, the messages do not: what `generate` was given wins, and only for the step it
    was given for."""
    trainer, rows = make(skyrl), rollouts(np.random.default_rng(1), n=3)
    said = {r.uid: [{"role": "user", "content": f"asked: {r.prompt}"}] for r in rows[:2]}
    ids = [SimpleNamespace(instance_id=uid) for uid in said]

    async def passed_on(self, input_batch):
        return input_batch

    parent = type(trainer).__mro__[2]
    original, parent.generate = parent.generate, passed_on
    try:
        asyncio.run(trainer.generate({"prompts": list(said.values()), "trajectory_ids": ids}))
    finally:
        parent.generate = original
    advantages(skyrl, trainer, rows)
    assert trainer.gs1.baseline.history.tasks.prompts == [
        f"asked: {rows[0].prompt}",
        f"asked: {rows[1].prompt}",
        rows[2].prompt,
    ]
    assert trainer._messages == {}


def test_turns_of_a_trajectory_count_once_with_its_first_prompt_and_last_reward(skyrl):
    whole = rollouts(np.random.default_rng(2), n=5)
    alone = advantages(skyrl, make(skyrl), whole)
    turns = []
    for r in whole:
        turns += [
            rollout(r.uid, r.prompt, 0.0, 2, last=False),
            rollout(r.uid, r.prompt + " and what the policy wrote", r.reward, 4),
        ]
    trainer = make(skyrl, generator__step_wise_trajectories=True)
    got = advantages(skyrl, trainer, turns, pads=2)
    np.testing.assert_array_equal(got[0::2], alone)
    np.testing.assert_array_equal(got[1::2], alone)
    assert trainer.gs1.baseline.history.tasks.prompts == [r.prompt for r in whole]


def test_a_row_that_trains_nothing_shifts_nobody(skyrl):
    rows = rollouts(np.random.default_rng(3))
    alone = advantages(skyrl, make(skyrl), rows)
    masked = rollout("99", PROMPTS[0], -5.0, loss=0)
    np.testing.assert_array_equal(advantages(skyrl, make(skyrl), [*rows, masked]), [*alone, 0.0])


def test_padding_copies_row_0_with_its_reward_and_still_changes_nothing(skyrl):
    """Without care a copy of row 0 would be its own best neighbour: its advantage would shrink towards 0."""
    rows = rollouts(np.random.default_rng(4), n=4)
    np.testing.assert_array_equal(advantages(skyrl, make(skyrl), rows, pads=4), advantages(skyrl, make(skyrl), rows))
    doubled = advantages(skyrl, make(skyrl), [*rows, rollout("0x", rows[0].prompt, rows[0].reward, rows[0].length)])
    assert abs(doubled[0] - advantages(skyrl, make(skyrl), rows)[0]) > 1e-3


def test_batch_loo_leaves_padding_out_by_its_name(skyrl):
    got, returns = skyrl.estimator("batch_loo")(
        token_level_rewards=torch.tensor([[0.0, 1.0], [0.0, 0.25], [0.0, 0.0], [0.0, 1.0]]),
        response_mask=torch.tensor([[1, 1], [0, 1], [1, 1], [1, 1]]),
        index=["3", "7", "3", "pad0"],
        values=None,
        config=None,
        grpo_norm_by_std=True,
        gamma=1.0,
        lambd=1.0,
    )
    torch.testing.assert_close(got, torch.tensor([[0.875, 0.875], [0.0, -0.25], [-0.625, -0.625], [0.0, 0.0]]))
    torch.testing.assert_close(returns, got)


def test_a_group_of_one_is_judged_by_the_other_tasks(skyrl):
    """As in verl #7793: alone in its group, 0.7 becomes 0.7 under stock GRPO and 0 under RLOO. Ours subtracts what the
    others got."""
    arguments = {
        "token_level_rewards": torch.tensor([[0.7], [0.2], [0.4]]),
        "response_mask": torch.ones(3, 1),
        "index": np.array(["a", "b", "c"]),
        "values": None,
        "config": None,
        "grpo_norm_by_std": False,
        "gamma": 1.0,
        "lambd": 1.0,
    }
    if skyrl.stock:
        for name, alone in {"grpo": 0.7, "rloo": 0.0}.items():
            fresh = arguments | {"token_level_rewards": arguments["token_level_rewards"].clone()}
            assert float(skyrl.estimator(name)(**fresh)[0][0, 0]) == pytest.approx(alone), name
    assert float(skyrl.estimator("batch_loo")(**arguments)[0][0, 0]) == pytest.approx(0.7 - 0.3)


def test_gs1_outside_our_trainer_says_what_to_do(skyrl):
    with pytest.raises(
        InputError, match=r"pass the trainer to rollonce.integrations.skyrl.use_baseline, or use batch_loo"
    ):
        skyrl.estimator("gs1")(token_level_rewards=torch.zeros(2, 2), response_mask=torch.ones(2, 2), index=["0", "1"])


def test_refused_settings_are_named_with_their_fix(skyrl):
    for setting, value, fix in [
        ("trainer__algorithm__advantage_estimator", "grpo", "set trainer.algorithm.advantage_estimator=gs1"),
        (
            "trainer__algorithm__advantage_batch_normalize",
            True,
            "set trainer.algorithm.advantage_batch_normalize=false",
        ),
        ("trainer__algorithm__zero_variance_filter", True, "set trainer.algorithm.zero_variance_filter=false"),
        ("trainer__algorithm__dynamic_sampling__type", "filter", "leave trainer.algorithm.dynamic_sampling.type unset"),
        ("trainer__critic__model__path", "some/model", "leave trainer.critic.model.path unset"),
    ]:
        with pytest.raises(InputError, match=f"{setting.replace('__', '.')}=.*{fix}"):
            make(skyrl, **{setting: value})
    make(skyrl, trainer__algorithm__dynamic_sampling__type="filter", generator__n_samples_per_prompt=4)


def test_a_run_goes_on_from_its_checkpoint(skyrl, tmp_path, monkeypatch):
    rng = np.random.default_rng(5)
    steps = [rollouts(rng) for _ in range(3)]
    monkeypatch.setattr(skyrl.trainer, "save_checkpoints", lambda self: str(tmp_path / "global_step_2"))
    monkeypatch.setattr(skyrl.trainer, "load_checkpoints", lambda self: (2, tmp_path / "global_step_2"))
    trainer = make(skyrl, trainer__ckpt_path=str(tmp_path))
    for step in steps[:2]:
        advantages(skyrl, trainer, step)
    trainer.global_step = 2
    assert trainer.save_checkpoints() == str(tmp_path / "global_step_2")
    expected = advantages(skyrl, trainer, steps[2])

    resumed = make(skyrl, trainer__ckpt_path=str(tmp_path))
    assert resumed.load_checkpoints() == (2, tmp_path / "global_step_2")
    np.testing.assert_array_equal(advantages(skyrl, resumed, steps[2]), expected)
    assert np.abs(advantages(skyrl, make(skyrl), steps[2]) - expected).max() > 1e-4
    (tmp_path / "global_step_2/rollonce.json").unlink()
    with pytest.warns(AdvantageWarning, match="no history in this checkpoint"):
        make(skyrl, trainer__ckpt_path=str(tmp_path)).load_checkpoints()
    monkeypatch.setattr(skyrl.trainer, "load_checkpoints", lambda self: (0, None))
    assert make(skyrl).load_checkpoints() == (0, None)


def test_registering_twice_is_harmless(skyrl):
    ours.register()
    assert skyrl.estimator("gs1") is ours.compute_gs1_advantages


def test_without_skyrl_the_module_imports_and_says_what_is_missing(monkeypatch):
    without(monkeypatch, "skyrl")
    with pytest.raises(MissingExtraError, match="needs the package skyrl"):
        ours.register()


def test_importing_the_module_imports_no_trainer():
    code = "import sys, rollonce.integrations.skyrl; print([m for m in ('skyrl', 'ray', 'torch') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


# ---------------------------------------------------------------------- the real trainer only


@needs_skyrl
def test_the_names_that_we_use_are_there():
    names = real()
    for method, arguments in {
        "generate": ["self", "input_batch"],
        "compute_advantages_and_returns": ["self", "data"],
        "save_checkpoints": ["self"],
        "load_checkpoints": ["self"],
    }.items():
        assert list(inspect.signature(getattr(names.trainer, method)).parameters) == arguments, method
    called = inspect.signature(names.module.compute_advantages_and_returns).parameters
    assert {"token_level_rewards", "response_mask", "index", "adv_estimator", "config"} <= set(called)
    assert list(inspect.signature(names.module.AdvantageEstimatorRegistry.register).parameters) == ["name", "func"]
    from skyrl.backends.skyrl_train.utils.io import io

    assert all(callable(getattr(io, name)) for name in ("makedirs", "open_file", "exists"))
    assert 'f"global_step_{self.global_step}"' in inspect.getsource(names.trainer.save_checkpoints)
    from skyrl.train.generators.base import TrajectoryID

    assert "instance_id" in TrajectoryID.__dataclass_fields__


@needs_skyrl
def test_the_registered_names_reach_the_other_processes_of_ray():
    """SkyRL pickles estimators into a named actor and reads them from there in every process: by reference, with
    nothing lost."""
    names = real()
    ours.register()
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, ignore_reinit_error=True)
    try:
        names.module.sync_registries()

        @ray.remote
        def elsewhere():
            from skyrl.backends.skyrl_train.utils.ppo_utils import AdvantageEstimatorRegistry

            found = AdvantageEstimatorRegistry.get("batch_loo")
            return found.__module__, found(torch.tensor([[1.0], [0.0]]), torch.ones(2, 1), ["0", "1"])[0][:, 0].tolist()

        assert ray.get(elsewhere.remote()) == ("rollonce.integrations.skyrl", [1.0, -1.0])
    finally:
        ray.shutdown()


@needs_skyrl
def test_the_example_builds_on_skyrls_own_experiment(monkeypatch):
    """It imports, its settings pass SkyRL's validation once the names are registered, and the trainer that comes out is
    ours."""
    import runpy
    from pathlib import Path

    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.entrypoints.main_base import BasePPOExp
    from skyrl.train.utils import validate_cfg

    example = runpy.run_path(str(Path(__file__).parents[2] / "examples/skyrl_gs1.py"))
    cfg = SkyRLTrainConfig.from_cli_overrides(
        ["trainer.algorithm.advantage_estimator=gs1", "generator.n_samples_per_prompt=1", "trainer.logger=console"]
    )
    example["register"]()
    validate_cfg(cfg)
    monkeypatch.setenv("ROLLONCE_BASELINE", str(Path(__file__).parent / "none.json"))
    monkeypatch.setattr(BasePPOExp, "get_trainer", lambda self, cfg: SimpleNamespace(cfg=cfg))
    with pytest.raises(InputError, match=r"none.json: no such file"):
        example["Experiment"].__new__(example["Experiment"]).get_trainer(cfg)


def test_leave_one_out_of_the_whole_step():
    rewards = np.random.default_rng(6).random(9).astype(np.float32)
    batch = Batch.of(["p"] * 9, rewards.astype(np.float64))
    got, _ = ours.compute_batch_loo_advantages(
        torch.tensor(rewards)[:, None], torch.ones(9, 1), [str(i) for i in range(9)]
    )
    np.testing.assert_allclose(got[:, 0].numpy(), batch.rewards_B - LeaveOneOut().predict(batch).baseline_B, atol=1e-6)


@pytest.mark.parametrize("field", ["rollout_logprobs", "action_log_probs"])
def test_log_probabilities_add_up_over_the_turns_of_a_trajectory(skyrl, field):
    turns = [
        rollout("1", PROMPTS[1], 0.0, 2, last=False, log_probs=[-1.0, -2.0]),
        rollout("1", PROMPTS[1], 1.0, 1, log_probs=[-3.0]),  # 6 in all
        rollout("2", PROMPTS[2], 0.0, 2, log_probs=[-4.0, -4.0]),
        rollout("3", PROMPTS[3], 1.0, 1, log_probs=[-1.0]),
    ]
    trainer = make(skyrl, MeanSurprise(), generator__step_wise_trajectories=True)
    data = skyrl.batch(turns, 0)
    if field != "rollout_logprobs":
        data[field], data["rollout_logprobs"] = data["rollout_logprobs"], None
    trainer.compute_advantages_and_returns(data)
    assert [float(a[m.bool()][0]) for a, m in zip(data["advantages"], data["response_mask"], strict=True)] == [
        1 - 4.5,
        1 - 4.5,
        -3.5,
        1 - 7.0,
    ]
