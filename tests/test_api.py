"""``import rollonce as ro``: from rows in memory to a board, a saved baseline and the trainer's hook."""

import json
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pytest

import rollonce as ro
from rollonce.cli import main

ROWS = [
    {
        "prompt": f"question {'x' * (n % 3)} number {n}",
        "reward": float((n * 7 + g * 5) % 4 > 1 + (n % 3 == 0)),
        "kind": "ab"[n % 2],
    }
    for n in range(24)
    for g in range(4)
]
QUICK = {"batch_size": 8, "n_batches": 40, "resamples": 8, "window": 8}
FLAGS = ["-B", "8", "--batches", "40", "--resamples", "8", "--window", "8"]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("api") / "rollouts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture(scope="module")
def board(file):
    return ro.score(file, **QUICK)


def same(table, other):
    assert table.tasks.prompts == other.tasks.prompts
    np.testing.assert_array_equal(table.rewards_R, other.rewards_R)
    np.testing.assert_array_equal(table.offsets_N1, other.offsets_N1)


class ArrowStream:
    """Stands in for the frame of a library that is not here (polars, DuckDB): it has Arrow's C stream, nothing else."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize("kind", ["dicts", "pandas", "arrow", "dataset", "polars", "stream"])
def test_rows_in_memory_make_the_table_of_their_file(kind, file):
    if kind == "dicts":
        rows = ROWS
    elif kind == "pandas":
        rows = pytest.importorskip("pandas").DataFrame(ROWS)
    elif kind == "arrow":
        rows = pytest.importorskip("pyarrow").Table.from_pylist(ROWS)
    elif kind == "polars":
        rows = pytest.importorskip("polars").DataFrame(ROWS)
    elif kind == "stream":
        rows = ArrowStream(pytest.importorskip("pyarrow").Table.from_pylist(ROWS))
    else:
        rows = pytest.importorskip("datasets").Dataset.from_list(ROWS)
    table = ro.read(rows, columns=["kind"])
    same(table, ro.read(file, columns=["kind"]))
    assert table.tasks.column("kind").tolist() == ["ab"[n % 2] for n in range(24)]
    assert (table.n_tasks, table.name) == (24, "rollouts")


def test_columns_may_be_decimals_as_well():
    rows = [{"prompt": prompt, "reward": 1.0, "level": Decimal(level)} for prompt, level in (("a", "1.5"), ("b", "2"))]
    assert ro.read(rows, columns=["level"]).tasks.column("level").tolist() == [1.5, 2.0]


def test_rewards_may_be_decimals_as_databases_give_them(file):
    decimals = [row | {"reward": Decimal(f"{row['reward']:.2f}")} for row in ROWS]
    same(ro.read(decimals), ro.read(file))
    same(ro.read(ArrowStream(pytest.importorskip("pyarrow").Table.from_pylist(decimals))), ro.read(file))


def test_a_missing_value_of_a_data_frame_is_none(file):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(ROWS).assign(log_prob=[-1.5, *[None] * (len(ROWS) - 1)])
    table = ro.read(frame)
    assert np.isfinite(table.log_probs_R).sum() == 1
    with pytest.raises(ro.InputError, match="the rows given, line 2: the reward is null"):
        ro.read(pd.DataFrame({"prompt": ["a", "b"], "reward": [1.0, None]}))


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ([], {}, "no rows"),
        (3, {}, "not from int"),
        (["/no/such/file"], {}, "no such file"),
        ([{"a": 1}], {}, "prompt"),
        (ROWS, {"format": "verl"}, "'generic', not 'verl'"),
        (ROWS, {"columns": ["family"]}, "no value for the column 'family'"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_sentence(source, options, words):
    with pytest.raises(ro.InputError, match=words):
        ro.read(source, **options)


def test_a_shipped_set_by_name_and_a_table_as_it_is():
    table = ro.read("game24")
    assert table.name == "game24_gpt4_cot"
    assert ro.read(table) is table


def test_the_board_is_that_of_the_command(board, file, capsys):
    assert main(["score", str(file), *FLAGS, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)["boards"][0]
    assert json.loads(json.dumps(board.board.to_dict()))["scores"] == printed["scores"]
    assert board.decision.answer == printed["decision"]["answer"]
    assert board.decision.because == printed["decision"]["because"]
    assert "board.best.baseline.save" in board.decision.next_step


def test_a_row_saves_what_the_command_saves(board, file, tmp_path, capsys):
    path, mine = tmp_path / "baseline.json", tmp_path / "mine.json"
    assert main(["score", str(file), *FLAGS, "--save", "tfidf", "--out", str(path)]) == 0
    board["tfidf"].baseline.save(mine)
    saved, own = (json.loads(p.read_text()) for p in (path, mine))
    assert own["config"] == saved["config"]
    assert own["state"] == saved["state"]
    assert own["provenance"]["reported_ratio_to_loo"] == saved["provenance"]["reported_ratio_to_loo"]
    hook = ro.AdvantageHook(str(mine))
    prompts = [row["prompt"] for row in ROWS[::4]]
    result = hook.advantages(prompts, [float(i % 2) for i in range(24)])
    assert result.advantages_N.shape == (24,)
    assert board.best.baseline.label == board.best.label == board.board.best.label
    assert board.best.ratio.value == max(row.ratio.value for row in board if np.isfinite(row.ratio.value))
    with pytest.raises(ro.InputError, match="needs the same task again"):
        board["oracle"].baseline  # noqa: B018
    with pytest.raises(ro.InputError, match="no baseline 'tfidff'"):
        board["tfidff"]


def test_a_baseline_of_ones_own_is_on_it(file):
    kernel = ro.kernels.Softmax(temperature=0.5)
    made = ro.score(file, only="loo", baselines=[kernel, "tfidf"], **QUICK)
    assert {row.label for row in made} == {"LOO mean", "softmax TF-IDF, T=0.5", "softmax TF-IDF, T=0.1"}
    with pytest.raises(ro.InputError, match="cannot be scored"):
        ro.score(file, only="loo", baselines=[lambda prompts, rewards: rewards], **QUICK)


def test_frame_markdown_and_html_have_every_figure(board):
    frame = board.to_frame()
    assert frame["baseline"].tolist() == [s.label for s in [*board.board.scores, *board.board.apart]]
    assert frame["ratio"].iloc[0] == board.best.ratio.value
    text = board.to_markdown()
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(lines) == len(frame) + 2
    assert all(line.count("|") - line.count(r"\|") == 4 for line in lines)
    assert f"{board.best.ratio.value:.2f} [" in lines[2]
    assert "**Is one rollout per task enough here?**" in text
    html = board._repr_html_()
    assert html.count("<tr>") == min(len(board), html.count("<tr>"))
    assert "LOO mean" in html
    assert "<script" not in html


def test_markdown_and_html_show_text_as_it_is():
    rows = [row | {"prompt": row["prompt"] + " <b>|*x*"} for row in ROWS]
    made = ro.score(ro.read(rows, name="<b>a|b*"), only="loo", **QUICK)
    assert "&lt;b&gt;a|b*" in made._repr_html_()
    assert made.to_markdown().startswith(r"## \<b>a\|b\*")


def test_reprs_are_one_short_line(board):
    batch = ro.Batch.of(["a", "b"], [0.0, 1.0])
    for thing in (board, board.best, board.table, board.table.tasks, batch):
        assert len(repr(thing)) < 160, repr(thing)
        assert "\n" not in repr(thing)
    assert (
        repr(board.table)
        == f"Rollouts('rollouts', 24 tasks, 96 rollouts, mean reward {board.table.rewards_R.mean():.3g})"
    )


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16", "int64", "bool"])
def test_tensors_of_any_dtype_and_with_gradients(dtype):
    torch = pytest.importorskip("torch")
    values = [1.0, 0.0, 1.0]
    tensor = torch.tensor(values).to(getattr(torch, dtype))
    if tensor.is_floating_point():
        tensor.requires_grad_()
    prompts = ["a", "b", "c"]
    for rewards in (tensor, list(tensor)):
        assert ro.Batch.of(prompts, rewards).rewards_B.tolist() == values
        result = ro.AdvantageHook(ro.baselines.LeaveOneOut()).advantages(prompts, rewards)
        assert result.advantages_N.tolist() == [0.5, -1.0, 0.5]
    assert ro.Rollouts.from_groups(torch.stack([tensor, tensor]), ["a", "b"]).rewards_R.tolist() == values * 2


def test_parts_are_attributes_and_the_import_is_light():
    heavy = ["torch", "pandas", "numpy", "scipy", "numba", "pyarrow", "rich", "tyro", "rollonce.api"]
    code = (
        "import sys, rollonce as ro\n"
        f"assert not [m for m in {heavy!r} if m in sys.modules]\n"
        "assert ro.baselines.LeaveOneOut and ro.AdvantageHook and ro.integrations\n"
        "assert ro.datasets.list_dataset_names()\n"
        "assert {'read', 'score', 'kernels', 'Baseline'} <= set(dir(ro))\n"
        "ro.read, ro.score\n"
        "assert not [m for m in ('torch', 'pandas', 'transformers') if m in sys.modules], 'pandas or torch'\n"
        "try:\n    ro.no_such\nexcept AttributeError as error:\n    print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "module 'rollonce' has no attribute 'no_such'"
