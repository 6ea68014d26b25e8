"""The column log_prob: what it holds, and that a server without it costs nothing but the column."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_server import FakeServer, token_log_probs

from rollonce.collecting import CollectSettings, collect_rollouts
from rollonce.errors import InputError


def rows_of(settings: CollectSettings) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(settings.out).read_text().splitlines()]


def meaning_of(settings: CollectSettings) -> str:
    return json.loads(Path(settings.out + ".collect.json").read_text())["server"].get("log_prob", "")


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_it_is_the_sum_over_the_tokens_that_the_server_returns(ask, api):
    said: list[str] = []
    with FakeServer() as server:
        settings = ask(server.url, api=api)
        collect_rollouts(settings, say=said.append)
    assert server.requests[0][1]["logprobs"] == (True if api == "chat" else 1)
    for row in rows_of(settings):
        assert row["log_prob"] == pytest.approx(sum(token_log_probs(row["response"])), abs=1e-6)
        assert row["response_tokens"] == 3
    assert meaning_of(settings).startswith("natural logarithm, summed over the response's tokens, as the server")
    assert said == []


def test_a_server_that_leaves_out_the_end_is_seen(ask):
    with FakeServer(log_probs="without the last") as server:
        settings = ask(server.url)
        collect_rollouts(settings)
    row = rows_of(settings)[0]
    assert row["log_prob"] == pytest.approx(sum(token_log_probs(row["response"])[:-1]), abs=1e-6)
    assert "tokens without the last, as the server" in meaning_of(settings)


@pytest.mark.parametrize(
    ("log_probs", "requests", "why"),
    [
        ("refuses", 25, "the server refuses log-probabilities"),
        ("ignores", 24, "the server returns no log-probabilities"),
        ("one", 24, "the server returns log-probabilities of 1 of 3 tokens"),
    ],
)
def test_a_server_without_them_loses_the_column_and_nothing_else(ask, log_probs, requests, why):
    said: list[str] = []
    with FakeServer(log_probs=log_probs) as server:
        settings = ask(server.url)
        collect_rollouts(settings, say=said.append)
        # Found out by the first request, which is sent alone: no later one asks again.
        assert len(server.requests) == requests
        assert sum("logprobs" in body for _, body, _ in server.requests) == 1
        collect_rollouts(ask(server.url, n_rollouts=5), say=said.append)
        assert sum("logprobs" in body for _, body, _ in server.requests) == 1
    assert [s for s in said if "log_prob" in s] == [meaning_of(settings)]
    assert meaning_of(settings).startswith(f"the column log_prob is left out: {why}")
    assert not any("log_prob" in row for row in rows_of(settings))


def test_at_another_temperature_a_server_is_asked_only_if_the_user_knows_what_it_returns(ask):
    said: list[str] = []
    with FakeServer() as server:
        settings = ask(server.url, temperature=0.7)
        collect_rollouts(settings, say=said.append)
        assert not any("logprobs" in body for _, body, _ in server.requests)
        assert "give --log-probs on" in said[0]
        assert len(said) == 1
        collect_rollouts(ask(server.url, temperature=0.7, log_probs="on", n_rollouts=5))
    assert ["log_prob" in row for row in rows_of(settings)] == [False, False, False, False, True] * 6
    assert "at temperature 0.7" in meaning_of(settings)


def test_it_can_be_left_off_and_must_not_be_asked_for_twice(ask):
    with FakeServer() as server:
        settings = ask(server.url, log_probs="off")
        collect_rollouts(settings)
        assert not any("logprobs" in body for _, body, _ in server.requests)
    assert not any("log_prob" in row for row in rows_of(settings))
    with pytest.raises(InputError, match="--log-probs must be one of auto, on, off"):
        collect_rollouts(ask("http://127.0.0.1:9/v1", log_probs="yes"))
    with pytest.raises(InputError, match="--extra must not hold 'logprobs'"):
        collect_rollouts(ask("http://127.0.0.1:9/v1", extra={"logprobs": 1}))


def test_a_local_models_is_of_the_distribution_that_was_sampled_from(tmp_path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("reasoning_gym")
    from rollonce.policies import load_embedded

    settings = CollectSettings(
        "embedded", "embedded", str(tmp_path / "x.jsonl"), n_tasks=4, n_rollouts=2, max_tokens=48, temperature=0.7
    )
    collect_rollouts(settings)
    policy = load_embedded()
    for row in rows_of(settings):
        prompt, _ = policy.encode_prompts([row["prompt"]])
        response = policy.tokenizer(row["response"], add_special_tokens=False)["input_ids"]
        response += [] if row["truncated"] else [policy.tokenizer.eos_token_id]
        assert row["response_tokens"] == len(response)
        with torch.no_grad():
            logits_TV = policy.model(input_ids=torch.cat([prompt, torch.tensor([response])], dim=1)).logits[0]
        log_probs_TV = torch.log_softmax(logits_TV[prompt.shape[1] - 1 : -1].float() / 0.7, dim=-1)
        expected = float(log_probs_TV[torch.arange(len(response)), torch.tensor(response)].sum())
        assert row["log_prob"] == pytest.approx(expected, abs=1e-3)
    assert "at temperature 0.7" in meaning_of(settings)
    off = CollectSettings(
        "embedded", "embedded", str(tmp_path / "y.jsonl"), n_tasks=2, n_rollouts=1, max_tokens=8, log_probs="off"
    )
    collect_rollouts(off)
    assert not any("log_prob" in row for row in rows_of(off))
