"""``rollonce noise`` from end to end, on the embedded policy and a few tasks."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("reasoning_gym")

from rollonce.baselines import NoBaseline, family_mean  # noqa: E402
from rollonce.cli import main  # noqa: E402

SMALL = ["noise", "--n-tasks", "16", "-G", "3", "-B", "4", "--window", "8", "--batches", "200"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A saved baseline, and the embedded policy with its weights moved a little."""
    from rollonce.policies import load_embedded
    from rollonce.tasks import load_tasks

    folder = tmp_path_factory.mktemp("noise")
    tasks = load_tasks("embedded", train=0, holdout=16, test=0).holdout
    family_mean("family").fit(tasks.as_tasks()).save(folder / "mine.json")
    policy = load_embedded()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.05 * p.std() * torch.randn(p.shape, generator=generator))
    policy.save(folder / "old")
    return folder


def test_json_with_a_saved_baseline_and_a_lagged_policy(files, capsys, monkeypatch):
    from rollonce.noise import gradients as noise_gradients

    calls, real = [], noise_gradients.score_gradients

    def spy(*given, **options):
        calls.append((options["weights"], real(*given, **options)))
        return calls[-1][1]

    monkeypatch.setattr(noise_gradients, "score_gradients", spy)
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


def test_a_saved_baseline_is_not_measured_on_tasks_that_collect_draws():
    from rollonce.collecting import Settings
    from rollonce.collecting.sources import find_tasks
    from rollonce.commands.noise import Args, _seen, _tasks

    tuned_on = {t.id for t in find_tasks(Settings("embedded", "embedded", "x.jsonl"))}
    assert len(tuned_on) == 64
    measured_on = {t.id for t in _tasks(Args(baseline=("mine.json",)))}
    assert len(measured_on) == 256
    assert not tuned_on & measured_on
    assert tuned_on <= {t.id for t in _tasks(Args())}  # without --baseline nothing was tuned on anything
    assert "may have been tuned on these very tasks" in _seen(Args(baseline=("mine.json",), split="holdout"))


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
        (["--n-tasks", "20"], "at least twice the batch size, 64"),
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


def test_rewards_all_alike_are_a_sentence(tmp_path, capsys):
    path = tmp_path / "t.jsonl"
    lines = [{"prompt": f"What is {i} + {j}?", "reference": "never this"} for i in range(20) for j in range(10)]
    path.write_text("".join(json.dumps(x) + "\n" for x in lines))
    argv = [*SMALL, "--tasks", f"jsonl:{path}", "--max-new-tokens", "4"]
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert "rollouts earned 0" in error
