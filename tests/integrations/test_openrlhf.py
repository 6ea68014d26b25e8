"""OpenRLHF 0.11.2: its experience maker with our baseline, its order of samples, penalties, clipping, KL, empty
responses, checkpoints.

Each test runs against a stand-in; with OpenRLHF installed (run_real.sh) also against the real `RemoteExperienceMaker`
and trainer. vLLM and flash-attn have no CPU build here: the real modules are imported with empty ones in their place,
which no test touches.
"""

import importlib.machinery
import inspect
import itertools
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fake_modules import installed, module, namespace, with_settings, without  # noqa: E402
from surprise import MeanSurprise  # noqa: E402

from rollonce.baselines import Batch, KernelBaseline, LeaveOneOut  # noqa: E402
from rollonce.errors import InputError, MissingExtraError  # noqa: E402
from rollonce.integrations import AdvantageWarning  # noqa: E402
from rollonce.integrations import openrlhf as ours  # noqa: E402

REAL = installed("openrlhf") and installed("ray") and installed("deepspeed")
needs_openrlhf = pytest.mark.skipif(
    not REAL, reason="OpenRLHF is not installed: run_real.sh runs this against OpenRLHF 0.11.2"
)
WORDS = ["add", "sort", "prove", "count", "spell"]
PROMPTS = [f"{WORDS[i % 5]} the {WORDS[(2 * i + 1) % 5]} of {i}" for i in range(40)]
SETTINGS = {
    "algo": {
        "advantage": {"estimator": "flash_reinforce", "gamma": 1.0, "no_std_norm": False, "lambd": 1.0},
        "dynamic_filtering_enable": False,
    },
    "train": {"async_enable": False},
    "rollout": {"n_samples_per_prompt": 1, "max_new_tokens": 8},
    "data": {"max_len": 64},
    "reward": {"clip_range": (-10, 10)},
}


# ---------------------------------------------------------------------- the stand-in


def stand_in(monkeypatch):
    def apply_length_penalties(experiences, args):
        length = getattr(args.reward, "overlong_buffer_len", None)
        for e in experiences:
            if length is not None:
                too_long = (e.response_length - (args.rollout.max_new_tokens - length)).clamp(0, length)
                e.rewards -= too_long / length
            if "reward" in e.info:
                e.info["reward"] = e.rewards.clone()

    class RemoteExperienceMaker:
        def compute_advantages_and_returns(self, experiences):
            args = self.strategy.args
            apply_length_penalties(experiences, args)
            estimator, group = args.algo.advantage.estimator, args.rollout.n_samples_per_prompt
            order = torch.tensor(list(itertools.chain.from_iterable(e.index for e in experiences)))
            got = torch.cat([e.rewards for e in experiences])
            rewards = torch.empty_like(got)
            rewards[order] = got
            groups = rewards.reshape(-1, group)
            if estimator == "flash_reinforce":
                rewards = rewards - rewards.mean()
            elif estimator == "dr_grpo":
                rewards = (groups - groups.mean(-1, keepdim=True)).reshape(-1)
            for e, r in zip(experiences, rewards[order].split([len(e.index) for e in experiences]), strict=True):
                if args.reward.clip_range:
                    r = r.clamp(*args.reward.clip_range)
                last = e.action_mask.size(1) - 1 - e.action_mask.long().fliplr().argmax(1, keepdim=True)
                by_token = (
                    torch.zeros_like(e.kl).scatter_(1, last, r[:, None].to(e.kl.dtype))
                    - max(self.kl_ctl.value, 0) * e.kl
                )
                if self.advantage_estimator not in ("flash_reinforce", "rloo", "dr_grpo"):
                    raise ValueError(f"Unknown advantage_estimator {self.advantage_estimator}")
                e.returns = (by_token * e.action_mask).flip(1).cumsum(1).flip(1)
                e.advantages = e.returns.clone()
                e.info["return"], e.kl = by_token.sum(-1), None
            return experiences

    class PPOTrainer:
        def __init__(self, strategy):
            self.experience_maker = RemoteExperienceMaker()
            self.experience_maker.strategy, self.saved = strategy, {}

        def save_logs_and_checkpoints(self, global_step, logs_dict=None, client_states=None):
            self.saved = client_states

        def save_best_checkpoint(self, eval_metrics, global_step, client_states=None):
            self.saved = client_states

        def init_checkpoint_states(self):
            return self.saved or {"global_step": 0}

    module(monkeypatch, "openrlhf.trainer.ppo_utils.length_penalty", apply_length_penalties=apply_length_penalties)
    return SimpleNamespace(maker=RemoteExperienceMaker, trainer=PPOTrainer, experience=SimpleNamespace)


# ---------------------------------------------------------------------- the real one

ABSENT = [
    "vllm",
    "vllm.inputs",
    "vllm.utils",
    "flash_attn",
    "flash_attn.bert_padding",
    "flash_attn.utils",
    "flash_attn.utils.distributed",
]


def real():
    for name in ABSENT:
        if name not in sys.modules:
            empty = MagicMock(name=name)
            empty.__spec__, empty.__path__, empty.__version__ = importlib.machinery.ModuleSpec(name, None), [], "0"
            sys.modules[name] = empty
    from openrlhf.trainer import ppo_trainer
    from openrlhf.trainer.ppo_utils.experience import Experience
    from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

    class PPOTrainer(ppo_trainer.BasePPOTrainer):
        """The real base with its own `__init__` left out: that needs models on GPUs."""

        def __init__(self, strategy):
            self.experience_maker = RemoteExperienceMaker(
                None, None, None, None, SimpleNamespace(value=0.0), strategy, None
            )

    return SimpleNamespace(
        maker=RemoteExperienceMaker, trainer=PPOTrainer, experience=Experience, ppo_trainer=ppo_trainer
    )


@pytest.fixture(params=["stand-in", pytest.param("real", marks=needs_openrlhf)])
def openrlhf(request, monkeypatch):
    return stand_in(monkeypatch) if request.param == "stand-in" else real()


def make(openrlhf, baseline=None, kl=0.0, **changes):
    """An experience maker, with our baseline unless that is False."""
    args = namespace(with_settings(SETTINGS, {k.replace("__", "."): v for k, v in changes.items()}))
    maker = openrlhf.maker.__new__(openrlhf.maker)
    maker.strategy, maker.args, maker.kl_ctl = SimpleNamespace(args=args), args, SimpleNamespace(value=kl)
    maker.advantage_estimator = args.algo.advantage.estimator
    if baseline is not False:
        ours.use_baseline(maker, KernelBaseline(window=24).fit(PROMPTS) if baseline is None else baseline)
    return maker


def samples(rng, n=8):
    at = rng.choice(len(PROMPTS), n, replace=False)
    return [(PROMPTS[k], float(np.float32(rng.random())), int(rng.integers(1, 6))) for k in at]


def experiences(openrlhf, step, sizes=(8,), order=None, dtype=torch.float32, kl=0.0):
    """Micro-batches of (prompt, reward, length) as `split_rollout_samples` leaves them: any order, ``index`` telling
    which is which."""
    order = list(range(len(step))) if order is None else list(order)
    out, start = [], 0
    for size in sizes:
        part = order[start : start + size]
        start += size
        width = max(max(step[i][2] for i in part), 1) + 2
        mask = torch.zeros(size, width, dtype=torch.bool)
        for row, i in enumerate(part):
            mask[row, 1 : 1 + step[i][2]] = True  # a column of padding on either side
        rewards = torch.tensor([step[i][1] for i in part], dtype=dtype)
        out.append(
            openrlhf.experience(
                index=part,
                prompts=[step[i][0] for i in part],
                rewards=rewards,
                action_mask=mask,
                kl=torch.full((size, width), kl),
                action_log_probs=torch.full((size, width), -0.5),
                rollout_log_probs=None,
                response_length=torch.tensor([float(step[i][2]) for i in part]),
                truncated=None,
                values=None,
                info={"reward": rewards.clone()},
            )
        )
    return out


def advantages(result):
    """One number per sample in the order of ``index``, after a check that it stands at every action token up to the
    last."""
    out = {}
    for e in result:
        for row, i in enumerate(e.index):
            mask = e.action_mask[row]
            value = e.advantages[row][mask][0].item() if bool(mask.any()) else 0.0
            torch.testing.assert_close(e.advantages[row][mask], torch.full((int(mask.sum()),), value))
            out[i] = value
    return np.array([out[i] for i in range(len(out))])


def pure(baseline, step):
    batch = Batch.of([s[0] for s in step], [s[1] for s in step])
    return batch.rewards_B - baseline.predict(batch).baseline_B, batch


def test_three_steps_are_those_of_the_pure_function_in_any_order(openrlhf):
    maker, plain, rng = make(openrlhf), KernelBaseline(window=24).fit(PROMPTS), np.random.default_rng(0)
    for _ in range(3):
        step = samples(rng)
        expected, batch = pure(plain, step)
        got = maker.compute_advantages_and_returns(experiences(openrlhf, step, (3, 1, 4), rng.permutation(8)))
        np.testing.assert_allclose(advantages(got), expected, rtol=1e-5, atol=1e-6)
        assert np.ptp(batch.rewards_B - expected) > 1e-6
        plain.observe(batch)


def test_what_is_logged_and_kept_is_the_reward_not_the_advantage(openrlhf):
    step = samples(np.random.default_rng(1))
    expected, batch = pure(KernelBaseline(window=24).fit(PROMPTS), step)
    (got,) = make(openrlhf).compute_advantages_and_returns(experiences(openrlhf, step))
    np.testing.assert_allclose(got.rewards.numpy(), batch.rewards_B, rtol=1e-6)
    np.testing.assert_allclose(got.info["reward"].numpy(), batch.rewards_B, rtol=1e-6)
    np.testing.assert_allclose(got.info["baseline"].numpy(), batch.rewards_B - expected, rtol=1e-5)
    np.testing.assert_allclose(got.info["return"].numpy(), expected, rtol=1e-5, atol=1e-6)
    assert got.kl is None


def test_settings_stand_as_they_were_afterwards(openrlhf):
    maker = make(
        openrlhf, reward__overlong_buffer_len=4, reward__overlong_penalty_factor=1.0, rollout__n_samples_per_prompt=2
    )
    before = repr(maker.strategy.args)
    maker.compute_advantages_and_returns(experiences(openrlhf, samples(np.random.default_rng(2))))
    assert repr(maker.strategy.args) == before
    assert maker.advantage_estimator == "flash_reinforce"


def test_length_penalties_belong_to_the_reward_and_count_once(openrlhf):
    """Buffer 4 of 8 tokens: a response of 6 loses (6 - 4) / 4. OpenRLHF applies it inside the method that we extend."""
    step = [(PROMPTS[0], 1.0, 6), (PROMPTS[1], 1.0, 2), (PROMPTS[2], 0.0, 2)]
    maker = make(openrlhf, LeaveOneOut(), reward__overlong_buffer_len=4, reward__overlong_penalty_factor=1.0)
    (got,) = maker.compute_advantages_and_returns(experiences(openrlhf, step, (3,)))
    np.testing.assert_allclose(got.info["reward"].numpy(), [0.5, 1.0, 0.0])
    np.testing.assert_allclose(advantages([got]), [0.5 - 0.5, 1.0 - 0.25, 0.0 - 0.75], atol=1e-7)


def test_kl_and_clipping_stay_openrlhfs(openrlhf):
    """Clipped after the baseline, as its own estimators are; then the KL of the tokens still to come, at 0.1 of 0.5 a
    token."""
    step = [(PROMPTS[0], 30.0, 2), (PROMPTS[1], 0.0, 2)]
    maker = make(openrlhf, LeaveOneOut(), kl=0.1)
    (got,) = maker.compute_advantages_and_returns(experiences(openrlhf, step, (2,), kl=0.5))
    torch.testing.assert_close(
        got.advantages[:, 1:3], torch.tensor([[10.0 - 0.10, 10.0 - 0.05], [-10.0 - 0.10, -10.0 - 0.05]])
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.float64])
def test_rewards_of_any_dtype(openrlhf, dtype):
    step = [(PROMPTS[0], 1.0, 2), (PROMPTS[1], 0.0, 2), (PROMPTS[2], 1.0, 1)]
    (got,) = make(openrlhf, LeaveOneOut()).compute_advantages_and_returns(
        experiences(openrlhf, step, (3,), dtype=dtype)
    )
    np.testing.assert_allclose(advantages([got]), [0.5, -1.0, 0.5], atol=1e-7)


def test_an_empty_response_does_not_shift_its_siblings(openrlhf):
    """OpenRLHF #1239: rewards [100, 1], the first without one action token; under dr_grpo the second gets 1 - 50.5.
    Ours leaves it out."""
    group = [(PROMPTS[0], 100.0, 0), (PROMPTS[0], 1.0, 2)]
    stock = make(
        openrlhf, False, algo__advantage__estimator="dr_grpo", rollout__n_samples_per_prompt=2, reward__clip_range=None
    )
    assert advantages(stock.compute_advantages_and_returns(experiences(openrlhf, group, (2,))))[1] == pytest.approx(
        -49.5
    )

    step = [*group, (PROMPTS[1], 0.0, 3), (PROMPTS[2], 0.5, 1)]
    maker = make(openrlhf, LeaveOneOut(), reward__clip_range=None)
    got = advantages(maker.compute_advantages_and_returns(experiences(openrlhf, step, (4,))))
    np.testing.assert_allclose(got, [0.0, 1.0 - 0.25, 0.0 - 0.75, 0.5 - 0.5], atol=1e-7)


def test_a_group_without_spread_still_learns_from_the_other_tasks(openrlhf):
    """OpenRLHF #1270: groups alike in a reward that is not 0 or 1 pass its filter on the mean and then train nothing.

    Two tasks, all 0.4 and all 0.8: under dr_grpo all zero. Ours compares over tasks, and needs no filter.
    """
    step = [(PROMPTS[0], 0.4, 2), (PROMPTS[0], 0.4, 2), (PROMPTS[1], 0.8, 2), (PROMPTS[1], 0.8, 2)]
    stock = make(openrlhf, False, algo__advantage__estimator="dr_grpo", rollout__n_samples_per_prompt=2)
    assert np.abs(advantages(stock.compute_advantages_and_returns(experiences(openrlhf, step, (4,))))).max() < 1e-6
    maker = make(openrlhf, LeaveOneOut(), rollout__n_samples_per_prompt=2)
    got = advantages(maker.compute_advantages_and_returns(experiences(openrlhf, step, (4,))))
    np.testing.assert_allclose(
        got, [-0.8 / 3, -0.8 / 3, 0.8 / 3, 0.8 / 3], atol=1e-6
    )  # 0.4 - (0.4 + 0.8 + 0.8) / 3 ...


def test_refused_settings_are_named_with_their_fix(openrlhf):
    for setting, value, fix in [
        ("algo__advantage__estimator", "reinforce", "--algo.advantage.estimator flash_reinforce"),
        ("algo__advantage__estimator", "gae", "--algo.advantage.estimator flash_reinforce"),
        ("algo__advantage__gamma", 0.9, "--algo.advantage.gamma 1"),
        ("train__async_enable", True, "train without --train.async_enable"),
        ("algo__dynamic_filtering_enable", True, "train without --algo.dynamic_filtering_enable"),
    ]:
        with pytest.raises(InputError, match=f"{setting.replace('__', '.')}=.*{fix}"):
            make(openrlhf, **{setting: value})
    make(openrlhf, algo__dynamic_filtering_enable=True, rollout__n_samples_per_prompt=4)


def test_an_index_that_is_no_permutation_is_refused(openrlhf):
    (broken,) = experiences(openrlhf, samples(np.random.default_rng(3)))
    broken.index = [0, 0, 1, 2, 3, 4, 5, 6]
    with pytest.raises((InputError, ValueError), match="no permutation"):
        make(openrlhf).compute_advantages_and_returns([broken])


def test_a_trainer_carries_the_history_in_its_checkpoint(openrlhf, monkeypatch):
    saved = {}
    monkeypatch.setattr(
        openrlhf.trainer,
        "save_logs_and_checkpoints",
        lambda self, step, logs=None, client_states=None: saved.update(client_states),
    )
    monkeypatch.setattr(openrlhf.trainer, "init_checkpoint_states", lambda self: dict(saved) or {"global_step": 0})
    strategy = SimpleNamespace(args=namespace(SETTINGS))
    cls = ours.make_baseline_trainer(openrlhf.trainer, KernelBaseline(window=24).fit(PROMPTS))
    rng = np.random.default_rng(4)
    steps = [samples(rng) for _ in range(3)]

    def run(trainer, step):
        trainer.experience_maker.kl_ctl = SimpleNamespace(value=0.0)
        trainer.experience_maker.advantage_estimator = "flash_reinforce"
        return advantages(trainer.experience_maker.compute_advantages_and_returns(experiences(openrlhf, step)))

    trainer = cls(strategy)
    assert trainer.init_checkpoint_states() == {"global_step": 0}
    for step in steps[:2]:
        run(trainer, step)
    trainer.save_logs_and_checkpoints(2, {}, {"global_step": 2})
    expected = run(trainer, steps[2])

    resumed = cls(strategy)
    assert resumed.init_checkpoint_states()["global_step"] == 2
    np.testing.assert_array_equal(run(resumed, steps[2]), expected)
    assert np.abs(run(cls(strategy), steps[2]) - expected).max() > 1e-4
    del saved["rollonce"]
    with pytest.warns(AdvantageWarning, match="no history in this checkpoint"):
        cls(strategy).init_checkpoint_states()


def test_without_openrlhf_the_module_imports_and_says_what_is_missing(monkeypatch):
    without(monkeypatch, "openrlhf")
    with pytest.raises(MissingExtraError, match="needs the package openrlhf"):
        ours.install_baseline_trainer(LeaveOneOut())


def test_the_command_line_without_a_baseline_or_openrlhf_ends_in_a_sentence(tmp_path):
    def run(*args):
        return subprocess.run(
            [sys.executable, "-m", "rollonce.integrations.openrlhf", *args], capture_output=True, text=True
        )

    assert "baseline.json FLAGS OF OPENRLHF" in run().stderr
    if not installed("openrlhf"):
        result = run("baseline.json")
        assert result.returncode == 2
        assert "needs the package openrlhf" in result.stderr
        assert "Traceback" not in result.stderr


# ---------------------------------------------------------------------- the real trainer only


@needs_openrlhf
def test_the_names_that_we_use_are_there():
    names = real()
    maker = names.maker
    assert list(inspect.signature(maker.compute_advantages_and_returns).parameters) == ["self", "experiences"]
    source = inspect.getsource(maker.compute_advantages_and_returns)
    assert source.index("apply_length_penalties(experiences, args)") < source.index("compute_reward(")
    assert {"index", "prompts", "rewards", "action_mask", "kl", "info"} <= set(names.experience.__dataclass_fields__)
    base = names.ppo_trainer.BasePPOTrainer
    for name, arguments in {
        "save_logs_and_checkpoints": ["self", "global_step", "logs_dict", "client_states"],
        "save_best_checkpoint": ["self", "eval_metrics", "global_step", "client_states"],
        "init_checkpoint_states": ["self"],
    }.items():
        found = [
            p for p in inspect.signature(getattr(base, name)).parameters if p != "_ray_trace_ctx"
        ]  # Ray adds that one
        assert found == arguments, name
    assert "self.experience_maker = RemoteExperienceMaker(" in inspect.getsource(base.__init__)
    import openrlhf.cli.train_ppo_ray as cli

    assert "from openrlhf.trainer.ppo_trainer import PPOTrainer" in inspect.getsource(
        cli.train
    )  # looked up when training starts


@needs_openrlhf
def test_install_puts_our_trainer_where_the_command_line_looks(monkeypatch):
    names = real()
    stock = names.ppo_trainer.PPOTrainer
    monkeypatch.setattr(names.ppo_trainer, "PPOTrainer", stock)
    ours.install_baseline_trainer(LeaveOneOut())
    made = names.ppo_trainer.PPOTrainer
    assert made is not stock
    assert hasattr(made, "remote")
    inner = made.__ray_metadata__.modified_class
    assert issubclass(inner, stock.__ray_metadata__.modified_class)
    assert issubclass(inner, names.ppo_trainer.BasePPOTrainer)


@needs_openrlhf
def test_the_flags_of_the_example_are_openrlhfs():
    import re
    from pathlib import Path

    real()
    import openrlhf.cli.train_ppo_ray as cli

    known = set(re.findall(r'"--([\w.]+)"', Path(cli.__file__).read_text()))
    flags = re.findall(
        r"--([\w.]+)", (Path(__file__).parents[2] / "examples/openrlhf_gs1.sh").read_text().split("python3", 1)[1]
    )
    assert len(flags) > 10
    assert set(flags) <= known


def test_log_probabilities_are_vllm_s_where_it_gave_them_else_the_actor_s(openrlhf):
    step = [(PROMPTS[0], 1.0, 2), (PROMPTS[1], 0.0, 4), (PROMPTS[2], 1.0, 6)]  # lengths, at -0.5 per token: 1, 2, 3
    order = [2, 0, 1]
    maker = make(openrlhf, MeanSurprise())
    got = maker.compute_advantages_and_returns(experiences(openrlhf, step, (1, 2), order))
    np.testing.assert_allclose(advantages(got), [1 - 2.5, 0 - 2.0, 1 - 1.5])
    batches = experiences(openrlhf, step, (1, 2), order)
    for e in batches:
        e.rollout_log_probs = e.action_log_probs * 4
    got = make(openrlhf, MeanSurprise()).compute_advantages_and_returns(batches)
    np.testing.assert_allclose(advantages(got), [1 - 10.0, 0 - 8.0, 1 - 6.0])
