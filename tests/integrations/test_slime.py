"""slime and miles: the reward post-processor, called by their own conversion of samples to training data.

Against a stand-in built to slime 624b824 and miles 31f1ca9; with one of them installed (run_real.sh) against its own
samples and conversion. Their engines, servers and training backends are not run.
"""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from slime_parts import TRAINERS, Slime
from surprise import MeanSurprise, let_files_name_it

from rollonce.baselines import Batch, KernelBaseline, family_mean_baseline
from rollonce.errors import InputError
from rollonce.integrations import slime

PROMPTS = ["add two and two", "add two and five", "prove the lemma", "prove the claim"]


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "baseline.json"
    KernelBaseline(window=16).fit(PROMPTS).save(path)
    monkeypatch.setenv("ROLLONCE_BASELINE", str(path))
    monkeypatch.setattr(slime, "_hooks", {})
    return path


@pytest.fixture(params=TRAINERS)
def trainer(request, monkeypatch):
    return Slime(monkeypatch, request.param)


def samples(trainer, rewards):
    return [trainer.sample(i, p, r) for i, (p, r) in enumerate(zip(PROMPTS, rewards, strict=True))]


def test_the_training_data_has_the_pure_function_and_history_outlives_the_process(trainer, file, tmp_path, monkeypatch):
    plain = KernelBaseline(window=16).fit(PROMPTS)
    args = trainer.args(save=str(tmp_path / "save"))
    for k, rewards in enumerate([[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]]):
        if k == 2:
            monkeypatch.setattr(slime, "_hooks", {})  # a new process
        data = trainer.train_data(args, samples(trainer, rewards))
        batch = Batch.of(PROMPTS, rewards)
        assert data["raw_reward"] == rewards
        np.testing.assert_array_equal(data["rewards"], plain.advantages(batch))
        plain.observe(batch)


def test_removed_aborted_and_forked_samples(trainer, file):
    rows = samples(trainer, [1.0, 0.0, 0.0, 1.0])
    alone = trainer.train_data(trainer.args(), rows)["rewards"]
    slime._hooks.clear()
    removed = trainer.sample(9, PROMPTS[0], 100.0, remove_sample=True)
    aborted = trainer.sample(10, PROMPTS[0], None, status=trainer.Status.ABORTED)
    forked = [
        trainer.sample(2, PROMPTS[2], 0.0, rollout_id=7),
        trainer.sample(2, PROMPTS[2] + " and so on", 0.0, rollout_id=7),
    ]
    data = trainer.train_data(trainer.args(), [rows[0], removed, rows[1], *forked, rows[3], aborted])
    np.testing.assert_array_equal(data["rewards"], [alone[0], 0.0, alone[1], alone[2], alone[2], alone[3], 0.0])
    assert data["raw_reward"] == [1.0, 100.0, 0.0, 0.0, 0.0, 1.0, 0.0]


def test_segments_without_a_rollout_id_are_one_rollout_by_their_index(trainer, file):
    rows = samples(trainer, [1.0, 0.0, 0.0, 1.0])
    alone = trainer.train_data(trainer.args(), rows)["rewards"]
    slime._hooks.clear()
    segment = trainer.sample(2, PROMPTS[2] + " and so on", 0.0)
    data = trainer.train_data(trainer.args(), [*rows, segment])
    np.testing.assert_array_equal(data["rewards"], [*alone, alone[2]])


def test_reward_keys_and_metadata(trainer, tmp_path, monkeypatch):
    monkeypatch.setattr(slime, "_hooks", {})
    family_mean_baseline("family").save(tmp_path / "family.json")
    args = trainer.args(rollonce_baseline=str(tmp_path / "family.json"), reward_key="acc")
    rows = [
        trainer.sample(i, str(i), {"acc": r}, metadata={"family": f})
        for i, (r, f) in enumerate([(1, "a"), (0, "a"), (1, "b"), (1, "b")])
    ]
    assert trainer.train_data(args, rows)["rewards"] == [1, -1, 0, 0]
    rows[0].metadata = {}
    with pytest.raises(InputError, match=r"column 'family'.*metadata"):
        trainer.train_data(args, rows)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("normalize_advantages", True),
        ("advantage_estimator", "ppo"),
        ("advantage_estimator", "reinforce_plus_plus_baseline"),
        ("custom_advantage_function_path", "x.y"),
        ("dynamic_sampling_filter_path", "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"),
    ],
)
def test_settings_that_spoil_the_advantages_are_refused(trainer, file, setting, value):
    with pytest.raises(InputError, match=setting):
        trainer.train_data(trainer.args(**{setting: value}), samples(trainer, [1.0, 0.0, 0.0, 1.0]))


def test_without_a_file_it_says_where_to_name_it(trainer, monkeypatch):
    monkeypatch.delenv("ROLLONCE_BASELINE", raising=False)
    with pytest.raises(InputError, match="ROLLONCE_BASELINE"):
        trainer.train_data(trainer.args(), samples(trainer, [1.0, 0.0, 0.0, 1.0]))


def test_the_example_is_one_command(file):
    example = Path(__file__).resolve().parents[2] / "examples" / "slime_gs1.sh"
    done = subprocess.run(
        ["bash", str(example), str(file), "--hf-checkpoint", "x"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={"DRY_RUN": "1", "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    assert "--custom-reward-post-process-path rollonce.integrations.slime.reward_post_process" in done.stdout
    assert done.stdout.rstrip().endswith("--hf-checkpoint x")


def test_log_probabilities_are_those_of_trained_tokens_and_add_up_over_segments(trainer, tmp_path, monkeypatch):
    monkeypatch.setattr(slime, "_hooks", {})
    let_files_name_it(monkeypatch)
    MeanSurprise().save(tmp_path / "b.json")
    args = trainer.args(rollonce_baseline=str(tmp_path / "b.json"))
    rows = [
        trainer.sample(0, "a", 1.0, rollout_log_probs=[-1.0, -64.0, -2.0], loss_mask=[1, 0, 1]),  # a tool's token: 3
        trainer.sample(1, "b", 0.0, rollout_log_probs=[-4.0], rollout_id=7),
        trainer.sample(2, "b and on", 0.0, rollout_log_probs=[-1.0], rollout_id=7),  # together 5
        trainer.sample(3, "c", 0.0),  # unknown
    ]
    data = trainer.train_data(args, rows)
    assert [r - a for r, a in zip(data["raw_reward"], data["rewards"], strict=True)] == [5.0, 3.0, 3.0, 4.0]
