"""Bad days on a real server behind a proxy that misbehaves, and without a server at all: sentences in bounded time,
never a traceback."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from proxy import FaultyProxy
from server import TinkerServer, free_port

from rollonce.errors import InputError
from rollonce.policies.tinker_policy import TinkerPolicy
from rollonce.policies.tinker_service import ServiceError, TinkerService

PROMPTS = [f"What is {i}?" for i in range(32)]


def connect(url: str, model: Path, **options: Any) -> TinkerPolicy:
    settings = {
        "renderer": "chat",
        "loss": "importance_sampling",
        "base_url": url,
        "lora_rank": 8,
        "patience_s": 6.0,
        **options,
    }
    return TinkerPolicy.connect(str(model), **settings)


def one_step(policy: TinkerPolicy) -> tuple[torch.Tensor, float]:
    samples = policy.sample(PROMPTS, max_new_tokens=16, seed=1)
    told = policy.update(samples, torch.linspace(-1, 1, len(PROMPTS)), learning_rate=1e-2)
    return policy.compute_log_probs(samples), told.grad_norm


def test_nobody_listens() -> None:
    began = time.monotonic()
    with pytest.raises(ServiceError, match=r"no Tinker-compatible service at http://127.0.0.1:\d+.*TINKER_BASE_URL"):
        _ = TinkerService(f"http://127.0.0.1:{free_port()}", connect_s=2.0).service_client
    assert time.monotonic() - began < 300


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x"])
def test_an_address_of_another_kind(url: str) -> None:
    with pytest.raises(InputError, match="http://"):
        TinkerService(url)


def test_the_address_may_come_from_the_environment(server: TinkerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_BASE_URL", server.url + "/")
    assert TinkerService().url == server.url
    assert TinkerService("http://other").url == "http://other"


@pytest.mark.parametrize(("value", "said"), [(None, "set TINKER_API_KEY"), ("sk-123456", "tml-")])
def test_no_key_or_one_of_another_shape(
    server: TinkerServer, monkeypatch: pytest.MonkeyPatch, value: str | None, said: str
) -> None:
    monkeypatch.delenv("TINKER_API_KEY")
    if value is not None:
        monkeypatch.setenv("TINKER_API_KEY", value)
    with pytest.raises(InputError, match=said) as error:
        _ = TinkerService(server.url).service_client
    assert "123456" not in str(error.value)


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_said_at_once_and_never_written(
    server: TinkerServer, model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-secret-of-mine")
    with FaultyProxy(server.url) as proxy, caplog.at_level(logging.DEBUG):
        proxy.fail("/api/v1/client/config", status)
        proxy.fail("/api/v1/create_session", status)
        began = time.monotonic()
        with pytest.raises(ServiceError, match="refuses the key in TINKER_API_KEY") as error:
            connect(proxy.url, model)
        assert time.monotonic() - began < 300
    assert "secret-of-mine" not in str(error.value)
    assert not any("secret-of-mine" in r.getMessage() for r in caplog.records if r.name.startswith("rollonce"))


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_service_that_stumbles_is_asked_again_and_nothing_is_done_twice(
    server: TinkerServer, model: Path, status: int
) -> None:
    plain = connect(server.url, model)
    expected, norm = one_step(plain)
    plain.close()
    with FaultyProxy(server.url) as proxy:
        policy = connect(proxy.url, model, patience_s=60.0)
        for path in ("/asample", "/forward_backward", "/optim_step", "/save_weights_for_sampler", "/retrieve_future"):
            proxy.fail(path, status, times=2)
        found, same_norm = one_step(policy)
        assert {s for s, _ in proxy.answered} == {status}
        assert len(proxy.answered) >= 8
        policy.close()
    # The same sampling seed and start: exactly one optimizer step was made, whatever had to be asked again.
    assert same_norm == pytest.approx(norm, rel=1e-4)
    assert float((found - expected).abs().max()) < 1e-4


def test_a_service_that_never_recovers_is_given_up(server: TinkerServer, model: Path) -> None:
    with FaultyProxy(server.url) as proxy:
        policy = connect(proxy.url, model)
        samples = policy.sample(PROMPTS, max_new_tokens=16, seed=1)
        proxy.fail("/", 503)
        began = time.monotonic()
        with pytest.raises(
            ServiceError, match=r"went away during an optimizer step: it answers 503 for 6 s.*last checkpoint"
        ):
            policy.update(samples, torch.ones(len(PROMPTS)), learning_rate=1e-3)
        assert time.monotonic() - began < 300


def test_a_service_that_dies_in_the_middle_is_given_up(server: TinkerServer, model: Path) -> None:
    proxy = FaultyProxy(server.url)
    policy = connect(proxy.url, model)
    policy.sample(PROMPTS, max_new_tokens=16, seed=1)
    proxy.close()
    began = time.monotonic()
    with pytest.raises(ServiceError, match="went away during sampling"):
        policy.sample(PROMPTS, max_new_tokens=16, seed=2)
    assert time.monotonic() - began < 300


def test_a_call_that_takes_for_ever_is_given_up(server: TinkerServer, model: Path) -> None:
    policy = connect(server.url, model, timeout_s=3.0)
    with pytest.raises(ServiceError, match="has taken 3 s"):
        policy.service.call_with_watch("waiting", lambda: time.sleep(600))
    policy.close()


def test_what_the_service_refuses_is_said_in_its_words(server: TinkerServer, model: Path) -> None:
    policy = connect(server.url, model)

    def sample_elsewhere() -> None:
        policy.sample_from_saved_weights("tinker://nobody/weights-that-are-not-there")
        policy.sample(PROMPTS[:1], max_new_tokens=2, seed=1)

    with pytest.raises(ServiceError, match=r"opening saved weights|sampling"):
        sample_elsewhere()
    state = {"path": "tinker://nobody/weights/none", "steps": 1, "model": str(model), "lora_rank": 8}
    with pytest.raises(ServiceError, match="loading a checkpoint"):
        policy.load_service_state(state)
    with pytest.raises(InputError, match="not a checkpoint"):
        policy.load_service_state({"policy": {}})
    policy.close()


def test_numbers_that_would_ruin_the_weights_are_never_sent(server: TinkerServer, model: Path) -> None:
    policy = connect(server.url, model)
    samples = policy.sample(PROMPTS[:4], max_new_tokens=4, seed=1)
    for advantages, said in ((torch.tensor([0.0, float("nan"), 0, 0]), "not finite"), (torch.zeros(3), "shape")):
        with pytest.raises(InputError, match=said):
            policy.update(samples, advantages, learning_rate=1e-3)
    warm = policy.sample(PROMPTS[:4], max_new_tokens=4, seed=1, temperature=0.5)
    with pytest.raises(InputError, match=r"temperature 0\.5"):
        policy.update(warm, torch.zeros(4), learning_rate=1e-3)
    with pytest.raises(InputError, match="learning rate"):
        policy.update(samples, torch.zeros(4), learning_rate=-1.0)
    policy.close()
