"""The loop: what each arm's step is made of, against values worked out apart from it, and what a bad day does to it."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from loop_helpers import everything, metrics, small_run  # noqa: E402

from rollonce.baselines import Batch, LeaveOneOut, published_tfidf  # noqa: E402
from rollonce.errors import InputError  # noqa: E402
from rollonce.policies import load_embedded  # noqa: E402
from rollonce.policies.critic import TokenCritic  # noqa: E402
from rollonce.readers import read_rollouts  # noqa: E402
from rollonce.run_directory import (  # noqa: E402
    PARTS,
    EvaluationRecord,
    RolloutRecord,
    StepRecord,
    evaluation_file,
)
from rollonce.training import loop as loop_module  # noqa: E402
from rollonce.training.arms.baseline import BaselineArm  # noqa: E402
from rollonce.training.arms.make import make_configured_arm  # noqa: E402
from rollonce.training.evaluation import evaluate_items  # noqa: E402
from rollonce.training.files import stop_on_signals  # noqa: E402
from rollonce.training.learners import Update  # noqa: E402
from rollonce.training.learners.local import LocalLearner  # noqa: E402
from rollonce.training.loop import train_with_own_loop  # noqa: E402
from rollonce.training.rolling import build_feature_tasks, choose_step_tasks, load_configured_tasks, sample_and_grade  # noqa: E402

ARMS = {
    "none": {"baseline": "none"},
    "flashreinforce": {"baseline": "flashreinforce"},
    "loo": {"baseline": "loo"},
    "reinforce++": {"baseline": "reinforce++"},
    "grpo": {"baseline": "grpo", "group_size": 4},
    "grpo_std": {"baseline": "grpo_std", "group_size": 4},
    "rloo": {"baseline": "rloo", "group_size": 4},
    "loo_groups": {"baseline": "loo", "group_size": 4},
    "none_groups": {"baseline": "none", "group_size": 4},
    "gs1_tfidf": {"baseline": "gs1_tfidf"},
    "gs1_buckets": {"baseline": "gs1_buckets"},
    "gs1_table": {"baseline": {"type": "kriging", "window": 16}},
    "gs1_self_tuning": {"baseline": "gs1_self_tuning"},
    "critic_prompt": {"baseline": "critic_prompt"},
    "critic_head": {"critic": {"warmup": 1}},
    "critic_network": {"critic": {"kind": "network", "warmup": 0, "gae_lambda": 0.9}},
    "oracle": {"baseline": "oracle", "oracle": {"rollouts": 4, "every": 2}},
}


@pytest.fixture(scope="module")
def splits():
    return load_configured_tasks(small_run().tasks)


@pytest.mark.parametrize("name", ARMS)
def test_every_arm_runs_and_moves_the_policy(name, tmp_path, splits):
    config = small_run(ARMS[name], steps=2)
    result = train_with_own_loop(config, tmp_path, splits=splits)
    assert result.status == "done"
    rows = metrics(tmp_path)
    assert [r["step"] for r in rows] == [1, 2]
    assert all(np.isfinite(r["loss"]) and r["tokens"] > 0 for r in rows)
    assert (rows[0]["dead_groups"] is None) == (config.arm.group_size == 1)
    before, after = (
        load_embedded().state_dict(),
        torch.load(tmp_path / "checkpoint.pt", weights_only=True)["learner"]["policy"],
    )
    moved = any(not torch.equal(before[k], after[k]) for k in before)
    # Rewards of 20 tokens are rare: an arm moves if and only if some advantage was not zero while the policy was
    # allowed to move.
    warm = config.arm.critic.warmup if config.arm.critic else 0
    assert moved == any(r["advantage_nonzero"] > 0 for r in rows[warm:])


def test_all_arms_see_the_same_tasks_and_first_rollouts_and_only_the_advantages_differ(splits):
    seen = {}
    for name in ("none", "gs1_tfidf", "reinforce++", "loo"):
        config = small_run(ARMS[name])
        learner = LocalLearner(config)
        tasks = list(choose_step_tasks(splits.train, 8, 1, 0))
        rewards_B, samples, _ = sample_and_grade(learner, tasks, config, [0, 11, 1])
        batch = Batch(build_feature_tasks(tasks), rewards_B)
        advantages = make_configured_arm(config, learner, splits.train).advantages_of_step(batch, samples).advantages
        seen[name] = (samples.texts, rewards_B, advantages)
    r = seen["none"][1]
    assert all(texts == seen["none"][0] and (rewards == r).all() for texts, rewards, _ in seen.values())
    np.testing.assert_allclose(seen["none"][2], r)
    np.testing.assert_allclose(seen["loo"][2], r - (r.sum() - r) / 7)
    std = r.std()
    np.testing.assert_allclose(seen["reinforce++"][2], (r - r.mean()) / std if std > 0 else 0 * r)
    w = published_tfidf().fit(splits.train.as_feature_tasks()).weights(Batch(build_feature_tasks(tasks), r))
    np.testing.assert_allclose(seen["gs1_tfidf"][2], r - w @ r)


def test_a_pass_over_the_tasks_takes_each_once_and_the_next_in_another_order(splits):
    per_pass = 90 // 8
    first = [t.id for k in range(1, per_pass + 1) for t in choose_step_tasks(splits.train, 8, k, 3)]
    second = [t.id for k in range(per_pass + 1, 2 * per_pass + 1) for t in choose_step_tasks(splits.train, 8, k, 3)]
    assert len(set(first)) == len(first) == 88
    assert first != second
    assert [t.id for t in choose_step_tasks(splits.train, 8, 1, 4)] != first[:8]
    with pytest.raises(InputError, match="different tasks"):
        choose_step_tasks(splits.train, 91, 1, 0)


def test_the_update_is_the_gradient_of_the_formula(splits):
    """One update against autograd on the loss written out, for both aggregations, with the gate and micro-batches."""
    for aggregation in ("token-mean", "sequence-mean"):
        config = small_run(loss={"aggregation": aggregation}, train={"max_grad_norm": None})
        learner = LocalLearner(config)
        learner.train_rows = 3
        tasks = list(choose_step_tasks(splits.train, 8, 1, 0))
        samples = learner.sample_rollouts([t.prompt for t in tasks], max_new_tokens=20, temperature=1.0, seed=[1])
        advantages = np.linspace(-1, 1, 8)
        log_probs = learner.policy.compute_log_probs(samples)
        per_row = (log_probs * samples.response_mask_BT).sum(dim=1)
        scale = 1 / samples.n_tokens if aggregation == "token-mean" else 1 / samples.lengths_B / 8
        # The ratio is 1 on-policy and its gradient that of the log-probability.
        expected = torch.autograd.grad(
            -(torch.tensor(advantages).float() * scale * per_row).sum(), learner.policy.parameters()
        )
        norm = torch.sqrt(sum((g**2).sum() for g in expected))
        update = learner.update_policy(samples, advantages)
        assert update.grad_norm == pytest.approx(float(norm), rel=2e-4)
        weights = samples.lengths_B.numpy() * (scale if aggregation == "token-mean" else scale.numpy())
        assert update.loss == pytest.approx(-float((advantages * weights).sum()), abs=1e-5)


def test_the_gate_drops_trajectories_and_keeps_the_denominator(splits):
    config = small_run(loss={"gate": 1e-9}, train={"max_grad_norm": None})
    learner = LocalLearner(config)
    tasks = list(choose_step_tasks(splits.train, 8, 1, 0))
    samples = learner.sample_rollouts([t.prompt for t in tasks], max_new_tokens=20, temperature=1.0, seed=[1])
    stale = samples.log_probs_BT.clone()
    stale[:5] -= 0.5 * samples.response_mask_BT[:5]  # five rollouts by a policy that is far away
    update = learner.update_policy(samples.replace_log_probs(stale), np.ones(8))
    assert update.gated == pytest.approx(5 / 8)
    kept = samples.lengths_B[5:].sum() / samples.n_tokens
    assert update.loss == pytest.approx(-float(kept), abs=1e-5)


def test_clip_and_kl_do_what_they_say(splits):
    tasks = list(choose_step_tasks(splits.train, 8, 1, 0))
    config = small_run(loss={"clip": 0.2, "kl": 0.1, "epochs": 2})
    learner = LocalLearner(config)
    samples = learner.sample_rollouts([t.prompt for t in tasks], max_new_tokens=20, temperature=1.0, seed=[1])
    first = learner.update_policy(samples, np.ones(8))
    assert first.kl == pytest.approx(0.0, abs=1e-9)  # the start policy is the reference, before the update
    assert first.kl_old > 0  # but not in the second epoch
    far = samples.replace_log_probs(samples.log_probs_BT - 1.0)
    clipped = learner.update_policy(far, np.ones(8))
    # Ratio e, advantage 1: every token is held at 1.2 but for what the last update moved.
    assert clipped.clipped > 0.9
    assert clipped.loss == pytest.approx(-1.2, abs=0.05)


def test_lag_samples_from_the_policy_of_so_many_steps_ago(tmp_path, splits):
    train_with_own_loop(small_run(ARMS["none"], steps=5, loss={"lag": 2}), tmp_path / "lag", splits=splits)
    train_with_own_loop(small_run(ARMS["none"], steps=5), tmp_path / "none", splits=splits)
    lagged, plain = metrics(tmp_path / "lag"), metrics(tmp_path / "none")
    assert all(row["kl_old"] < 1e-9 for row in plain)
    assert lagged[0]["kl_old"] < 1e-9
    moved = next(i for i, row in enumerate(lagged) if row["advantage_nonzero"] > 0)
    if moved < 3:
        assert lagged[moved + 1]["kl_old"] > 1e-8


def test_the_oracle_knows_the_tasks_to_come_and_is_not_on_the_clock(tmp_path, splits):
    config = small_run(ARMS["oracle"], steps=3)
    learner = LocalLearner(config)
    arm = make_configured_arm(config, learner, splits.train)
    arm.prepare_for_step(1)
    known = set(arm.oracle.means)
    assert known == {t.id for k in (1, 2) for t in choose_step_tasks(splits.train, 8, k, 0)}
    assert all(m in {0, 0.25, 0.5, 0.75, 1} for m in arm.oracle.means.values())
    arm.prepare_for_step(2)
    assert set(arm.oracle.means) == known
    arm.prepare_for_step(3)
    assert set(arm.oracle.means) == {t.id for t in choose_step_tasks(splits.train, 8, 3, 0)}
    train_with_own_loop(config, tmp_path, splits=splits)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["rollouts"] == 24


def test_shadow_scores_are_mean_squared_advantages_of_the_same_rollouts(tmp_path, splits):
    train_with_own_loop(small_run(ARMS["loo"], steps=3), tmp_path, splits=splits)
    for row in metrics(tmp_path):
        r = row["reward"]
        n = 8
        # 0/1 rewards: the LOO mean squared advantage is (n / (n - 1))^2 of the batch's variance.
        assert row["shadow"]["loo"]["mean_square_advantage"] == pytest.approx((n / (n - 1)) ** 2 * r * (1 - r))


def test_what_is_written_is_what_the_schema_says(tmp_path, splits):
    """One schema for the writer and the reader; the log of rollouts is a calibration file like any other."""
    config = small_run(ARMS["loo"], steps=3)
    train_with_own_loop(config, tmp_path, splits=splits)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert all(row.keys() == StepRecord.__annotations__.keys() for row in rows)
    assert all(tuple(row["cpu_seconds"]) == tuple(row["wall_seconds"]) == PARTS for row in rows)
    answers = [json.loads(line) for line in evaluation_file(tmp_path, 0).read_text().splitlines()]
    assert all(answer.keys() == EvaluationRecord.__annotations__.keys() for answer in answers)
    rollouts = [json.loads(line) for line in (tmp_path / "rollouts.jsonl").read_text().splitlines()]
    assert all(rollout.keys() == RolloutRecord.__annotations__.keys() for rollout in rollouts)
    for row in rows:
        mine = [r for r in rollouts if r["step"] == row["step"]]
        assert np.mean([r["reward"] for r in mine]) == pytest.approx(row["reward"])
        assert -np.mean([r["log_prob"] for r in mine]) == pytest.approx(row["surprisal"], abs=1e-4)
        assert sum(r["response_tokens"] for r in mine) == row["tokens"]
    read = read_rollouts(str(tmp_path / "rollouts.jsonl"))
    assert (read.n_rollouts, list(np.unique(read.steps_R))) == (24, [1, 2, 3])
    assert sorted(read.log_probs_R) == sorted(r["log_prob"] for r in rollouts)
    assert sorted(read.lengths_R) == sorted(r["response_tokens"] for r in rollouts)
    # The first step's log-probabilities, worked out apart from the loop by the start policy that sampled them.
    tasks = list(choose_step_tasks(splits.train, 8, 1, 0))
    samples = LocalLearner(config).sample_rollouts(
        [t.prompt for t in tasks], max_new_tokens=20, temperature=1.0, seed=[0, 11, 1]
    )
    expected_B = load_embedded().compute_log_probs(samples).sum(dim=1)
    assert [r["log_prob"] for r in rollouts[:8]] == pytest.approx(expected_B.tolist(), abs=1e-3)


def test_a_run_from_before_a_setting_existed_goes_on_with_its_default(tmp_path, splits):
    stop = threading.Event()
    train_with_own_loop(small_run(steps=4), tmp_path, splits=splits, stop=stop, on_step=lambda record: stop.set())
    config = json.loads((tmp_path / "config.json").read_text())
    del config["train"]["log_rollouts"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert train_with_own_loop(small_run(steps=4), tmp_path, splits=splits).status == "done"


# What a bad day does
# ----------------------------------------------------------------------------------------------------------


class Broken(LocalLearner):
    def update_policy(self, samples, advantages, *, measure_kl=False, move=True):
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls == 2:
            return Update(float("nan"), 1.0, 1.0, None, 0.0, 0.0, 0.0)
        return super().update_policy(samples, advantages, measure_kl=measure_kl, move=move)


def test_a_loss_that_is_not_finite_ends_the_run_with_the_last_good_state(tmp_path, splits):
    config = small_run(steps=4)
    result = train_with_own_loop(config, tmp_path, splits=splits, learner=Broken(config))
    assert result.status == "nan"
    assert "step 2" in result.message
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["step"] == 1
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[1])["loss"] is None
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "nan"


def test_a_step_whose_loss_is_not_finite_teaches_the_baseline_nothing(tmp_path, splits):
    config = small_run({"baseline": "loo_window"}, steps=4)
    train_with_own_loop(config, tmp_path, splits=splits, learner=Broken(config))
    arm = make_configured_arm(config, LocalLearner(config), splits.train)
    arm.restore_checkpoint_state(torch.load(tmp_path / "checkpoint.pt", weights_only=True)["arm"])
    assert len(arm.baseline.history) == 8  # step 1's, and not those of step 2, which was not made


@pytest.mark.parametrize("ending", ["collapsed", "nan"])
def test_a_run_that_ended_badly_and_was_killed_before_its_result_trains_no_more(tmp_path, splits, monkeypatch, ending):
    config = small_run(
        steps=6,
        train={"max_new_tokens": 1, "collapse_truncated": 0.9, "collapse_steps": 2} if ending == "collapsed" else {},
    )
    make = (lambda: Broken(config)) if ending == "nan" else (lambda: None)
    whole = train_with_own_loop(config, tmp_path / "whole", splits=splits, learner=make())
    real = loop_module.evaluate_learner

    def killed(*args, final, **options):
        if final and options["step"]:
            raise KeyboardInterrupt
        return real(*args, final=final, **options)

    for _ in range(2):
        monkeypatch.setattr(loop_module, "evaluate_learner", killed)
        with pytest.raises(KeyboardInterrupt):
            train_with_own_loop(config, tmp_path / "killed", splits=splits, learner=make())
    monkeypatch.undo()
    again = train_with_own_loop(config, tmp_path / "killed", splits=splits, learner=make())
    assert again[:3] == whole[:3]
    assert again.status == ending
    assert everything(tmp_path / "killed") == everything(tmp_path / "whole")


def test_a_loss_that_breaks_in_the_second_epoch_takes_the_first_one_back(splits):
    config = small_run(loss={"epochs": 3})
    learner = LocalLearner(config)
    samples = learner.sample_rollouts([t.prompt for t in splits.train[:8]], max_new_tokens=8, temperature=1.0, seed=[1])
    learner.update_policy(samples, np.linspace(-1, 1, 8))
    before, moments = (
        learner.policy.state_dict(),
        json.dumps(learner.optimizer.state_dict(), default=lambda t: t.tolist()),
    )
    real, calls = learner.policy.evaluate_rollouts, []

    def breaks(part, **options):
        calls.append(1)
        seen = real(part, **options)
        return seen._replace(log_probs_BT=seen.log_probs_BT * float("nan")) if len(calls) > 1 else seen

    learner.policy.evaluate_rollouts = breaks
    assert not np.isfinite(learner.update_policy(samples, np.linspace(-1, 1, 8)).loss)
    assert len(calls) == 2
    assert all(torch.equal(before[k], v) for k, v in learner.policy.state_dict().items())
    assert json.dumps(learner.optimizer.state_dict(), default=lambda t: t.tolist()) == moments


def test_while_a_critic_warms_up_adam_does_not_move_either(tmp_path, splits):
    config = small_run({"critic": {"kind": "head", "warmup": 2}}, steps=3)
    learner = LocalLearner(config)
    start = learner.policy.state_dict()
    seen = []

    def look(record):
        stood_still = all(torch.equal(start[k], v) for k, v in learner.policy.state_dict().items())
        seen.append(({float(s["step"]) for s in learner.optimizer.state_dict()["state"].values()}, stood_still))

    train_with_own_loop(config, tmp_path, splits=splits, learner=learner, on_step=look)
    assert seen == [(set(), True), (set(), True), ({1.0}, False)]


def test_the_audited_weights_are_those_that_were_used(tmp_path, splits, monkeypatch):
    seen = []
    real = BaselineArm.largest_self_weight

    def spy(self, batch):
        seen.append((len(self.baseline.history), self.baseline.weights(batch).shape))
        return real(self, batch)

    monkeypatch.setattr(BaselineArm, "largest_self_weight", spy)
    train_with_own_loop(
        small_run({"baseline": "loo_window"}, steps=2, train={"audit_weights": True}), tmp_path, splits=splits
    )
    assert seen == [(0, (8, 8)), (8, (8, 16))]
    assert [row["self_weight_max"] for row in metrics(tmp_path)] == [0.0, 0.0]


def test_the_final_policy_is_written_whole_or_not_at_all(tmp_path):
    """A disk that fills while the weights are written: a limit on the size of files stands in for it, in a process of
    its own."""
    code = f"""
import resource, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from loop_helpers import small_run
from rollonce.errors import InputError
from rollonce.training import loop
from rollonce.training.learners.local import LocalLearner
config = small_run(steps=1)
learner = LocalLearner(config)
save = learner.save_policy
def full(directory):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    save(directory)
learner.save_policy = full
try:
    loop.train_with_own_loop(config, Path({str(tmp_path / "run")!r}), learner=learner)
except InputError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1800)
    assert "cannot be written" in done.stdout, done.stderr
    run = tmp_path / "run"
    assert not list(run.glob("*final*"))
    assert train_with_own_loop(small_run(steps=1), run).status == "done"
    assert (run / "final" / "model.safetensors").exists()


def test_without_a_hold_out_there_is_no_learning_curve(tmp_path):
    train_with_own_loop(small_run(tasks={"holdout": 0}), tmp_path)
    assert sorted(p.name for p in (tmp_path / "evaluations").glob("*")) == ["step_000000.jsonl", "step_000004.jsonl"]


def test_a_real_nan_in_the_gradient_does_not_reach_the_weights(splits):
    config = small_run()
    learner = LocalLearner(config)
    samples = learner.sample_rollouts([t.prompt for t in splits.train[:8]], max_new_tokens=8, temperature=1.0, seed=[1])
    before = learner.policy.state_dict()
    assert not np.isfinite(learner.update_policy(samples, np.full(8, np.nan)).loss)
    assert all(torch.equal(before[k], v) for k, v in learner.policy.state_dict().items())


def test_a_collapsed_run_stops_and_says_so(tmp_path, splits):
    result = train_with_own_loop(
        small_run(steps=6, train={"max_new_tokens": 1, "collapse_truncated": 0.9, "collapse_steps": 2}),
        tmp_path,
        splits=splits,
    )
    assert (result.status, result.steps) == ("collapsed", 2)
    assert "truncated for 2 steps" in result.message
    again = train_with_own_loop(
        small_run(steps=6, train={"max_new_tokens": 1, "collapse_truncated": 0.9, "collapse_steps": 2}),
        tmp_path,
        splits=splits,
    )
    assert again == result


def test_a_full_disk_is_a_sentence_and_leaves_the_old_checkpoint(tmp_path, splits, monkeypatch):
    real, calls = os.fsync, []

    def full(fd):
        calls.append(fd)
        if len(calls) > 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        InputError,
        match="disk is full: free some space and give the same command again; it goes on from the last checkpoint",
    ):
        train_with_own_loop(small_run(steps=8), tmp_path / "full", splits=splits)
    monkeypatch.undo()
    assert not list((tmp_path / "full").glob(".*.tmp"))
    train_with_own_loop(small_run(steps=8), tmp_path / "full", splits=splits)
    train_with_own_loop(small_run(steps=8), tmp_path / "whole", splits=splits)
    assert everything(tmp_path / "full") == everything(tmp_path / "whole")


def test_a_run_of_another_configuration_is_not_touched(tmp_path, splits):
    train_with_own_loop(small_run(steps=1), tmp_path, splits=splits)
    with pytest.raises(InputError, match=r"train\.steps was 1 and is 2"):
        train_with_own_loop(small_run(steps=2), tmp_path, splits=splits)


def test_two_processes_cannot_write_to_one_run(tmp_path, splits):
    inside, errors = threading.Event(), []

    def hold(record):
        inside.set()
        try:
            train_with_own_loop(small_run(steps=1), tmp_path, splits=splits)
        except InputError as error:
            errors.append(str(error))

    train_with_own_loop(small_run(steps=1), tmp_path, splits=splits, on_step=hold)
    assert inside.is_set()
    assert "another process is writing" in errors[0]


def test_stopped_it_saves_and_goes_on_to_the_same_end(tmp_path, splits):
    stop = threading.Event()
    first = train_with_own_loop(
        small_run(steps=5),
        tmp_path / "a",
        splits=splits,
        stop=stop,
        on_step=lambda r: stop.set() if r["step"] == 3 else None,
    )
    assert (first.status, first.steps) == ("interrupted", 3)
    assert not (tmp_path / "a" / "result.json").exists()
    assert train_with_own_loop(small_run(steps=5), tmp_path / "a", splits=splits).status == "done"
    train_with_own_loop(small_run(steps=5), tmp_path / "b", splits=splits)
    assert everything(tmp_path / "a") == everything(tmp_path / "b")


@pytest.mark.parametrize(
    ("arm", "loss", "moments"),
    [
        ({"baseline": "gs1_self_tuning"}, {"lag": 2}, (-3, 2, 0)),
        pytest.param({"baseline": "gs1_self_tuning"}, {"lag": 2}, (-1, -3, 2, -5, 1, 0), marks=pytest.mark.slow),
        ({"critic": {"kind": "network", "warmup": 1}}, {"epochs": 2, "clip": 0.2, "kl": 0.01}, (-3, 0)),
        ({"baseline": "oracle", "oracle": {"rollouts": 2, "every": 3}}, {}, (-5, 0)),
    ],
    ids=["self-tuning with lag", "at six moments", "value network", "oracle"],
)
def test_killed_at_any_moment_it_ends_bit_equal(arm, loss, moments, tmp_path, splits):
    """kill -9, several times: within a step, while it evaluates, while it writes."""
    config = small_run(arm, steps=6, loss=loss)
    train_with_own_loop(config, tmp_path / "whole", splits=splits)
    job = tmp_path / "job.json"
    job.write_text(config.model_dump_json())
    program = (
        "import sys, os, signal, json, pathlib\nfrom rollonce.training import files, loop\nfrom "
        "rollonce.training.config import RunConfig\nfrom rollonce.training.sections import validate_section\n"
        "import torch; torch.set_num_threads(1)\nn = "
        "int(sys.argv[3])\nreal, count = os.fsync, [0]\ndef counted(fd):\n    count[0] += 1\n    if count[0] == n: "
        "os.kill(os.getpid(), signal.SIGKILL)\n    return real(fd)\nos.fsync = counted\ndef step(record):\n    if "
        "record['step'] == -n: os.kill(os.getpid(), signal.SIGKILL)\nloop.train_with_own_loop("
        "validate_section(RunConfig, json.loads(pathlib.Path(sys.argv[1]).read_text())), "
        "pathlib.Path(sys.argv[2]), on_step=step)\n"
    )
    # Negative: in the middle of that step, its line written and its checkpoint not. Positive: while the n-th file is
    # written.
    codes = []
    for moment in moments:
        done = subprocess.run(
            [sys.executable, "-c", program, str(job), str(tmp_path / "killed"), str(moment)],
            capture_output=True,
            text=True,
            timeout=1800,
        )
        codes.append(done.returncode)
        assert done.returncode in (0, -9), done.stderr
    assert codes == [-9] * (len(moments) - 1) + [0]
    assert everything(tmp_path / "killed") == everything(tmp_path / "whole")


def test_a_damaged_checkpoint_is_a_sentence(tmp_path, splits):
    stop = threading.Event()
    train_with_own_loop(small_run(steps=4), tmp_path, splits=splits, stop=stop, on_step=lambda r: stop.set())
    (tmp_path / "checkpoint.pt").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(InputError, match=r"cannot be read .*move the run's directory away"):
        train_with_own_loop(small_run(steps=4), tmp_path, splits=splits)


def test_a_critic_is_trained_on_past_steps_only(splits):
    """Changing a step's rewards changes no value of that step; the next step's values do move."""
    policy = load_embedded()
    critic = TokenCritic(policy, kind="head", epochs=2)
    samples = policy.sample([t.prompt for t in splits.train[:8]], max_new_tokens=12, generator=1)
    assert not critic.predict_token_values(samples).values_BT.any()
    critic.start_at_mean_reward(0.25)
    critic.start_at_mean_reward(0.75)  # once only
    values = critic.predict_token_values(samples)
    torch.testing.assert_close(values.values_BT, 0.25 * samples.response_mask_BT.float())
    start = {k: v.clone() for k, v in policy.state_dict().items()}
    critic.learn_from_targets(samples, values, torch.ones_like(values.values_BT) * samples.response_mask_BT)
    after_BT = critic.predict_token_values(samples).values_BT
    mask = samples.response_mask_BT
    assert (after_BT[mask].mean() > values.values_BT[mask].mean()).item()
    assert all(torch.equal(start[k], v) for k, v in policy.state_dict().items())


def test_a_value_network_starts_as_the_policy_and_leaves_it_alone(splits):
    policy = load_embedded()
    critic = TokenCritic(policy, kind="network", epochs=1, learning_rate=1e-3)
    samples = policy.sample([t.prompt for t in splits.train[:8]], max_new_tokens=12, generator=1)
    start = policy.state_dict()
    for _ in range(3):
        values = critic.predict_token_values(samples)
        loss = critic.learn_from_targets(samples, values, samples.response_mask_BT.float())
    assert loss < 0.5
    assert all(torch.equal(start[k], v) for k, v in policy.state_dict().items())
    other = TokenCritic(policy, kind="network", epochs=1, learning_rate=1e-3)
    other.load_state_dict(critic.state_dict())
    torch.testing.assert_close(
        other.predict_token_values(samples).values_BT, critic.predict_token_values(samples).values_BT, rtol=0, atol=0
    )
    with pytest.raises(InputError, match="'head' or a 'network'"):
        TokenCritic(policy, kind="tail")


def test_the_loop_reads_top_to_bottom_in_under_300_lines():
    source = loop_module.__file__
    assert source is not None
    with open(source) as f:
        assert len(f.readlines()) < 300
    assert LeaveOneOut  # the arms' baselines come from rollonce.baselines, not from here


def test_evaluation_s_luck_is_the_seed_s_and_not_the_arm_s(splits):
    """One policy under other names: arms of a seed draw alike, seeds draw apart, and the start is evaluated once for
    all."""
    learner = LocalLearner(small_run())

    def drawn(arm, seed, step, mode="sampled"):
        config = small_run({"baseline": arm}, seed=seed)
        return [
            (r["reward"], r["tokens"])
            for r in evaluate_items(learner, splits.test, config, split="test", mode=mode, repeats=2, step=step)
        ]

    assert drawn("none", 1, 4) == drawn("loo", 1, 4)
    assert drawn("none", 1, 4) != drawn("none", 2, 4)
    assert drawn("none", 1, 4) != drawn("none", 1, 8)
    assert drawn("none", 1, 0) == drawn("none", 2, 0)
    assert drawn("none", 1, 4, "greedy") == drawn("none", 2, 4, "greedy")


def test_the_first_ctrl_c_says_that_it_is_finishing_and_the_second_ends_it(capfd):
    with stop_on_signals(None) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.is_set()
        assert "stopping after the step that is running; Ctrl-C again ends it at once" in capfd.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
