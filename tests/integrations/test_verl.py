"""verl 0.9.1: our estimators in its registry, its trainer with the prompts, its padding, sessions, rejected rows and
checkpoints.

Each test runs against a stand-in; with verl and TransferQueue installed (run_real.sh) also against the real trainer
class, settings (hydra) and queue (Ray).
"""

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fake_modules import installed, module, namespace, with_settings, without  # noqa: E402
from surprise import MeanSurprise, let_files_name_it  # noqa: E402

from rollonce.baselines import Batch, KernelBaseline, LeaveOneOut  # noqa: E402
from rollonce.errors import InputError, MissingExtraError  # noqa: E402
from rollonce.integrations import AdvantageWarning  # noqa: E402
from rollonce.integrations import verl as ours  # noqa: E402
from rollonce.prompts import render_messages  # noqa: E402

REAL = installed("verl") and installed("transfer_queue")
needs_verl = pytest.mark.skipif(not REAL, reason="verl is not installed: run_real.sh runs this against verl 0.9.1")
WORDS = ["add", "sort", "prove", "count", "spell"]
PROMPTS = [f"{WORDS[i % 5]} the {WORDS[(2 * i + 1) % 5]} of {i}" for i in range(40)]


def row(key, reward, prompt, length=3, mask=None, log_probs=None):
    """One output of an agent loop: its reward at the last token, as verl leaves it."""
    rewards = torch.zeros(length)
    rewards[-1] = reward
    return SimpleNamespace(
        key=key,
        prompt=prompt,
        rewards=rewards,
        mask=torch.ones(length, dtype=torch.int64) if mask is None else mask,
        log_probs=torch.zeros(length) if log_probs is None else torch.tensor(log_probs),
    )


def rows_of(rng, n=8, start=0):
    at = rng.choice(len(PROMPTS), n, replace=False)
    rewards = rng.random(n).round(3)
    return [
        row(f"{'abcdef'[i % 6]}{start + i}_0_0", rewards[i], PROMPTS[k], length=int(rng.integers(1, 6)))
        for i, k in enumerate(at)
    ]


# ---------------------------------------------------------------------- the stand-in


class Rows(list):
    """A nested tensor as far as it is used here."""

    def unbind(self):
        return self


class Queue:
    """TransferQueue as far as the trainer uses it: fields by key."""

    def __init__(self):
        self.store = {}

    def put(self, rows):
        for r in rows:
            message = [{"role": "user", "content": r.prompt}]
            uid = r.key.rsplit("_", 2)[0]
            self.store[r.key] = {
                "uid": uid,
                "raw_prompt": message,
                "response_mask": r.mask,
                "rm_scores": r.rewards,
                "rollout_log_probs": r.log_probs,
            }

    def kv_batch_get(self, keys, partition_id, select_fields):
        return {
            name: Rows(self.store[k][name] for k in keys)
            for name in select_fields
            if all(name in self.store[k] for k in keys)
        }


SETTINGS = {
    "algorithm": {"adv_estimator": "gs1", "use_pf_ppo": False, "filter_groups": {"enable": False}},
    "actor_rollout_ref": {"rollout": {"n": 1}},
    "critic": {"enable": None},
    "trainer": {"default_local_dir": "", "resume_mode": "auto", "resume_from_path": None},
}


def stand_in(monkeypatch):
    registry, trainers, queue = {}, {}, Queue()

    def register_adv_est(name):
        def decorator(fn):
            if name in registry and registry[name] != fn:
                raise ValueError(f"Adv estimator {name} has already been registered")
            registry[name] = fn
            return fn

        return decorator

    class PPOTrainerSync:
        def __init__(self, config):
            self.config, self.global_steps = config, 0

        def _compute_advantage(self, batch, metrics):
            data = queue.kv_batch_get(batch.keys, batch.partition_id, ["uid", "response_mask", "rm_scores"])
            pad = lambda x: torch.nn.utils.rnn.pad_sequence(x, batch_first=True)  # noqa: E731
            advantages, returns = registry[self.config.algorithm.adv_estimator](
                token_level_rewards=pad(data["rm_scores"]),
                response_mask=pad(data["response_mask"]),
                config=self.config.algorithm,
                index=np.array(data["uid"], dtype=object),
            )
            assert advantages.shape == returns.shape == pad(data["rm_scores"]).shape
            for key, a, mask in zip(batch.keys, advantages, data["response_mask"], strict=True):
                queue.store[key]["advantages"] = a[: len(mask)]
            return batch

        def _save_checkpoint(self):
            root = self.config.trainer.default_local_dir
            os.makedirs(os.path.join(root, f"global_step_{self.global_steps}"), exist_ok=True)
            with open(os.path.join(root, "latest_checkpointed_iteration.txt"), "w") as f:
                f.write(str(self.global_steps))

        def _load_checkpoint(self):
            latest = os.path.join(self.config.trainer.default_local_dir, "latest_checkpointed_iteration.txt")
            self.global_steps = int(Path(latest).read_text()) if os.path.exists(latest) else 0

    trainers["sync"] = PPOTrainerSync
    module(
        monkeypatch, "verl.trainer.ppo.core_algos", register_adv_est=register_adv_est, ADV_ESTIMATOR_REGISTRY=registry
    )
    module(monkeypatch, "verl.trainer.ppo.v1.trainer_base", TRAINER_REGISTRY=trainers, tq=queue)
    return SimpleNamespace(
        registry=registry,
        trainers=trainers,
        put=queue.put,
        settings=lambda changes: namespace(with_settings(SETTINGS, changes)),
        batch=lambda rows: SimpleNamespace(keys=[r.key for r in rows], partition_id="train"),
        read=lambda rows: [queue.store[r.key]["advantages"] for r in rows],
    )


# ---------------------------------------------------------------------- the real one


@pytest.fixture(scope="session")
def queue():
    if os.environ.get("ROLLONCE_LOCAL_QUEUE"):
        from verl.trainer.ppo import padding_utils
        from verl.trainer.ppo.v1 import trainer_base
        from verl_step import LocalQueue

        trainer_base.tq = padding_utils.tq = LocalQueue()
        yield trainer_base.tq
        return
    import ray
    import transfer_queue as tq
    from omegaconf import OmegaConf

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    tq.init(
        OmegaConf.create(
            {"backend": {"storage_backend": "SimpleStorage", "SimpleStorage": {"num_data_storage_units": 1}}}
        )
    )
    yield tq
    tq.close()
    ray.shutdown()


def real(queue):
    import verl.trainer
    from hydra import compose, initialize_config_dir
    from transfer_queue import KVBatchMeta
    from verl.trainer.ppo import core_algos
    from verl.trainer.ppo.v1 import trainer_base
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    def settings(changes):
        with initialize_config_dir(os.path.join(os.path.dirname(verl.trainer.__file__), "config"), version_base=None):
            everything = {"algorithm.adv_estimator": "gs1", "actor_rollout_ref.rollout.n": 1} | changes
            lists = [f"++{k}={'null' if v is None else v}" for k, v in everything.items()]
            return compose("ppo_trainer", overrides=lists)

    def put(rows):
        fields = [
            {
                "uid": r.key.rsplit("_", 2)[0],
                "raw_prompt": [{"role": "user", "content": r.prompt}],
                "response_mask": r.mask,
                "rm_scores": r.rewards,
                "rollout_log_probs": r.log_probs,
                "old_log_probs": torch.zeros(len(r.rewards)),
            }
            for r in rows
        ]
        queue.kv_batch_put(
            [r.key for r in rows],
            partition_id="train",
            fields=list_of_dict_to_tensordict(fields),
            tags=[{}] * len(rows),
        )

    def read(rows):
        got = queue.kv_batch_get([r.key for r in rows], partition_id="train", select_fields=["advantages"])[
            "advantages"
        ]
        return list(got.unbind())

    return SimpleNamespace(
        registry=core_algos.ADV_ESTIMATOR_REGISTRY,
        trainers=trainer_base.TRAINER_REGISTRY,
        put=put,
        settings=settings,
        batch=lambda rows: KVBatchMeta(keys=[r.key for r in rows], tags=[{} for _ in rows], partition_id="train"),
        read=read,
    )


@pytest.fixture(params=["stand-in", pytest.param("real", marks=needs_verl)])
def verl(request, monkeypatch, tmp_path):
    """verl with our estimators registered, as its plug-in does it, and a fitted baseline in the environment."""
    KernelBaseline(window=24).fit(PROMPTS).save(tmp_path / "baseline.json")
    monkeypatch.setenv("ROLLONCE_BASELINE", str(tmp_path / "baseline.json"))
    made = stand_in(monkeypatch) if request.param == "stand-in" else real(request.getfixturevalue("queue"))
    ours.register()
    return made


def make(verl, tmp_path, **changes):
    settings = {"trainer.default_local_dir": str(tmp_path / "run")} | {
        k.replace("__", "."): v for k, v in changes.items()
    }
    return verl.trainers["sync"](config=verl.settings(settings))


def advantages(verl, trainer, rows, metrics=None):
    """One number per row, after a check that it stands at every token of the response and nowhere else."""
    verl.put(rows)
    trainer._compute_advantage(verl.batch(rows), {} if metrics is None else metrics)
    out = []
    for r, a in zip(rows, verl.read(rows), strict=True):
        value = float(a[r.mask.bool()][0]) if bool(r.mask.any()) else 0.0
        torch.testing.assert_close(a, value * r.mask.to(a.dtype), rtol=0, atol=0)
        out.append(value)
    return np.array(out)


def pure(baseline, rows):
    batch = Batch.of(
        [render_messages([{"role": "user", "content": r.prompt}]) for r in rows],
        [float(r.rewards.double().sum()) for r in rows],
    )
    return batch.rewards_B - baseline.predict(batch).baseline_B, batch


def fresh(tmp_path):
    return KernelBaseline.load(tmp_path / "baseline.json")


def test_three_steps_are_those_of_the_pure_function(verl, tmp_path):
    trainer, plain, rng, metrics = make(verl, tmp_path), fresh(tmp_path), np.random.default_rng(0), {}
    for step in range(3):
        rows = rows_of(rng, start=10 * step)
        expected, batch = pure(plain, rows)
        np.testing.assert_allclose(advantages(verl, trainer, rows, metrics), expected, rtol=1e-6, atol=1e-7)
        plain.observe(batch)
        assert metrics["rollonce/squared_advantage"] == pytest.approx(np.mean(expected**2))
        assert np.ptp(batch.rewards_B - expected) > 1e-6  # the baseline is no constant, or this would show little


def test_the_history_holds_the_prompts_as_the_readers_of_logs_write_them(verl, tmp_path):
    trainer, rows = make(verl, tmp_path), rows_of(np.random.default_rng(1))
    advantages(verl, trainer, rows)
    assert trainer._gs1.baseline.history.tasks.prompts == [
        render_messages([{"role": "user", "content": r.prompt}]) for r in rows
    ]


def test_padding_neither_counts_nor_trains(verl, tmp_path):
    rows = rows_of(np.random.default_rng(2))
    alone = advantages(verl, make(verl, tmp_path), rows)
    pads = [
        row(f"pad{'0f' * 8}_{i}_0", 0.0, rows[0].prompt, length=1, mask=torch.zeros(1, dtype=torch.int64))
        for i in range(3)
    ]
    trainer = make(verl, tmp_path)
    padded = advantages(verl, trainer, [*rows[:4], *pads, *rows[4:]])
    np.testing.assert_array_equal(padded, np.concatenate([alone[:4], np.zeros(3), alone[4:]]))
    assert len(trainer._gs1.baseline.history) == len(rows)


def test_tokens_of_tools_get_no_advantage(verl, tmp_path):
    rows = rows_of(np.random.default_rng(11))
    rows[3] = row(rows[3].key, 1.0, rows[3].prompt, length=4, mask=torch.tensor([1, 0, 0, 1]))
    assert abs(advantages(verl, make(verl, tmp_path), rows)[3]) > 1e-3  # `advantages` itself looks where it stands


def test_balancing_may_put_rows_in_any_order(verl, tmp_path):
    """verl #3126, reruns that differ: what is ours of it. Same rollouts, other order over the ranks: the same
    advantages, bit by bit."""
    rows, order = rows_of(np.random.default_rng(3)), np.random.default_rng(4).permutation(8)
    one = advantages(verl, make(verl, tmp_path), rows)
    again = advantages(verl, make(verl, tmp_path), rows)
    other = advantages(verl, make(verl, tmp_path), [rows[i] for i in order])
    np.testing.assert_array_equal(one, again)
    np.testing.assert_array_equal(one[order], other)


def test_several_outputs_of_a_session_count_once_with_the_last_ones_reward(verl, tmp_path):
    rows = rows_of(np.random.default_rng(5))
    alone = advantages(verl, make(verl, tmp_path), rows)
    key = rows[2].key.removesuffix("_0")
    early, late = row(f"{key}_2", 0.0, rows[2].prompt), row(f"{key}_10", float(rows[2].rewards.sum()), rows[2].prompt)
    trainer = make(verl, tmp_path)
    several = advantages(verl, trainer, [late, *rows[:2], *rows[3:], early])  # balanced: the last output comes first
    np.testing.assert_array_equal(several, np.concatenate([alone[[2]], alone[:2], alone[3:], alone[[2]]]))
    assert len(trainer._gs1.baseline.history) == len(rows)


def test_log_probabilities_are_those_of_trained_tokens_and_add_up_over_a_session(verl, tmp_path, monkeypatch):
    let_files_name_it(monkeypatch)
    MeanSurprise().save(tmp_path / "baseline.json")
    rows = [
        row("a0_0_0", 1.0, "a", length=4, mask=torch.tensor([1, 0, 0, 1]), log_probs=[-1.0, -64.0, -64.0, -2.0]),  # 3
        row("b0_0_0", 0.0, "b", length=1, log_probs=[-4.0]),
        row("b0_0_1", 0.0, "b", length=2, log_probs=[-0.5, -0.5]),  # with the one before: 5
        row("c0_0_0", 1.0, "c", length=1, log_probs=[-7.0]),
    ]
    got = advantages(verl, make(verl, tmp_path), rows)
    np.testing.assert_allclose(got, [1.0 - 6.0, -5.0, -5.0, 1.0 - 4.0], rtol=1e-6)


def test_a_run_goes_on_from_its_checkpoint(verl, tmp_path):
    rng = np.random.default_rng(6)
    steps = [rows_of(rng, start=10 * i) for i in range(3)]
    trainer = make(verl, tmp_path)
    whole = [advantages(verl, trainer, s) for s in steps[:2]]
    trainer.global_steps = 2
    trainer._gs1.save(trainer._history_state_path())
    whole.append(advantages(verl, trainer, steps[2]))

    resumed = make(verl, tmp_path)
    resumed.global_steps = 2
    without_history = advantages(verl, make(verl, tmp_path), steps[2])
    resumed._gs1.load(resumed._history_state_path())
    np.testing.assert_array_equal(advantages(verl, resumed, steps[2]), whole[2])
    assert np.abs(whole[2] - without_history).max() > 1e-4


def test_refused_settings_are_named_with_their_fix(verl, tmp_path):
    with pytest.raises(
        InputError, match=r"algorithm.filter_groups.enable=True drops groups.*set algorithm.filter_groups.enable=False"
    ):
        make(verl, tmp_path, algorithm__filter_groups__enable=True, algorithm__filter_groups__metric="acc")
    with pytest.raises(InputError, match=r"algorithm.use_pf_ppo=True"):
        make(verl, tmp_path, algorithm__use_pf_ppo=True)
    with pytest.raises(InputError, match=r"critic.enable=True"):
        make(verl, tmp_path, critic__enable=True)
    make(
        verl,
        tmp_path,
        algorithm__filter_groups__enable=True,
        algorithm__filter_groups__metric="acc",
        actor_rollout_ref__rollout__n=4,
    )
    make(verl, tmp_path, algorithm__adv_estimator="batch_loo", algorithm__use_pf_ppo=True)  # not our business then


def test_a_wrong_baseline_file_stops_before_the_first_rollout(verl, tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLONCE_BASELINE", str(tmp_path / "none.json"))
    with pytest.raises(InputError, match=r"none.json: no such file"):
        make(verl, tmp_path)


def test_batch_loo_needs_no_prompts_and_ignores_tasks(verl):
    rewards = torch.tensor([[0.0, 1.0], [0.25, 0.0], [0.0, 0.0], [9.0, 9.0]])
    mask = torch.tensor([[1, 1], [1, 0], [1, 1], [0, 0]])
    index = np.array(["a", "b", "a", "pad0"])
    got, returns = verl.registry["batch_loo"](token_level_rewards=rewards, response_mask=mask, config=None, index=index)
    # 1 - (1/4 + 0)/2, 1/4 - (1 + 0)/2, 0 - (1 + 1/4)/2; nothing where the mask is 0
    torch.testing.assert_close(got, torch.tensor([[0.875, 0.875], [-0.25, 0.0], [-0.625, -0.625], [0.0, 0.0]]))
    torch.testing.assert_close(returns, got)


def test_gs1_outside_our_trainer_says_what_to_do(verl):
    with pytest.raises(InputError, match=r"set ROLLONCE_BASELINE=baseline.json.*batch_loo needs neither"):
        verl.registry["gs1"](
            token_level_rewards=torch.zeros(2, 2),
            response_mask=torch.ones(2, 2),
            config=None,
            index=np.array(["a", "b"]),
        )


def test_registering_twice_is_harmless(verl):
    before = dict(verl.trainers)
    ours.register()
    assert verl.trainers == before
    assert verl.registry["gs1"] is ours.compute_gs1_advantages


def test_a_singleton_is_judged_by_the_other_tasks(verl):
    """verl #7793: a group of one under stock RLOO keeps its reward as advantage, under the vectorised one gets 0. Ours:
    neither."""
    arguments = {
        "token_level_rewards": torch.tensor([[0.7], [0.2], [0.4]]),
        "response_mask": torch.ones(3, 1),
        "config": None,
        "index": np.array(["a", "b", "b"], dtype=object),
    }
    if "rloo" in verl.registry:  # the real one
        assert float(verl.registry["rloo"](**arguments)[0][0, 0]) == pytest.approx(0.7)
        assert float(verl.registry["rloo_vectorized"](**arguments)[0][0, 0]) == 0.0
    assert float(verl.registry["batch_loo"](**arguments)[0][0, 0]) == pytest.approx(0.7 - 0.3)


def test_a_rejected_row_does_not_shift_its_siblings(verl, tmp_path):
    """verl #6452: a row that rollout correction rejects (its mask emptied) still enters its siblings' mean. Ours: it
    does not."""

    def siblings(reward, estimator):
        return verl.registry[estimator](
            token_level_rewards=torch.tensor([[1.0], [0.0], [reward]]),
            response_mask=torch.tensor([[1.0], [1.0], [0.0]]),
            config=None,
            index=np.array(["a", "a", "a"], dtype=object),
        )[0][:, 0]

    if "rloo" in verl.registry:
        assert not torch.equal(siblings(1.0, "rloo"), siblings(-5.0, "rloo"))
    torch.testing.assert_close(siblings(-5.0, "batch_loo"), torch.tensor([1.0, -1.0, 0.0]))
    torch.testing.assert_close(siblings(1.0, "batch_loo"), torch.tensor([1.0, -1.0, 0.0]))

    rows = rows_of(np.random.default_rng(7))
    alone = advantages(verl, make(verl, tmp_path), rows)
    rejected = row("f9_0_0", -5.0, PROMPTS[0], mask=torch.zeros(3, dtype=torch.int64))
    np.testing.assert_array_equal(advantages(verl, make(verl, tmp_path), [*rows, rejected]), [*alone, 0.0])


def test_shaping_differences_in_an_all_failed_group_stay_as_small_as_they_are(verl):
    """verl-recipe #125: a length term of 0.01 inside a group that all failed becomes an advantage of full size through
    the deviation.

    Ours at one rollout per task never divides, and failures of other tasks are compared with everything: nothing near 1
        comes of 0.01.
    """
    arguments = {
        "token_level_rewards": torch.tensor([[0.00], [0.01], [0.02], [0.03]]),
        "response_mask": torch.ones(4, 1),
        "config": None,
    }
    if "grpo" in verl.registry:
        stock = verl.registry["grpo"](**arguments, index=np.array(["a"] * 4, dtype=object))[0]
        assert float(stock.abs().max()) > 1.0
    got = verl.registry["batch_loo"](**arguments, index=np.array(list("abcd"), dtype=object))[0]
    assert float(got.abs().max()) == pytest.approx(0.02)  # 0.03 against the mean 0.01 of the others


def test_one_success_among_failures_gives_no_millions(verl):
    """NeMo-RL #1518: leave-one-out mean and deviation of [1, 0, 0, 0] give the winner 1 / 1e-6, since its three peers
    are alike.

    The formula is that of the thread (NeMo-RL is not on the index); ours has no deviation in it.
    """
    rewards = np.array([1.0, 0.0, 0.0, 0.0])
    peers = rewards[1:]
    assert (rewards[0] - peers.mean()) / (peers.std() + 1e-6) == pytest.approx(1e6)
    got = verl.registry["batch_loo"](
        token_level_rewards=torch.tensor(rewards)[:, None],
        response_mask=torch.ones(4, 1),
        config=None,
        index=np.array(["a"] * 4),
    )[0][:, 0]
    np.testing.assert_allclose(got.numpy(), [1.0, -1 / 3, -1 / 3, -1 / 3])


def test_without_verl_the_module_imports_and_says_what_is_missing(monkeypatch):
    without(monkeypatch, "verl")
    with pytest.raises(MissingExtraError, match="needs the package verl"):
        ours.register()


def test_importing_the_module_imports_no_trainer():
    code = (
        "import sys, rollonce.integrations.verl; print([m for m in ('verl', 'ray', 'torch', 'transfer_queue') if m in "
        "sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_the_plugin_warns_where_verl_would_only_log(monkeypatch):
    without(monkeypatch, "verl")
    monkeypatch.delitem(sys.modules, "rollonce.integrations.verl_plugin", raising=False)
    with pytest.warns(UserWarning, match="could not register its estimators with verl"):
        import rollonce.integrations.verl_plugin  # noqa: F401


# ---------------------------------------------------------------------- the real trainer only


@needs_verl
def test_verl_loads_the_plugin_by_itself(tmp_path):
    KernelBaseline().fit(PROMPTS).save(tmp_path / "b.json")
    code = (
        "import verl; from verl.trainer.ppo import core_algos as c; from verl.trainer.ppo.v1 import get_trainer_cls as "
        "g;print(sorted({'gs1', 'batch_loo'} & set(c.ADV_ESTIMATOR_REGISTRY)), [k.__name__ for k in "
        "g('sync').__mro__[:3]])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"ROLLONCE_BASELINE": str(tmp_path / "b.json")},
    )
    assert run.stdout.strip().endswith("['batch_loo', 'gs1'] ['PPOTrainerSync', 'WithPrompts', 'PPOTrainerSync']"), (
        run.stderr[-2000:]
    )


@needs_verl
def test_the_names_that_we_use_are_there(queue):
    from verl.trainer.ppo import core_algos, padding_utils, ray_trainer
    from verl.trainer.ppo.v1 import trainer_base

    assert list(inspect.signature(core_algos.register_adv_est).parameters) == ["name_or_enum"]
    assert list(inspect.signature(trainer_base.PPOTrainer.__init__).parameters) == ["self", "config"]
    assert list(inspect.signature(trainer_base.PPOTrainer._compute_advantage).parameters) == [
        "self",
        "batch",
        "metrics",
    ]
    for name in ("_save_checkpoint", "_load_checkpoint"):
        assert list(inspect.signature(getattr(trainer_base.PPOTrainer, name)).parameters) == ["self"]
    assert list(inspect.signature(queue.kv_batch_get).parameters)[:3] == ["keys", "partition_id", "select_fields"]
    assert 'pad_uid = f"pad{uuid' in inspect.getsource(padding_utils.upsample_batch_to_divisible_size)
    handed_over = inspect.getsource(ray_trainer.compute_advantage)
    assert all(f'"{name}"' in handed_over for name in ("token_level_rewards", "response_mask", "config", "index"))
    assert '"raw_prompt"' in inspect.getsource(trainer_base.PPOTrainer._compute_reward_colocate)


@needs_verl
def test_the_settings_of_the_example_are_verls(monkeypatch):
    """Every setting exists (hydra refuses unknown ones) and verl's own validation passes."""
    import shlex

    import verl.trainer
    from hydra import compose, initialize_config_dir
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    text = (Path(__file__).parents[2] / "examples/verl_gs1.sh").read_text()
    text = re.sub(r"`#.*?`|\\\n", " ", text[text.index("python3 -m verl") :]).replace('"$@"', "")
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
    given = [w for w in shlex.split(text) if "=" in w]
    assert "algorithm.adv_estimator=gs1" in given
    assert len(given) > 15
    with initialize_config_dir(os.path.join(os.path.dirname(verl.trainer.__file__), "config"), version_base=None):
        config = compose("ppo_trainer", overrides=given)
    validate_config(config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))


@pytest.fixture
def real_verl(queue, tmp_path, monkeypatch):
    KernelBaseline(window=24).fit(PROMPTS).save(tmp_path / "baseline.json")
    monkeypatch.setenv("ROLLONCE_BASELINE", str(tmp_path / "baseline.json"))
    ours.register()
    return real(queue)


@needs_verl
def test_rows_padded_by_verl_itself(real_verl, queue, tmp_path):
    from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size

    rows = rows_of(np.random.default_rng(8), n=6)
    alone = advantages(real_verl, make(real_verl, tmp_path), rows)
    batch = real_verl.batch(rows)
    batch.tags = [{"seq_len": 4, "is_padding": False} for _ in rows]
    padded = upsample_batch_to_divisible_size(batch, 4, eos_token_id=0)
    assert len(padded) == 8
    trainer, metrics = make(real_verl, tmp_path), {}
    trainer._compute_advantage(padded, metrics)
    got = queue.kv_batch_get(padded.keys, partition_id="train", select_fields=["advantages"])["advantages"].unbind()
    np.testing.assert_allclose([float(a[0]) for a in got], [*alone, 0.0, 0.0], rtol=0, atol=0)
    assert metrics["rollonce/rows_dropped"] == 2


@needs_verl
def test_a_row_rejected_by_verls_own_rollout_correction(real_verl, queue, tmp_path):
    """Its tokens are 10 nats off what the sampler said and the bound is 2: verl empties its mask, and it then shifts
    nobody."""
    rows = rows_of(np.random.default_rng(9), n=6)
    alone = advantages(real_verl, make(real_verl, tmp_path), rows)
    rejected = row("f9_0_0", -5.0, PROMPTS[0], log_probs=[-10.0] * 3)
    limits = {
        "algorithm__rollout_correction__rollout_rs": "seq_mean_k3",
        "algorithm__rollout_correction__rollout_rs_threshold": 2.0,
    }
    trainer, metrics = make(real_verl, tmp_path, **limits), {}
    real_verl.put([*rows, rejected])
    batch = real_verl.batch([*rows, rejected])
    trainer._compute_advantage(batch, metrics)
    masks = queue.kv_batch_get(batch.keys, partition_id="train", select_fields=["response_mask"])[
        "response_mask"
    ].unbind()
    assert [bool(m.any()) for m in masks] == [True] * 6 + [False]
    np.testing.assert_array_equal([float(a[0]) for a in real_verl.read([*rows, rejected])], [*alone, 0.0])


@needs_verl
def test_steps_of_the_real_trainer_have_the_gradient_of_the_pure_function_and_learn(real_verl, queue, tmp_path):
    """verl's own `_step_once`: 6 rollouts padded by it to 8, its old log-probs, queue and loss. See verl_step.py for
    what is replaced.

    On policy the ratio is 1, so the gradient of its token mean is ``-sum_i A_i grad log p_i / (number of tokens)``,
    worked out here.
    """
    from verl_step import LENGTH, VOCABULARY, equip

    trainer = make(
        real_verl,
        tmp_path,
        actor_rollout_ref__actor__ppo_mini_batch_size=4,
        actor_rollout_ref__actor__use_dynamic_bsz=True,
    )
    equip(trainer, queue, PROMPTS[:10])
    workers, sampler, plain, rewards = trainer.actor_rollout_wg, trainer.replay_buffer, fresh(tmp_path), []
    for _ in range(12):
        before = workers.policy.logits.detach().clone()
        metrics = {}
        trainer._step_once(metrics, {}, sample_batch_size=6)
        step = Batch.of([PROMPTS[k] for k in sampler.at], sampler.rewards)
        expected_A = step.rewards_B - plain.predict(step).baseline_B
        plain.observe(step)
        gradient = torch.zeros(10, VOCABULARY)
        for k, response, a in zip(sampler.at, sampler.responses, expected_A, strict=True):
            for token in response:
                one = torch.nn.functional.one_hot(torch.tensor(token), VOCABULARY).float()
                gradient[k] -= float(a) * (one - torch.softmax(before[k], -1)) / (6 * LENGTH)
        torch.testing.assert_close(workers.gradients[-1], gradient, rtol=1e-4, atol=1e-6)
        assert len(workers.seen[-1]) == 8
        assert metrics["rollonce/rows_dropped"] == 2
        rewards.append(np.mean(sampler.rewards))
    solved = torch.softmax(workers.policy.logits.detach(), -1)[torch.arange(10), torch.arange(10) % VOCABULARY]
    assert float(solved.mean()) > 2 / VOCABULARY, rewards  # it started at 1 in 5


def test_verls_checkpoint_is_found_again_by_its_own_methods(monkeypatch, tmp_path):
    """Through the stand-in's `_save_checkpoint` and `_load_checkpoint` (the real ones need worker groups): file, order,
    missing file."""
    KernelBaseline(window=24).fit(PROMPTS).save(tmp_path / "baseline.json")
    monkeypatch.setenv("ROLLONCE_BASELINE", str(tmp_path / "baseline.json"))
    verl = stand_in(monkeypatch)
    ours.register()
    trainer = make(verl, tmp_path)
    advantages(verl, trainer, rows_of(np.random.default_rng(9)))
    trainer.global_steps = 3
    trainer._save_checkpoint()
    assert json.loads((tmp_path / "run/global_step_3/rollonce.json").read_text())["steps"] == 1

    resumed = make(verl, tmp_path)
    resumed._load_checkpoint()
    assert resumed._gs1.state_dict() == trainer._gs1.state_dict()
    named = make(
        verl,
        tmp_path,
        trainer__resume_mode="resume_path",
        trainer__resume_from_path=str(tmp_path / "run/global_step_3"),
    )
    named._load_checkpoint()
    assert named._gs1.state_dict() == trainer._gs1.state_dict()
    (tmp_path / "run/global_step_3/rollonce.json").unlink()
    with pytest.warns(AdvantageWarning, match="no history in this checkpoint"):
        make(verl, tmp_path)._load_checkpoint()


def test_batch_loo_is_the_leave_one_out_baseline_of_any_dtype():
    rng = np.random.default_rng(10)
    rewards = rng.random(12)
    batch = Batch.of(["p"] * 12, rewards.astype(np.float32).astype(np.float64))
    expected = batch.rewards_B - LeaveOneOut().predict(batch).baseline_B
    for dtype, atol in ((torch.float32, 1e-6), (torch.float64, 1e-12)):
        got, _ = ours.compute_batch_loo_advantages(
            torch.tensor(rewards.astype(np.float32), dtype=dtype)[:, None], torch.ones(12, 1), list("abcdefghijkl")
        )
        assert got.dtype == dtype
        np.testing.assert_allclose(got[:, 0].double().numpy(), expected, rtol=0, atol=atol)
