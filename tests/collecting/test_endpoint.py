"""Against a fake server that misbehaves: what is asked, how often, and what is written."""

from __future__ import annotations

import email.utils
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fake_server import FakeServer, answer

from rollonce.collecting import CollectSettings, collect_rollouts
from rollonce.collecting.settings import seed_of_rollout
from rollonce.errors import InputError
from rollonce.readers import read_rollouts


def rows_of(settings: CollectSettings) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(settings.out).read_text().splitlines()]


def note_of(settings: CollectSettings) -> dict[str, Any]:
    return json.loads(Path(settings.out + ".collect.json").read_text())


def test_every_row_is_what_the_server_said_and_the_reader_agrees(ask):
    with FakeServer(models=["fake-model"]) as server:
        settings = ask(server.url)
        done = collect_rollouts(settings)
    rows = rows_of(settings)
    assert done.added == done.counts.rollouts == len(rows) == 24
    assert [r["rollout_id"] for r in rows] == [0, 1, 2, 3] * 6
    for r in rows:
        a = int(r["task_id"][1:])
        seed = seed_of_rollout(0, r["task_id"], r["rollout_id"])
        text = answer(f"{a} + {a * a} =", seed)
        assert r["response"] == text
        assert r["seed"] == seed
        assert r["reward"] == float(text.endswith(f" {a + a * a}"))
        assert (r["response_tokens"], r["prompt_tokens"], r["truncated"]) == (3, 4, False)
        assert r["size"] == ("large" if a > 11 else "small")
    assert 0 < sum(r["reward"] for r in rows) < 24
    assert len(set(server.asked())) == len(server.asked()) == 24
    assert done.counts.prompt_tokens == 96
    assert done.counts.response_tokens == 72
    table = read_rollouts(settings.out, columns=["size"])
    assert table.format == "generic"
    assert table.n_tasks == 6
    assert table.rewards_R.tolist() == [r["reward"] for r in rows]
    assert table.lengths_R is not None
    assert table.lengths_R.tolist() == [3.0] * 24
    path, body, _ = server.requests[0]
    assert path == "/v1/chat/completions"
    assert body["temperature"] == 1.0
    assert body["max_tokens"] == 16


def test_base_models_are_asked_for_completions_with_template_system_and_extra_fields(ask):
    with FakeServer() as server:
        collect_rollouts(
            ask(
                server.url,
                api="completions",
                template="Q: {prompt}",
                system="Add.",
                extra={"top_k": -1},
                temperature=0.7,
            )
        )
    path, body, _ = server.requests[0]
    assert path == "/v1/completions"
    assert body["prompt"].startswith("Add.\n\nQ: ")
    assert body["top_k"] == -1
    assert body["temperature"] == 0.7
    assert "messages" not in body


def test_a_system_message_goes_before_the_prompt_in_a_chat(ask):
    with FakeServer() as server:
        collect_rollouts(ask(server.url, system="Add."))
    assert [m["role"] for m in server.requests[0][1]["messages"]] == ["system", "user"]


@pytest.mark.parametrize("limit", [1, 3, 8])
def test_no_more_requests_at_once_than_allowed_and_as_many_as_that(ask, limit):
    together = threading.Barrier(limit)

    def trouble(k: int, body: dict[str, Any]) -> None:
        if 1 <= k <= limit:  # after the first, which is sent alone, none of these is answered before all are there
            together.wait(timeout=600)
            time.sleep(0.1)  # and one too many would be seen

    with FakeServer(trouble=trouble) as server:
        collect_rollouts(ask(server.url, concurrency=limit))
    assert server.most_at_once == limit


def test_momentary_failures_are_tried_again_with_growing_waits(ask, impatient):
    def trouble(k: int, body: dict[str, Any]) -> Any:
        return [
            None,
            (500, {}, {"error": "ill"}),
            "drop",
            (503, {}, b"<html>"),
            (429, {}, {"error": {"message": "slow"}}),
            None,
        ][min(k, 5)]

    with FakeServer(trouble=trouble) as server:
        settings = ask(server.url, concurrency=1)
        done = collect_rollouts(settings)
    assert len(rows_of(settings)) == 24
    assert len(server.requests) == 28
    assert done.counts.retries == 4
    # 0.5, 1, 2, 4 seconds, each by a factor from 0.5 to 1.
    for waited, full in zip(impatient, (0.5, 1, 2, 4), strict=True):
        assert full / 2 <= waited <= full
    asked = server.asked()
    assert asked[1:6] == [asked[1]] * 5  # the very same request, until it is answered


def test_retry_after_is_heeded_in_seconds_and_as_a_date(ask, impatient):
    when = email.utils.formatdate(time.time() + 500, usegmt=True)
    heads = {1: {"Retry-After": "7.5"}, 2: {"Retry-After": when}, 3: {"Retry-After": "nonsense"}}

    def trouble(k: int, body: dict[str, Any]) -> Any:
        return (429, heads[k], {"error": "slow"}) if k in heads else None

    with FakeServer(trouble=trouble) as server:
        collect_rollouts(ask(server.url, concurrency=1))
    assert impatient[0] == 7.5
    assert 100 < impatient[1] <= 500
    assert 1 <= impatient[2] <= 2


def test_a_server_that_asks_to_wait_for_an_hour_has_said_no(ask, impatient):
    with FakeServer(
        trouble=lambda k, body: (429, {"Retry-After": "3600"}, {"error": {"message": "quota used up"}})
    ) as server:
        with pytest.raises(InputError, match=r"quota used up.*asks to wait 3600 s"):
            collect_rollouts(ask(server.url))
        assert len(server.requests) == 1
    assert impatient == []


def test_retries_are_bounded_and_what_was_answered_is_kept(ask, tmp_path):
    said: list[str] = []
    with FakeServer(
        trouble=lambda k, body: (500, {}, {"error": {"message": "out of order"}}) if k >= 5 else None
    ) as server:
        settings = ask(server.url, concurrency=1, retries=3)
        with pytest.raises(InputError, match=r"failed 4 times in a row, last with status 500: 'out of order'"):
            collect_rollouts(settings, say=said.append)
        assert len(server.requests) == 5 + 4
    assert "5 of 24 rollouts are kept" in said[-1]
    assert not Path(settings.out).exists()
    with FakeServer() as healthy:
        assert collect_rollouts(ask(healthy.url)).added == 19
    assert len({(r["task_id"], r["rollout_id"]) for r in rows_of(settings)}) == 24
    note = note_of(settings)
    assert [s["rollouts"] for s in note["sessions"]] == [5, 19]
    assert [s["retries"] for s in note["sessions"]] == [3, 0]


def test_a_request_that_hangs_is_given_up_and_sent_again(ask):
    with FakeServer(trouble=lambda k, body: "hang" if k == 3 else None) as server:
        # On a busy machine others may be given up as well, so how often is not counted.
        settings = ask(server.url, timeout=0.5, concurrency=4, retries=100)
        retries = collect_rollouts(settings).counts.retries
    assert len(rows_of(settings)) == 24
    assert len(server.requests) == 24 + retries
    asked = server.asked()
    assert asked.count(asked[3]) >= 2


def test_a_server_that_refuses_seeds_is_asked_without_and_the_note_says_so(ask):
    def trouble(k: int, body: dict[str, Any]) -> Any:
        return (400, {}, {"error": {"message": "Unsupported parameter: 'seed'"}}) if "seed" in body else None

    said: list[str] = []
    with FakeServer(trouble=trouble) as server:
        settings = ask(server.url)
        collect_rollouts(settings, say=said.append)
        n = len(server.requests)
        assert n == 25  # refused once, found out by the first request alone
    assert all(r["seed"] is None for r in rows_of(settings))
    assert note_of(settings)["server"]["seed"].startswith("refused by the server, not sent")
    assert any("refuses seeds" in s for s in said)


def test_resuming_remembers_that_seeds_are_refused(ask):
    def trouble(k: int, body: dict[str, Any]) -> Any:
        if "seed" in body:
            return 422, {}, {"detail": "extra field seed"}
        return (400, {}, {"error": "no more"}) if k > 6 else None

    with FakeServer(trouble=trouble) as server, pytest.raises(InputError, match="no more"):
        collect_rollouts(ask(server.url, concurrency=1))
    with FakeServer() as server:
        collect_rollouts(ask(server.url))
        assert all("seed" not in body for _, body, _ in server.requests)


def test_a_server_that_wants_the_limit_under_its_newer_name_gets_it(ask):
    def trouble(k: int, body: dict[str, Any]) -> Any:
        said = (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
        )
        return (400, {}, {"error": {"message": said}}) if "max_tokens" in body else None

    with FakeServer(trouble=trouble) as server:
        settings = ask(server.url)
        collect_rollouts(settings)
        assert len(server.requests) == 25
        assert server.requests[-1][1]["max_completion_tokens"] == 16
    assert len(rows_of(settings)) == 24


def test_cut_off_responses_have_reward_0_and_are_counted(ask):
    with FakeServer() as server:
        settings = ask(server.url, max_tokens=2)
        done = collect_rollouts(settings)
    assert done.counts.truncated == 24
    assert {(r["reward"], r["truncated"], r["failure"]) for r in rows_of(settings)} == {(0.0, True, "truncated")}


def test_a_grader_that_fails_gives_0_and_is_counted(ask, tmp_path):
    file = tmp_path / "odd.jsonl"
    refs = ["3", "no number", "7", "none either"]
    file.write_text("".join(json.dumps({"prompt": f"{i} + {i} =", "answer": r}) + "\n" for i, r in enumerate(refs)))
    with FakeServer() as server:
        settings = ask(server.url, tasks_from=f"jsonl:{file}", n_tasks=4, n_rollouts=2, columns=())
        done = collect_rollouts(settings)
    assert done.counts.failures == {"ValueError": 4}
    bad = [r for r in rows_of(settings) if "failure" in r]
    assert len(bad) == 4
    assert {r["reward"] for r in bad} == {0.0}


def test_tokens_that_the_server_does_not_report_are_said_to_be_unknown(ask):
    with FakeServer(usage=False) as server:
        settings = ask(server.url)
        done = collect_rollouts(settings)
    assert done.counts.unknown == 24
    assert {r["response_tokens"] for r in rows_of(settings)} == {None}
    assert read_rollouts(settings.out).n_rollouts == 24


def test_the_key_goes_into_the_header_and_nowhere_else(ask, monkeypatch, tmp_path):
    monkeypatch.setenv("SOME_KEY", "sk-very-secret")
    with FakeServer(models=["fake-model"]) as server:
        server.key = "sk-very-secret"
        collect_rollouts(ask(server.url, key_env="SOME_KEY"))
        assert server.requests[0][2]["authorization"] == "Bearer sk-very-secret"
    written = [f for f in tmp_path.iterdir() if f.is_file()]
    assert len(written) == 3
    assert all(b"very-secret" not in f.read_bytes() for f in written)


@pytest.mark.parametrize("models", [["fake-model"], None])
def test_a_wrong_key_is_a_sentence_without_the_key(ask, monkeypatch, models):
    monkeypatch.setenv("SOME_KEY", "sk-wrong")
    with FakeServer(models=models) as server:
        server.key = "sk-right"
        with pytest.raises(
            InputError, match=r"refuses the key in SOME_KEY \(status 401.*\*\*\*.*correct SOME_KEY"
        ) as caught:
            collect_rollouts(ask(server.url, key_env="SOME_KEY"))
        assert "sk-wrong" not in str(caught.value)
        with pytest.raises(InputError, match=r"a request without a key.*--key-env"):
            collect_rollouts(ask(server.url))


def test_no_server_is_said_at_once(ask, impatient):
    with pytest.raises(InputError, match=r"no server answers at http://127.0.0.1:9/v1"):
        collect_rollouts(ask("http://127.0.0.1:9/v1"))
    assert impatient == []


@pytest.mark.parametrize("listing", ["fails", "drops"])
def test_a_listing_that_fails_costs_no_try(ask, listing):
    said: list[str] = []
    with FakeServer(listing=listing) as server:
        done = collect_rollouts(ask(server.url, retries=0), say=said.append)
    assert (done.counts.rollouts, done.counts.retries, said) == (24, 0, [])


@pytest.mark.parametrize("status", [404, 500])
def test_a_model_that_the_server_does_not_know(ask, status):
    said: list[str] = []
    with FakeServer(
        models=["a", "b"], trouble=lambda k, body: (status, {}, {"error": {"message": "The model does not exist"}})
    ) as server:
        with pytest.raises(InputError, match=r"does not exist.*lists no model 'fake-model', but a, b"):
            collect_rollouts(ask(server.url), say=said.append)
        assert len(server.requests) == (1 if status == 404 else 3)
    assert "does not list 'fake-model', but a, b" in said[0]


@pytest.mark.parametrize(
    "said", [b"<html>hello</html>", b"{}", b'{"choices": []}', b"[1]", b'{"choices": [{"message": null}]}']
)
def test_what_is_no_completion_is_a_sentence(ask, said):
    server = FakeServer(trouble=lambda k, body: (200, {}, said))
    with server, pytest.raises(InputError, match="answers what is no chat completion"):
        collect_rollouts(ask(server.url))


def test_a_wrong_path_points_to_the_address_and_the_api(ask):
    server = FakeServer(trouble=lambda k, body: (404, {}, {"detail": "Not Found"}))
    with server, pytest.raises(InputError, match=r"correct --url .*or try --api completions"):
        collect_rollouts(ask(server.url))


def test_a_stopped_collection_leaves_no_request_behind(ask):
    """The first failure for good ends all workers."""
    together = threading.Barrier(4)

    def trouble(k: int, body: dict[str, Any]) -> Any:
        if k < 9:
            return None
        together.wait(timeout=600)  # all four are under way when one of them fails
        return (400, {}, {"error": "bad"}) if k == 9 else "hang"

    with FakeServer(trouble=trouble) as server:
        with pytest.raises(InputError, match="refuses the request"):
            collect_rollouts(ask(server.url, concurrency=4))
        time.sleep(0.3)
        assert len(server.requests) == 9 + 4
