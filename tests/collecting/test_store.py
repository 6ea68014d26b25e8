"""What may change when a collection goes on, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from fake_server import FakeServer

from rollonce.collecting import collect_rollouts
from rollonce.collecting.settings import seed_of_rollout
from rollonce.collecting.sources import draw_tasks_by_seed
from rollonce.collecting.store import Store
from rollonce.errors import InputError


def pairs_of(file: str) -> list[tuple[str, int]]:
    return [(r["task_id"], r["rollout_id"]) for r in map(json.loads, Path(file).read_text().splitlines())]


def test_more_tasks_and_more_rollouts_add_to_the_file_and_ask_only_for_what_is_missing(ask):
    with FakeServer() as server:
        collect_rollouts(ask(server.url))
        before = Path(ask(None).out).read_text().splitlines()
        assert len(server.requests) == 24
        done = collect_rollouts(ask(server.url, n_tasks=10, n_rollouts=5))
        assert (done.added, done.counts.rollouts) == (26, 50)
        assert len(server.requests) == len(set(server.asked())) == 50
        assert collect_rollouts(ask(server.url, n_tasks=10, n_rollouts=5)).added == 0
        assert len(server.requests) == 50
    after = Path(ask(None).out).read_text().splitlines()
    assert set(before) < set(after)
    pairs = pairs_of(ask(None).out)
    assert len(set(pairs)) == len(pairs) == 50
    assert [r for _, r in pairs] == [0, 1, 2, 3, 4] * 10


def test_a_run_in_two_parts_gives_the_rows_of_one_run(ask, tmp_path):
    with FakeServer() as server:
        collect_rollouts(ask(server.url))
        collect_rollouts(ask(server.url, n_tasks=10))
        collect_rollouts(ask(server.url, n_tasks=10, out=str(tmp_path / "once.jsonl")))
    assert sorted(Path(ask(None).out).read_text().splitlines()) == sorted(
        (tmp_path / "once.jsonl").read_text().splitlines()
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"temperature": 0.7}, ["--temperature 1.0, not 0.7"]),
        ({"max_tokens": 32}, ["--max-tokens 16, not 32"]),
        ({"seed": 1}, ["--seed 0, not 1"]),
        ({"policy": "other"}, ["POLICY 'fake-model', not 'other'"]),
        ({"system": "Think."}, ["--system None, not 'Think.'"]),
        ({"template": "Q {prompt}"}, ["--template '{prompt}', not 'Q {prompt}'"]),
        ({"extra": {"top_p": 0.5}}, ["--extra {}, not {'top_p': 0.5}"]),
        ({"api": "completions"}, ["--api 'chat', not 'completions'"]),
        ({"grader": "exact"}, ["--grader 'numeric_exact', not 'exact'"]),
        ({"n_rollouts": 3}, ["4 rollouts of each task, more than the 3 now asked for"]),
        ({"n_tasks": 5}, ["6 tasks, of which", "is not among the 5 now asked for"]),
    ],
)
def test_other_settings_are_refused_naming_what_differs(ask, changes, words):
    with FakeServer() as server:
        collect_rollouts(ask(server.url))
        before = Path(ask(None).out).read_bytes()
        with pytest.raises(InputError) as caught:
            collect_rollouts(ask(server.url, **changes))
        assert len(server.requests) == 24
    for word in [*words, "out.jsonl", "give another --out"]:
        assert word in str(caught.value)
    assert Path(ask(None).out).read_bytes() == before
    with FakeServer() as elsewhere:  # the refusal has broken nothing; another address is no other policy
        assert collect_rollouts(ask(elsewhere.url, concurrency=2, retries=1, timeout=9.0, price_in=1.0)).added == 0


def test_the_hold_out_by_its_old_name_is_the_hold_out(ask):
    """Files and commands of rollonce 0.1 say ``calibration``."""
    with FakeServer() as server:
        collect_rollouts(ask(server.url, split="holdout", n_tasks=2))
        note = Path(ask(None).out + ".collect.json")
        written = json.loads(note.read_text())
        assert written["settings"]["split"] == "holdout"
        note.write_text(json.dumps(written | {"settings": written["settings"] | {"split": "calibration"}}))
        assert collect_rollouts(ask(server.url, split="calibration", n_tasks=2)).added == 0


def test_a_task_whose_text_has_changed_is_refused(ask, sums):
    with FakeServer() as server:
        collect_rollouts(ask(server.url))
        id_ = pairs_of(ask(None).out)[0][0]
        rows = [json.loads(line) for line in sums.read_text().splitlines()]
        changed = [r | {"reference": "0"} if r["id"] == id_ else r for r in rows]
        sums.write_text("".join(json.dumps(r) + "\n" for r in changed))
        with pytest.raises(InputError, match=f"task '{id_}' had another prompt or reference"):
            collect_rollouts(ask(server.url))


def test_files_of_others_are_left_alone(ask):
    file = Path(ask(None).out)
    file.write_text("precious\n")
    with FakeServer() as server:
        with pytest.raises(InputError, match=r"is there already, without the out\.jsonl\.collect\.json"):
            collect_rollouts(ask(server.url))
        assert file.read_text() == "precious\n"
        assert sorted(p.name for p in file.parent.iterdir()) == ["out.jsonl", "sums.jsonl"]
        file.unlink()
        note = Path(str(file) + ".collect.json")
        note.write_text("[]")
        with pytest.raises(InputError, match="is no note of rollonce collect"):
            collect_rollouts(ask(server.url))


def test_one_file_has_one_writer(ask):
    settings = ask("http://127.0.0.1:9/v1")
    store = Store(settings, draw_tasks_by_seed(settings))
    try:
        with pytest.raises(InputError, match="another rollonce collect is writing it"):
            Store(settings, draw_tasks_by_seed(settings))
    finally:
        store.close_part_file()
    Store(settings, draw_tasks_by_seed(settings)).close_part_file()


def damaged(ask, change) -> Store:
    """A collection stopped after some rows, its journal changed."""
    with FakeServer(trouble=lambda k, body: (400, {}, {"error": "stop"}) if k >= 5 else None) as server:
        settings = ask(server.url, concurrency=1)
        with pytest.raises(InputError, match="stop"):
            collect_rollouts(settings)
    part = Path(settings.out + ".part")
    assert part.read_bytes().count(b"\n") == 5
    part.write_bytes(change(part.read_bytes()))
    return Store(settings, draw_tasks_by_seed(settings))


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (lambda data: data + b'{"task_id": "s3", "ro', 5),
        (lambda data: data[:-1], 4),
        (lambda data: data[:-30], 4),
        (lambda data: data + b"\x00\x00\x00\x00\n", 5),
        (lambda data: b"", 0),
    ],
)
def test_a_torn_end_is_cut_off(ask, change, left):
    store = damaged(ask, change)
    assert len(store.rows) == left
    assert len(store.missing_rollouts()) == 24 - left
    data = store.part.read_bytes()
    store.close_part_file()
    assert data.count(b"\n") == left
    assert all(json.loads(line) for line in data.splitlines())


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda data: b"nonsense\n" + data, "line 1: this is no row"),
        (lambda data: data + data.splitlines(keepends=True)[0], "line 6: task .* has its rollout 0 twice"),
        (lambda data: data.replace(b'"rollout_id":0', b'"rollout_id":9'), "rollout 9 of task .* never asked for"),
    ],
)
def test_damage_that_no_kill_leaves_is_said_with_its_line(ask, change, word):
    with pytest.raises(InputError, match=word):
        damaged(ask, change)


def test_blocks_hold_every_pair_once_and_growth_changes_none(ask):
    settings = ask("http://127.0.0.1:9/v1", n_tasks=5, n_rollouts=2)
    store = Store(settings, draw_tasks_by_seed(settings))
    blocks = store.split_into_blocks(2)
    store.close_part_file()
    assert [len(b) for b in blocks] == [2, 2, 2, 2, 1, 1]
    assert all(len({r for _, r in b}) == 1 for b in blocks)
    assert len({p for b in blocks for p in b}) == 10


def test_seeds_depend_on_seed_task_and_rollout_alone():
    seeds = [seed_of_rollout(s, t, r) for s in range(3) for t in ("a", "b") for r in range(50)]
    assert len(set(seeds)) == 300
    assert 0 <= min(seeds) < max(seeds) < 2**31
    assert max(seeds) > 2**30


def test_half_a_surrogate_pair_in_a_response_can_be_written_and_read(ask):
    settings = ask("http://127.0.0.1:9/v1")
    tasks = draw_tasks_by_seed(settings)
    store = Store(settings, tasks)
    row = {"task_id": tasks[0].id, "rollout_id": 0, "reward": 0.0, "truncated": False, "response": "a\ud800b\r\n\u2028"}
    store.append_rollout_rows([row])
    store.close_part_file()
    again = Store(settings, tasks)
    again.close_part_file()
    assert json.loads(again.part.read_text(encoding="utf-8").split("\n")[0])["response"] == "a\ufffdb\r\n\u2028"
    assert dataclasses.asdict(settings) == dataclasses.asdict(again.settings)
