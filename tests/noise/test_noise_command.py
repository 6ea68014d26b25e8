"""``rollonce noise`` from end to end, on the embedded policy and a few tasks."""

from __future__ import annotations

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("reasoning_gym")

from rollonce.baselines import NoBaseline, family_mean_baseline  # noqa: E402
from rollonce.cli import main  # noqa: E402
from rollonce.errors import InputError  # noqa: E402
from rollonce.noise.session import MeasurementSettings, measure_policy  # noqa: E402
from rollonce.tasks import load_tasks  # noqa: E402

SMALL = ["noise", "--n-tasks", "16", "-G", "3", "-B", "4", "--window", "8", "--batches", "200"]
SMALL += ["--replications", "4", "--coordinates", "2000"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A saved baseline, and the embedded policy with its weights moved a little."""
    from rollonce.policies import load_embedded

    folder = tmp_path_factory.mktemp("noise")
    tasks = load_tasks("embedded", train=0, holdout=16, test=0).holdout
    family_mean_baseline("family").fit(tasks.as_feature_tasks()).save(folder / "mine.json")
    policy = load_embedded()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.05 * p.std() * torch.randn(p.shape, generator=generator))
    policy.save(folder / "old")
    return folder


def test_json_with_a_saved_baseline_and_a_lagged_policy(files, capsys, monkeypatch):
    from rollonce.noise import session

    calls, real = [], session.score_gradients

    def spy(*given, **options):
        calls.append((options["weights"], real(*given, **options)))
        return calls[-1][1]

    monkeypatch.setattr(session, "score_gradients", spy)
    argv = [
        *SMALL,
        "--json",
        "--metric",
        "adam",
        "--baseline",
        str(files / "mine.json"),
        "--lagged",
        str(files / "old"),
    ]
    assert main(argv) == 0
    # Both samplers in the one metric of the first.
    assert [weights is None for weights, _ in calls] == [True, False]
    assert calls[1][0] is calls[0][1].weights
    out = json.loads(capsys.readouterr().out)
    # Tuned, for all we know, on what collect draws by default: not measured there.
    assert out["settings"]["split"] == "test"
    assert "Tasks are of the split test" in out["notes"][0]
    assert "cannot be known" in out["notes"][0]
    rows = {r["label"]: r for r in out["rows"]}
    # The saved one is the family's mean under another name.
    assert rows["mine"]["ratio"] == rows["same family"]["ratio"]
    for row in out["rows"]:
        assert set(row["progress"]) == set(row["equivalent_batch"]) == {"value", "low", "high"}
    assert set(out["exponents"]) == {"plain", "adam"}
    assert 0 < out["exponents"]["plain"]["exponent"]["low"] < out["exponents"]["plain"]["exponent"]["high"] < 6
    assert rows["LOO mean"]["ratio"] == {"value": 1, "low": 1, "high": 1}
    assert rows["FlashREINFORCE batch mean"]["scored_as"] == "LOO mean"
    assert {NoBaseline().label, "constant 0.5", "Kriging", "same family+level", "oracle (true mean)"} <= set(rows)
    assert out["gradients"]["on_policy"]["max_abs_log_ratio"] < 1e-3
    assert out["lagged"]["gradients"]["on_policy"]["mean_abs_log_ratio"] > 1e-3
    assert out["lagged"]["gradients"]["on_policy"]["effective_share"] < 0.9999
    assert out["lagged"]["lag"]["noise"] > 0
    assert out["settings"]["n_tasks"] == 16
    assert out["n_tasks"] == 16
    assert out["group_size"] == 3
    assert out["verdict"]
    assert out["winner"]
    assert [g["group_size"] for g in out["groups"]] == [2]


def test_progress_of_every_kind_of_arm_and_the_exponent_that_score_reads(tmp_path, capsys):
    config = tmp_path / "run.toml"
    config.write_text('[train]\nbeta2 = 0.9\nmax_grad_norm = 0.5\n[arms.loo]\nbaseline = "loo"\n')
    saved, page = tmp_path / "exponent.json", tmp_path / "page.html"
    argv = ["noise", "--n-tasks", "24", "-G", "8", "-B", "8", "--batches", "200", "--replications", "4", "--seed", "3"]
    argv += ["--coordinates", "4000", "--arms", "critic_token", "--arms", "grpo", "--arms", "ridge", "--json"]
    assert main([*argv, "--config", str(config), "--save", str(saved), "--report", str(page)]) == 0
    out = json.loads(capsys.readouterr().out)
    rows = {r["label"]: r for r in out["rows"]}
    assert out["progress"]["optimizer"] == {
        "kind": "adam",
        "beta1": 0.9,
        "beta2": 0.9,
        "epsilon": 1e-8,
        "max_grad_norm": 0.5,
    }
    assert [point["batch_size"] for point in out["progress"]["curve"]] == [4, 6, 8, 12]
    for label in ("critic, token level", "RLOO, 2 x 4", "oracle (true mean)", "ridge critic, window 512"):
        assert rows[label]["progress"]["low"] < rows[label]["progress"]["value"] < rows[label]["progress"]["high"]
    assert rows["FlashREINFORCE batch mean"]["progress"]["value"] == pytest.approx(1, abs=0.02)
    assert "Progress of the optimizer" in page.read_text()
    from rollonce.scoring.exponent import read_surprisal_exponent

    assert read_surprisal_exponent(str(saved)) == out["exponents"]["adam"]["exponent"]["value"]
    assert read_surprisal_exponent(str(saved), "plain") == out["exponents"]["plain"]["exponent"]["value"]


def test_more_rollouts_than_inner_products_fit(capsys, monkeypatch):
    from rollonce.noise import session

    argv = ["noise", "--n-tasks", "64", "-G", "4", "-B", "8", "--replications", "4", "--batches", "200", "--json"]
    argv += ["--coordinates", "4000", "--sketch", "512", "--max-grad-norm", "0"]
    given, real = [], session.measure_gradient_noise

    def spy(rollouts, gram_RR, *rest, **options):
        given.append((rollouts.rewards_R, rollouts.log_probs_R, gram_RR))
        return real(rollouts, gram_RR, *rest, **options)

    monkeypatch.setattr(session, "measure_gradient_noise", spy)
    assert main(argv) == 0
    whole = json.loads(capsys.readouterr().out)
    monkeypatch.setattr(session, "MAX_GRAM", 150)
    assert main(argv) == 0
    part = json.loads(capsys.readouterr().out)
    # Two of the four rollouts of each task fit. Progress and the exponent are of all, the arithmetic noise is not.
    assert part["group_size"] == 2
    assert part["notes"][0].startswith("The arithmetic noise is of the first 2 rollouts of each task")
    assert part["notes"][0].endswith("Progress and the exponent are of all 256.")
    assert part["exponents"] == whole["exponents"]
    first_two = np.flatnonzero(np.arange(256) % 4 < 2)
    (rewards, log_probs, gram), (some_rewards, some_log_probs, some_gram) = given
    assert np.array_equal(some_rewards, rewards[first_two])
    assert np.array_equal(some_log_probs, log_probs[first_two])
    assert some_gram == pytest.approx(gram[np.ix_(first_two, first_two)])
    progress = [{r["label"]: r["progress"] for r in d["rows"]} for d in (part, whole)]
    assert progress[0]["REINFORCE without a baseline"]["value"] is not None
    for label in ("REINFORCE without a baseline", "constant 0.5"):  # without clipping no norm is asked for
        assert progress[0][label] == pytest.approx(progress[1][label])


def test_a_saved_baseline_is_not_measured_on_tasks_that_collect_draws():
    from rollonce.collecting import CollectSettings
    from rollonce.collecting.sources import draw_tasks_by_seed
    from rollonce.commands.noise import Args, _load_requested_tasks, _note_on_seen_tasks

    tuned_on = {t.id for t in draw_tasks_by_seed(CollectSettings("embedded", "embedded", "x.jsonl"))}
    assert len(tuned_on) == 64
    measured_on = {t.id for t in _load_requested_tasks(Args(baseline=("mine.json",)))}
    assert len(measured_on) == 256
    assert not tuned_on & measured_on
    assert tuned_on <= {t.id for t in _load_requested_tasks(Args())}  # without --baseline nothing was tuned on anything
    assert "may have been tuned on these very tasks" in _note_on_seen_tasks(
        Args(baseline=("mine.json",), split="holdout")
    )


def test_table_and_page(capsys, tmp_path):
    page = tmp_path / "noise.html"
    assert main([*SMALL, "--report", str(page)]) == 0
    html = page.read_text()
    assert html.count('class="ring"') >= 15  # a prediction beside each measurement
    assert "same family+level" in html
    for outside in ("<script", "http://", "https://", "@import", "url("):
        assert outside not in html
    out = capsys.readouterr().out
    for words in (
        "what a step feels",
        "Arithmetic noise of the gradient",
        "grow as the surprisal to the power",
        "LOO mean",
        "predicted",
        "rollouts do not covary",
        "noise far above signal",
        "on-policy",
        "Groups of G",
        "B_eff",
    ):
        assert words in out
    assert "8 other tasks" not in out  # the window fits


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--n-tasks", "20"], "at least three times the batch size, 96"),
        (["--replications", "7"], "--replications must be an even number"),
        (["--arms", "nonsense"], "nonsense"),
        (["--max-grad-norm", "-1"], "--max-grad-norm"),
        (["--template", "no place"], "--template must hold {prompt}"),
        (["--config", "absent.toml"], "absent.toml"),
        (["-G", "1"], "--rollouts must be at least 2"),
        (["--temperature", "0"], "above 0"),
        (["--batches", "10"], "at least 100"),
        (["--policy", "./nowhere"], "nowhere"),
        (["--tasks", "nothing"], "no source of tasks"),
        (["--grader", "contains"], "--grader belongs to tasks of jsonl:FILE, and those of embedded have their own"),
        (["--tasks", "gsm8k:x", "--columns", "level"], "--columns belongs to tasks of jsonl:FILE"),
        (["--baseline", "absent.json"], "no such file"),
        (["--lagged", "./old", "--lora-rank", "4"], "--lagged"),
    ],
)
def test_bad_options_are_a_sentence(argv, says, capsys):
    assert main(["noise", *argv]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "Traceback" not in error


def test_too_few_tasks_are_said_before_anything_is_sampled():
    """A task file whose split is small: found out after minutes of gradients, once."""
    tasks = load_tasks("embedded", train=0, holdout=20, test=0).holdout
    settings = MeasurementSettings(rollouts=2, batch_size=16)
    with pytest.raises(InputError, match=r"at least 48 tasks .* not 20"):
        measure_policy(None, tasks, settings)  # no policy is asked for anything


def test_groups_that_no_batch_holds_are_said_before_anything_is_sampled():
    """Batches of 7 are no two groups or more of 2 to 8; batches of 8 with 3 rollouts of a task are four of 2."""
    tasks = load_tasks("embedded", train=0, holdout=24, test=0).holdout
    with pytest.raises(InputError, match=r"--arms grpo needs groups, and with 3 rollouts .* a batch of 7"):
        measure_policy(None, tasks, MeasurementSettings(rollouts=3, batch_size=7, arms=("grpo",)))
    with pytest.raises(AttributeError):  # past the refusals: the policy that is not there is asked to sample
        measure_policy(None, tasks, MeasurementSettings(rollouts=3, batch_size=8, arms=("grpo",)))


def test_rewards_all_alike_are_a_sentence(tmp_path, capsys):
    path = tmp_path / "t.jsonl"
    lines = [{"prompt": f"What is {i} + {j}?", "reference": "never this"} for i in range(20) for j in range(10)]
    path.write_text("".join(json.dumps(x) + "\n" for x in lines))
    argv = [*SMALL, "--tasks", f"jsonl:{path}", "--max-new-tokens", "4"]
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert "rollouts earned 0" in error
