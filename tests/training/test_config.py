"""Configurations: what is accepted, what a grid becomes, and what is said of mistakes."""

from __future__ import annotations

import pytest

from rollonce.errors import InputError
from rollonce.training.config import ExperimentConfig
from rollonce.training.loading import list_comparison_runs, load_experiment_config
from rollonce.training.sections import validate_section

MINIMAL = {"arms": {"a": {"baseline": "loo"}}}


def test_a_grid_makes_an_arm_of_each_rate_and_seeds_come_outermost():
    config = validate_section(
        ExperimentConfig,
        {
            "train": {"learning_rate": 1e-3},
            "loss": {"kl": 0.1},
            "arms": {
                "a": {"baseline": "loo", "learning_rates": [1e-4, 4e-4]},
                "b": {"baseline": "grpo", "group_size": 8, "loss": {"clip": 0.2}},
            },
            "compare": {"seeds": [3, 5]},
        },
    )
    runs = list_comparison_runs(config)
    assert [(r.name, r.seed, r.learning_rate) for r in runs] == [
        ("a@0.0001", 3, 1e-4),
        ("a@0.0004", 3, 4e-4),
        ("b", 3, 1e-3),
        ("a@0.0001", 5, 1e-4),
        ("a@0.0004", 5, 4e-4),
        ("b", 5, 1e-3),
    ]
    assert (runs[2].loss.kl, runs[2].loss.clip, runs[2].tasks_per_step) == (0.1, 0.2, 4)
    assert runs[0].loss.clip is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"trian": {}}, r"trian: no such key; did you mean 'train'\?"),
        ({"train": {"stepz": 3}}, r"train\.stepz: no such key; did you mean 'steps'\?"),
        ({"train": {"steps": 0}}, r"train\.steps: .*greater than or equal to 1, not 0"),
        ({"train": {"learning_rate": "fast"}}, r"train\.learning_rate: .*valid number.*not 'fast'"),
        ({"arms": {}}, "there is no arm"),
        ({"arms": {"a": {}}}, "a baseline or a critic table"),
        ({"arms": {"a": {"baseline": "loo", "critic": {}}}}, "not both"),
        ({"arms": {"a/b": {"baseline": "loo"}}}, "becomes a directory"),
        ({"arms": {"a": {"baseline": "grpo", "group_size": 5}}}, "32 rollouts per step are no multiple"),
        ({"arms": {"a": {"baseline": "loo", "learning_rate": 1e-3, "learning_rates": [1e-3]}}}, "not both"),
        ({"compare": {"seeds": [1, 1]}}, "different from each other"),
        ({"compare": {"reference": "b"}}, "'b' is no arm; there are a"),
        ({"arms": {"a": {"baseline": "loo", "learning_rates": [1e-3, 1e-3]}}}, "same name"),
        ({"arms": {"a": {"baseline": "loo", "oracle": {}}}}, "for baseline = 'oracle' alone"),
        ({"loss": {"clip_high": 0.3}}, "clip_high is the upper side of clip"),
        ({"policy": {"renderer": "chat"}}, "renderer: without effect with engine = 'local'"),
        (
            {"policy": {"engine": "tinker", "bf16": True, "train_rows": 4}},
            "bf16, train_rows: without effect with engine = 'tinker'",
        ),
        ({"policy": {"system": "Be brief."}}, "the embedded policy reads prompts as they are"),
        ({"loss": {"clip": -1}}, r"loss\.clip: .*greater than 0"),
    ],
)
def test_mistakes_are_named_with_their_place(change, words):
    with pytest.raises(InputError, match=words):
        validate_section(ExperimentConfig, {**MINIMAL, **change}, "my.toml")


def test_what_is_missing_is_named_alone():
    with pytest.raises(InputError, match=r"^my\.toml: arms: is missing$"):
        validate_section(ExperimentConfig, {"train": {"steps": 3}}, "my.toml")


def test_an_arm_s_own_loss_keys_are_checked_too():
    config = validate_section(ExperimentConfig, {"arms": {"a": {"baseline": "loo", "loss": {"clipp": 0.2}}}})
    with pytest.raises(InputError, match=r"arm 'a', loss.*clipp.*did you mean 'clip'"):
        list_comparison_runs(config)


def test_files_that_are_not_there_or_no_toml(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        load_experiment_config(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[arms\n")
    with pytest.raises(InputError, match="not TOML"):
        load_experiment_config(tmp_path / "bad.toml")
    with pytest.raises(InputError, match="cannot be read"):
        load_experiment_config(tmp_path)


def test_paths_are_from_the_file_s_own_directory(tmp_path, monkeypatch):
    (tmp_path / "c.toml").write_text(
        '[tasks]\nsource = "jsonl:t.jsonl"\n[policy]\nsource = "./m"\n[arms.a]\nbaseline = "b.json"\n'
    )
    monkeypatch.chdir("/")
    config = load_experiment_config(tmp_path / "c.toml")
    assert config.arms["a"].baseline == str(tmp_path / "b.json")
    assert config.tasks.source == f"jsonl:{tmp_path / 't.jsonl'}"
    assert config.policy.source == str(tmp_path / "m")


def test_every_shipped_configuration_is_valid():
    from pathlib import Path

    root = Path(__file__).parents[2]
    files = [*root.glob("specs/*.toml"), *root.glob("studies/**/*.toml")]
    assert len(files) >= 2
    for path in files:
        assert list_comparison_runs(load_experiment_config(path))


def test_an_arm_may_have_a_batch_of_its_own_as_a_positive_control():
    config = validate_section(
        ExperimentConfig,
        {
            "train": {"rollouts": 32},
            "arms": {"loo": {"baseline": "loo"}, "loo_64": {"baseline": "loo", "rollouts": 64}},
        },
    )
    runs = {run.name: run for run in list_comparison_runs(config)}
    assert {name: run.train.rollouts for name, run in runs.items()} == {"loo": 32, "loo_64": 64}
    assert runs["loo_64"].tasks_per_step == 64
    with pytest.raises(InputError, match="12 rollouts per step are no multiple of group_size 8"):
        validate_section(ExperimentConfig, {"arms": {"a": {"baseline": "grpo", "group_size": 8, "rollouts": 12}}})
