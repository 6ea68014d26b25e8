"""The adapter inside the real TRL: real training steps of the embedded policy, one process and two, against the pure
function."""

import inspect
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("trl")
pytest.importorskip("datasets")

import torch
import trl
from surprise import MeanSurprise
from trl_runs import PROMPTS, coin, data, model, recorded, run, settings, sometimes_none, world_rewards

from rollonce.baselines import Batch, KernelBaseline, LeaveOneOut, Rloo, SelfTuning, family_mean_baseline
from rollonce.errors import InputError
from rollonce.integrations import AdvantageWarning
from rollonce.integrations.trl import (
    SingleRolloutGRPOConfig,
    SingleRolloutGRPOTrainer,
    SingleRolloutRLOOConfig,
    _SingleRollout,
    single_rollout_config,
    single_rollout_trainer,
)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")


def pure(batches, baseline):
    """What the pure function gives for recorded world batches, in order."""
    baseline.fit(PROMPTS)
    out = []
    for b in batches:
        rewards = world_rewards(b)
        at = np.flatnonzero(np.isfinite(rewards))
        batch = Batch.of([b["prompts"][i] for i in at], rewards[at])
        a = np.zeros(len(rewards))
        a[at] = baseline.advantages(batch)
        baseline.observe(batch)
        out.append(a)
    return out


@pytest.mark.parametrize("cls", ["GRPOTrainer", "RLOOTrainer"])
def test_the_methods_that_are_overridden_have_the_signatures_read(cls):
    found = getattr(trl, cls)
    want = {
        "_calculate_rewards": ["self", "inputs", "prompts", "completions", "completion_ids_list"],
        "_generate_and_score_completions": ["self", "inputs"],
        "_save_checkpoint": ["self", "model", "trial"],
        "_load_optimizer_and_scheduler": ["self", "checkpoint"],
    }
    for name, parameters in want.items():
        assert list(inspect.signature(getattr(found, name)).parameters) == parameters, name
    source = inspect.getsource(found._generate_and_score_completions)
    for needed in (
        '"advantages": advantages',
        'self._logs["advantages"].extend(all_process_advantages.tolist())',
        '["frac_reward_zero_std"].append(',
    ):
        assert needed in source


def test_trl_itself_refuses_one_generation_and_our_configuration_does_not():
    with pytest.raises(ValueError, match="at least 2 generations"):
        trl.GRPOConfig("x", num_generations=1, use_cpu=True, bf16=False)
    args = SingleRolloutGRPOConfig("x", use_cpu=True, bf16=False, per_device_train_batch_size=4)
    assert (args.num_generations, args.num_generations_eval, args.scale_rewards, args.generation_batch_size) == (
        1,
        1,
        "none",
        4,
    )
    assert isinstance(args, trl.GRPOConfig)
    assert SingleRolloutGRPOConfig("x", use_cpu=True, bf16=False, num_generations=4).num_generations == 4
    assert SingleRolloutRLOOConfig("x", use_cpu=True, bf16=False).beta == 0.0


def test_training_steps_use_the_pure_functions_advantages(tmp_path):
    trainer = run(tmp_path, max_steps=3, log_completions=True)
    want = pure(trainer.batches, KernelBaseline(window=12))
    assert len(want) == 3
    for k, (batch, a) in enumerate(zip(trainer.batches, want, strict=True)):
        np.testing.assert_array_equal(np.float32(batch["own"]), np.float32(a))
        np.testing.assert_array_equal(
            np.sort(np.float32(trainer.in_loss[k])), np.sort(np.float32(a))
        )  # TRL shuffles the rows
        assert len(set(batch["prompts"])) == 8, "one rollout per task"
        assert np.abs(a).max() > 0.1
    assert {p for b in trainer.batches[:2] for p in b["prompts"]} == set(PROMPTS), (
        "an epoch of two batches sees every task"
    )
    steps = [r for r in trainer.state.log_history if "reward" in r]
    assert [r["frac_reward_zero_std"] for r in steps] == [0, 0, 0]
    for r, b, a in zip(steps, trainer.batches, want, strict=True):
        assert math.isclose(r["rollonce/squared_advantage"], np.mean(a**2), rel_tol=1e-9)
        assert math.isclose(r["rollonce/baseline"], np.mean(world_rewards(b) - a), rel_tol=1e-9, abs_tol=1e-12)
        assert r["grad_norm"] > 0
    import pyarrow.parquet

    for k, a in enumerate(want):
        table = pyarrow.parquet.read_table(tmp_path / "completions" / f"completions_{k + 1:05d}.parquet")
        np.testing.assert_allclose(table["advantage"].to_numpy(), a, rtol=0, atol=1e-7)


def test_gradient_accumulation_and_generation_batches_are_one_batch(tmp_path):
    trainer = run(
        tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=2, steps_per_generation=4, max_steps=4
    )
    want = pure(trainer.batches, KernelBaseline(window=12))
    assert [len(a) for a in want] == [8, 8], "4 optimizer steps of 2 x 2 rows: two generation batches of 8"
    assert trainer.hook.steps == 2
    assert len(trainer.in_loss) == 8
    for k, a in enumerate(want):
        used = np.concatenate(trainer.in_loss[4 * k : 4 * k + 4])
        np.testing.assert_array_equal(np.sort(np.float32(used)), np.sort(np.float32(a)))


def test_completions_that_nothing_graded_count_for_nobody(tmp_path):
    trainer = run(tmp_path, reward=sometimes_none, max_steps=4)
    missing = [np.isnan(world_rewards(b)) for b in trainer.batches]
    assert sum(m.sum() for m in missing) >= 1
    for batch, a, m in zip(trainer.batches, pure(trainer.batches, KernelBaseline(window=12)), missing, strict=True):
        np.testing.assert_array_equal(np.float32(batch["own"]), np.float32(a))
        assert (np.asarray(batch["own"])[m] == 0).all()


def test_several_reward_functions_weights_columns_and_chat(tmp_path):
    def by_family(prompts, completions, family, **_):
        return [1.0 if f in ("add", "sort") else None for f in family]

    trainer = run(
        tmp_path,
        baseline=family_mean_baseline("family"),
        reward=[coin, by_family],
        reward_weights=[1.0, 0.5],
        train=data(chat=True),
    )
    for batch in trainer.batches:
        each = np.asarray(batch["rewards"], float)
        total = each[:, 0] + 0.5 * np.nan_to_num(each[:, 1])
        prompts = [p[0]["content"] for p in batch["prompts"]]
        columns = {"family": [p.split()[0] for p in prompts]}
        want = family_mean_baseline("family").advantages(Batch.of(prompts, total, columns=columns))
        np.testing.assert_allclose(batch["own"], want, rtol=0, atol=1e-6)


def test_scaling_is_ours_to_ask_for(tmp_path):
    trainer = run(tmp_path, baseline=LeaveOneOut(), scale_by_std=True, max_steps=1)
    rewards = world_rewards(trainer.batches[0])
    np.testing.assert_allclose(trainer.batches[0]["own"], (rewards - rewards.mean()) * 8 / 7 / rewards.std(), rtol=1e-5)


def test_constant_reward_shows_in_the_log_and_is_warned_of(tmp_path):
    with pytest.warns(AdvantageWarning, match="all 8 rewards of this step are 1"):
        trainer = run(tmp_path, reward=lambda prompts, **_: [1.0] * len(prompts), max_steps=1)
    assert trainer.state.log_history[0]["frac_reward_zero_std"] == 1
    assert trainer.batches[0]["own"] == [0.0] * 8


def test_rloo_has_the_same_hook_and_clips_rewards_first(tmp_path):
    trainer = run(tmp_path, kind="RLOO", reward_clip_range=(0.0, 0.5), baseline=LeaveOneOut(), max_steps=1)
    rewards = np.clip(world_rewards(trainer.batches[0]), 0, 0.5)
    np.testing.assert_allclose(trainer.batches[0]["own"], rewards - (rewards.sum() - rewards) / 7, rtol=0, atol=1e-7)


def test_groups_are_there_when_asked_for(tmp_path):
    trainer = run(tmp_path, baseline=Rloo(), num_generations=2, max_steps=1)
    r = world_rewards(trainer.batches[0]).reshape(-1, 2)
    np.testing.assert_allclose(
        np.reshape(trainer.batches[0]["own"], (-1, 2)),
        np.stack([r[:, 0] - r[:, 1], r[:, 1] - r[:, 0]], axis=1),
        atol=1e-7,
    )


def test_evaluation_teaches_the_baseline_nothing(tmp_path):
    held_out = data([f"held out {i}" for i in range(8)])
    trainer = run(tmp_path, eval_dataset=held_out, eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=8)
    assert [b["training"] for b in trainer.batches] == [True, False, True, False]
    assert not any("held out" in p for p in trainer.hook.baseline.history.tasks.prompts)
    assert len(trainer.hook.baseline.history) == 12


def test_resuming_from_a_checkpoint_goes_on_with_its_history(tmp_path):
    """TRL's own order of prompts is not what it would have been; the baseline judges whatever comes as if it had never
    stopped."""
    make = lambda: SelfTuning(window=16, min_rows=8, refit_every=2, max_rows=32)  # noqa: E731
    first = run(tmp_path / "a", baseline=make(), max_steps=3, save_strategy="steps", save_steps=2)
    resumed = run(tmp_path / "b", baseline=make(), max_steps=4, resume=str(tmp_path / "a" / "checkpoint-2"))
    assert len(resumed.batches) == 2
    want = pure([*first.batches[:2], *resumed.batches], make())
    for batch, a in zip(resumed.batches, want[2:], strict=True):
        np.testing.assert_array_equal(np.float32(batch["own"]), np.float32(a))
    fresh = pure(resumed.batches, make())
    assert np.abs(fresh[0] - want[2]).max() > 0.01, "without the history it would have been otherwise"
    assert resumed.hook.steps == 4
    stored = json.loads((tmp_path / "a" / "checkpoint-2" / "rollonce.json").read_text())
    assert stored["steps"] == 2
    (tmp_path / "a" / "checkpoint-2" / "rollonce.json").unlink()
    with pytest.warns(AdvantageWarning, match="starts without history"):
        run(tmp_path / "c", baseline=make(), max_steps=3, resume=str(tmp_path / "a" / "checkpoint-2"))


def test_two_processes_see_one_batch(tmp_path):
    """torchrun with gloo: 2 ranks x 2 rows x 2 accumulation steps are one batch of 8, and each rank gets its own rows'
    advantages."""
    script = Path(__file__).parent / "trl_runs.py"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
        str(script),
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = [json.loads((tmp_path / f"rank{r}.json").read_text()) for r in range(2)]
    assert [r["world"] for r in ranks] == [2, 2]
    want = pure(ranks[0]["batches"], KernelBaseline(window=12))
    assert [len(a) for a in want] == [8, 8, 8]
    for k, a in enumerate(want):
        for r in range(2):
            assert ranks[r]["batches"][k]["prompts"] == ranks[0]["batches"][k]["prompts"]
            np.testing.assert_array_equal(np.float32(ranks[r]["batches"][k]["own"]), np.float32(a[4 * r : 4 * r + 4]))
        assert len(set(ranks[0]["batches"][k]["prompts"])) == 8
    assert ranks[0]["state"] == ranks[1]["state"]
    assert ranks[0]["weights"] == ranks[1]["weights"]


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale_rewards": "group"}, r"scale_rewards='group'.*scale_by_std=True"),
        ({"multi_objective_aggregation": "normalize_then_sum"}, "multi_objective_aggregation='sum_then_normalize'"),
        ({"kind": "RLOO", "normalize_advantages": True}, "normalize_advantages=True.*whiten=True"),
        ({"kind": "RLOO", "beta": 0.05}, r"beta=0\.05.*beta=0\.0"),
        ({"per_device_train_batch_size": 32}, "takes 32 different tasks and the training set has 16"),
        ({"baseline": family_mean_baseline("source")}, "column 'source'.*it has prompt, family"),
        ({"baseline": family_mean_baseline("family"), "remove_unused_columns": True}, "remove_unused_columns=True"),
        ({"baseline": Rloo()}, "needs several rollouts of a task"),
        ({"baseline": "no-such-file.json"}, "no such file"),
    ],
)
def test_settings_that_would_spoil_the_advantages(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        run(tmp_path, **changes)


def test_a_plain_configuration_is_told_which_to_use(tmp_path):
    weights, tokenizer = model()
    plain = trl.GRPOConfig(str(tmp_path), **settings(num_generations=2, scale_rewards="none"))
    rest = {"train_dataset": data(), "processing_class": tokenizer, "baseline": LeaveOneOut()}
    with pytest.raises(InputError, match="num_generations=2 samples groups: use SingleRolloutGRPOConfig"):
        SingleRolloutGRPOTrainer(weights, coin, plain, **rest)
    with pytest.raises(InputError, match="needs its settings"):
        SingleRolloutGRPOTrainer(weights, coin, **rest)
    plain.num_generations = 1
    assert SingleRolloutGRPOTrainer(weights, coin, plain, **rest).num_generations == 1


def test_a_patched_trainer_can_be_built_upon(tmp_path):
    class Patched(trl.GRPOTrainer):
        steps_seen = 0

        def training_step(self, *a, **k):
            type(self).steps_seen += 1
            return super().training_step(*a, **k)

    weights, tokenizer = model()
    cls = recorded(single_rollout_trainer(Patched))
    trainer = cls(
        weights,
        coin,
        single_rollout_config(trl.GRPOConfig)(str(tmp_path), **settings(max_steps=1)),
        train_dataset=data(),
        processing_class=tokenizer,
        baseline=LeaveOneOut(),
    )
    trainer.train()
    assert cls.steps_seen == 1
    rewards = world_rewards(trainer.batches[0])
    np.testing.assert_allclose(trainer.batches[0]["own"], rewards - (rewards.sum() - rewards) / 7, atol=1e-7)


def test_without_trl_the_name_says_what_to_install():
    code = (
        "import sys\nsys.modules['trl'] = None\nfrom rollonce.errors import MissingExtraError\nimport "
        "rollonce.integrations.trl as t\ntry:\n    t.SingleRolloutGRPOTrainer\nexcept MissingExtraError as e:\n    "
        "print(e)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)
    assert "pip install 'rollonce[trl]'" in done.stdout, done.stderr


# ---------------------------------------------------------------------- public threads about TRL


def test_trl_3199_3966_4525_7291_another_advantage_goes_in_and_the_log_follows(tmp_path):
    """Symptom: replacing ``output["advantages"]`` by hand, the answer given there, leaves TRL's log with the old ones:
    zeros at n=1."""

    class ByHand(trl.GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            output["advantages"] = output["advantages"] + 1.0
            return output

    weights, tokenizer = model()
    args = SingleRolloutGRPOConfig(str(tmp_path), **settings(max_steps=1))
    by_hand = ByHand(weights, coin, args, train_dataset=data(), processing_class=tokenizer)
    by_hand.train()
    assert list(by_hand._logs["advantages"]) == [0.0] * 8
    assert by_hand.state.log_history[0]["frac_reward_zero_std"] == 1
    ours = run(tmp_path, max_steps=1)
    assert list(ours._logs["advantages"]) == ours.last.advantages_N.tolist() != [0.0] * 8
    assert ours.state.log_history[0]["frac_reward_zero_std"] == 0


def test_two_runs_of_one_seed_agree(tmp_path):
    a, b = run(tmp_path / "a", seed=3), run(tmp_path / "b", seed=3)
    assert [x["own"] for x in a.batches] == [x["own"] for x in b.batches]
    assert run(tmp_path / "c", seed=4).batches[0]["own"] != a.batches[0]["own"]


def log_probs_by_hand(trainer, output):
    """Of each completion under the weights as they are, from the model's own logits (N,)."""
    ids = torch.cat([output["prompt_ids"], output["completion_ids"]], 1)
    mask = torch.cat([output["prompt_mask"], output["completion_mask"]], 1)
    with torch.no_grad():
        logits = trainer.model(input_ids=ids, attention_mask=mask).logits[:, :-1] / trainer.args.temperature
    each = torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])[..., 0][:, -output["completion_ids"].shape[1] :]
    return (each * output["completion_mask"]).sum(1).tolist()


@pytest.mark.parametrize(
    ("kind", "changes", "field"),
    [
        ("GRPO", {}, None),
        (
            "GRPO",
            {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "steps_per_generation": 4},
            "old_per_token_logps",
        ),
        ("RLOO", {}, "old_logps"),
    ],
)
def test_log_probabilities_are_those_of_the_sampled_completions(tmp_path, monkeypatch, kind, changes, field):
    expected, stock = [], _SingleRollout._completion_log_probs

    def recorded_log_probs(trainer, output):
        assert [k for k in output if "logps" in k] == ([] if field is None else [field])
        expected.extend(log_probs_by_hand(trainer, output))
        return stock(trainer, output)

    monkeypatch.setattr(_SingleRollout, "_completion_log_probs", recorded_log_probs)
    trainer = run(tmp_path, baseline=MeanSurprise(), kind=kind, max_steps=1, **changes)
    assert len(expected) == 8
    assert max(expected) < -0.1
    np.testing.assert_allclose(trainer.hook.baseline.history.log_probs_H, expected, rtol=1e-4)


def test_vllm_s_log_probabilities_come_first_and_tools_and_truncated_completions_count_for_nothing(tmp_path):
    weights, tokenizer = model()
    args = SingleRolloutGRPOConfig(str(tmp_path), **settings())
    trainer = SingleRolloutGRPOTrainer(
        weights, coin, args, train_dataset=data(), processing_class=tokenizer, baseline=MeanSurprise()
    )
    output = {
        "completion_mask": torch.tensor([[1, 1, 1], [1, 1, 0], [0, 0, 0]]),
        "tool_mask": torch.tensor([[1, 0, 1], [1, 1, 1], [1, 1, 1]]),
        "sampling_per_token_logps": torch.tensor([[-1.0, -64.0, -2.0], [-3.0, float("nan"), 0.0], [-1.0, 0.0, 0.0]]),
        "old_per_token_logps": torch.zeros(3, 3),
    }
    np.testing.assert_array_equal(trainer._completion_log_probs(output), [-3.0, np.nan, np.nan])
