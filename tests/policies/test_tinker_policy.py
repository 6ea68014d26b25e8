"""The Tinker policy's own arithmetic and manners on a stand-in of the SDK; `tests/tinker` runs it against a real
server."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rollonce.errors import InputError, MissingExtraError
from rollonce.policies.samples import Samples, pad_rollouts_to_samples, unpadded_rollout_rows
from rollonce.policies.tinker_datums import samples_to_datums
from rollonce.policies.tinker_policy import AdamSettings, TinkerPolicy
from rollonce.policies.tinker_render import make_prompt_renderer
from rollonce.policies.tinker_service import (
    ServiceError,
    TinkerService,
    load_tinker_sdk,
    redact_service_key,
    wait_for_result,
)


class Tokenizer:
    """One token a character."""

    pad_token_id, eos_token_id, chat_template = 0, 1, None

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [ord(c) for c in text]}

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return "".join(chr(i) for i in ids if i > 1)


@dataclass
class Datum:
    model_input: list[int]
    loss_fn_inputs: dict[str, torch.Tensor]


@dataclass
class AdamParams:
    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    model_fields = {
        "learning_rate": 0,
        "beta1": 0,
        "beta2": 0,
        "eps": 0,
        "weight_decay": 0,
    }  # an SDK without grad_clip_norm


@dataclass
class Trainer:
    """Remembers what it was sent; its log-probabilities are -1 a token."""

    sent: list[Any] = field(default_factory=list)

    def forward_backward(self, data: list[Datum], loss_fn: str, loss_fn_config: Any) -> Any:
        self.sent.append((data, loss_fn, loss_fn_config))
        outputs = [{"logprobs": SimpleNamespace(data=[-1.0 - i for i in range(len(d.model_input))])} for d in data]
        return SimpleNamespace(loss_fn_outputs=outputs)

    def optim_step(self, params: AdamParams) -> Any:
        self.sent.append(params)
        return SimpleNamespace(metrics={"skyrl.ai/grad_norm": 0.5, "note": "text"})


@pytest.fixture(autouse=True)
def sdk(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("tinker")
    module.__dict__.update(
        ModelInput=SimpleNamespace(from_ints=list),
        Datum=Datum,
        TensorData=SimpleNamespace(from_torch=lambda x: x),
        AdamParams=AdamParams,
        __version__="stand-in",
    )
    monkeypatch.setitem(sys.modules, "tinker", module)
    monkeypatch.setenv("TINKER_API_KEY", "tml-dummy")
    monkeypatch.delenv("TINKER_BASE_URL", raising=False)
    return module


def policy(**options: Any) -> TinkerPolicy:
    tokenizer = Tokenizer()
    made = TinkerPolicy(
        TinkerService("http://nowhere"),
        "m",
        tokenizer,
        make_prompt_renderer("text", tokenizer),
        **{"loss": "ppo", **options},
    )
    made._trainer = Trainer()
    return made


# Two rollouts: prompt of 3 and response of 2; prompt of 2 and response of 4.
SAMPLES = pad_rollouts_to_samples(
    prompts=["abc", "xy"],
    texts=["d", "zzzz"],
    prompt_ids=[[7, 8, 9], [5, 6]],
    response_ids=[[3, 1], [4, 4, 4, 4]],
    log_probs=[[-0.5, -0.25], [-1, -2, -3, -4]],
    truncated=[False, True],
    temperature=1.0,
    pad_id=0,
)


def test_padding_and_back() -> None:
    assert unpadded_rollout_rows(SAMPLES) == [
        ([7, 8, 9], [3, 1], [-0.5, -0.25]),
        ([5, 6], [4, 4, 4, 4], [-1, -2, -3, -4]),
    ]
    assert SAMPLES.prompt_ids_BP.tolist() == [[7, 8, 9], [0, 5, 6]]  # left
    assert SAMPLES.response_ids_BT.tolist() == [[3, 1, 0, 0], [4, 4, 4, 4]]  # right
    assert SAMPLES.lengths_B.tolist() == [2, 4]
    assert SAMPLES.n_tokens == 6


def test_a_datum_predicts_each_token_from_those_before_and_blames_no_prompt_token() -> None:
    first, second = samples_to_datums(SAMPLES, torch.tensor([2.0, -1.0]))
    assert first.model_input == [7, 8, 9, 3]
    assert first.loss_fn_inputs["target_tokens"].tolist() == [8, 9, 3, 1]
    assert first.loss_fn_inputs["logprobs"].tolist() == [0, 0, -0.5, -0.25]
    assert first.loss_fn_inputs["advantages"].tolist() == [0, 0, 2, 2]
    assert second.loss_fn_inputs["advantages"].tolist() == [0, -1, -1, -1, -1]


def test_advantages_a_token() -> None:
    per_token = torch.tensor([[1.0, 2.0, 9.0, 9.0], [3.0, 4.0, 5.0, 6.0]])  # what stands in the padding is not sent
    first, second = samples_to_datums(SAMPLES, per_token)
    assert first.loss_fn_inputs["advantages"].tolist() == [0, 0, 1, 2]
    assert second.loss_fn_inputs["advantages"].tolist() == [0, 3, 4, 5, 6]


def test_sequence_mean_undoes_a_service_s_division_by_length() -> None:
    """What such a service computes, mean over positions and then over datums, must be one constant times the sum over
    all tokens."""
    gains = [
        torch.tensor([0.3, -0.2, 0.7, 0.1]),
        torch.tensor([0.5, 0.4, -0.6, 0.9, 0.2]),
    ]  # any per-position derivative
    advantages = torch.tensor([2.0, -1.0])

    def totals(reduction: str) -> tuple[float, float]:
        data = samples_to_datums(SAMPLES, advantages, reduction=reduction)
        products = [d.loss_fn_inputs["advantages"] * g for d, g in zip(data, gains, strict=True)]
        return float(sum(p.sum() for p in products)), float(np.mean([float(p.mean()) for p in products]))

    plain_sum, _ = totals("sum")
    _, served_mean = totals("sequence_mean")
    assert served_mean == pytest.approx(plain_sum / (2 * 4.5))  # 2 datums of 4.5 positions on average
    _, wrong = totals("sum")
    assert wrong != pytest.approx(plain_sum / (2 * 4.5))


def test_an_update_sends_everything_explicitly_and_gives_back_the_responses_log_probabilities() -> None:
    p = policy(adam=AdamSettings(0.8, 0.9, 1e-6, 0.1, 0.0), loss_config={"clip_low_threshold": 0.8})
    told = p.update(SAMPLES, torch.tensor([1.0, 1.0]), learning_rate=0.25)
    (data, loss, config), adam = p._trainer.sent
    assert (len(data), loss, config) == (2, "ppo", {"clip_low_threshold": 0.8})
    assert adam == AdamParams(0.25, 0.8, 0.9, 1e-6, 0.1)
    # Positions 0, 1 of the first datum are the prompt's; its response stands at 2 and 3.
    assert told.log_probs_BT.tolist() == [[-3, -4, 0, 0], [-2, -3, -4, -5]]
    assert told.grad_norm == 0.5
    assert told.metrics == {"skyrl.ai/grad_norm": 0.5}
    assert p.steps == 1


@pytest.mark.parametrize(
    ("advantages", "changes", "said"),
    [
        (torch.zeros(3), {}, r"shape \(2,\) or \(2, 4\), not \(3,\)"),
        (torch.tensor([1.0, float("inf")]), {}, "not finite"),
        (torch.zeros(2), {"temperature": 0.7}, r"temperature 0\.7"),
    ],
)
def test_what_is_never_sent(advantages: torch.Tensor, changes: dict[str, Any], said: str) -> None:
    from dataclasses import replace

    p = policy()
    with pytest.raises(InputError, match=said):
        p.update(replace(SAMPLES, **changes), advantages, learning_rate=0.1)
    assert not p._trainer.sent


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"loss": "stable_reinforce"}, "provenance"),
        ({"loss": "cross_entropy"}, "importance_sampling, ppo, cispo"),
        ({"reduction": "mean"}, "sum, sequence_mean"),
        ({"lora_rank": 0}, "rank"),
        ({"prompt_template": "no place"}, "prompt"),
    ],
)
def test_settings_that_make_no_sense(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        policy(**options)


def two_rollouts(response_ids: list[list[int]], log_probs: list[list[float]]) -> Samples:
    return pad_rollouts_to_samples(
        prompts=["a", "b"],
        texts=["", "x"],
        prompt_ids=[[5], [6]],
        response_ids=response_ids,
        log_probs=log_probs,
        truncated=[True, False],
        temperature=1.0,
        pad_id=0,
    )


def test_rows_with_nothing_to_learn_are_left_out_and_keep_their_place() -> None:
    samples = two_rollouts([[], [7]], [[], [-1.0]])
    p = policy()
    (datum,) = samples_to_datums(samples, torch.tensor([1.0, 2.0]))
    assert datum.model_input == [6]
    assert p.update(samples, torch.tensor([1.0, 2.0]), learning_rate=0.1).log_probs_BT.tolist() == [[0], [-1]]
    empty = two_rollouts([[], []], [[], []])
    with pytest.raises(InputError, match="none of the rollouts"):
        samples_to_datums(empty, torch.zeros(2))


def test_renderers() -> None:
    tokenizer = Tokenizer()
    assert list(make_prompt_renderer("text", tokenizer).encode("hi")) == [104, 105]
    for name, said in (("chat", "no chat template"), ("nonsense", "cookbook:NAME"), ("cookbook:", "no renderer")):
        with pytest.raises(InputError, match=said):
            make_prompt_renderer(name, tokenizer)
    with pytest.raises(InputError, match="no place for a system message"):
        make_prompt_renderer("text", tokenizer, system="be brief")
    with pytest.raises(InputError, match="no tokens"):
        policy(prompt_template="{prompt}").encode_prompt("")


# ---- the connection


def test_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    assert redact_service_key("Bearer tml-dummy was refused") == "Bearer [key] was refused"
    monkeypatch.setenv("TINKER_API_KEY", "sk-1")
    with pytest.raises(InputError, match="tml-"):
        _ = TinkerService("http://127.0.0.1:9").service_client
    monkeypatch.delenv("TINKER_API_KEY")
    monkeypatch.delenv("TINKER_CREDENTIAL_CMD", raising=False)
    with pytest.raises(InputError, match="set TINKER_API_KEY"):
        _ = TinkerService("http://127.0.0.1:9").service_client


def test_facts_hold_no_key() -> None:
    facts = policy().facts()
    assert "tml-dummy" not in str(facts)
    assert facts["service"] == "http://nowhere"
    assert facts["adam"]["eps"] == 1e-8


def test_without_the_sdk_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tinker", None)
    with pytest.raises(MissingExtraError, match=r"rollonce\[tinker\]"):
        load_tinker_sdk()


class _Status(Exception):
    def __init__(self, status: int, said: str = "no") -> None:
        self.status_code = status
        super().__init__(said)


def failing(error: Exception) -> Callable[[], Any]:
    def call() -> Any:
        raise error

    return call


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (_Status(401), "refuses the key in TINKER_API_KEY"),
        (_Status(402), "payment"),
        (_Status(404), "does not know what sampling asked for"),
        (_Status(429), "answered 429 to sampling, again and again"),
        (_Status(503), "answered 503"),
        (
            _Status(400, "prompt too long\nTraceback ..."),
            "sampling failed at http://nowhere: _Status: prompt too long$",
        ),
        (ValueError("key tml-dummy is odd"), r"ValueError: key \[key\] is odd$"),
        (TimeoutError(), "the request timed out"),
    ],
)
def test_errors_become_sentences(error: Exception, said: str) -> None:
    with pytest.raises(ServiceError, match=said):
        TinkerService("http://nowhere").call_with_watch("sampling", failing(error))


def test_our_own_errors_pass_through() -> None:
    with pytest.raises(InputError, match=r"^mine$"):
        TinkerService("http://nowhere").call_with_watch("sampling", failing(InputError("mine")))


def test_the_watch_gives_up_on_a_service_that_is_unwell_and_waits_for_one_that_is_only_slow() -> None:
    unwell = threading.Event()

    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503 if unwell.is_set() else 200)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Health)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    service = TinkerService(f"http://127.0.0.1:{server.server_address[1]}", patience_s=1.0)
    try:
        assert service.health_check_trouble() is None
        assert service.call_with_watch("thinking", lambda: (time.sleep(4), "done")[1]) == "done"
        unwell.set()
        assert service.health_check_trouble() == "it answers 503"
        began = time.monotonic()
        with pytest.raises(ServiceError, match="went away during thinking: it answers 503"):
            service.call_with_watch("thinking", lambda: time.sleep(600))
        assert time.monotonic() - began < 300
    finally:
        server.shutdown()
        server.server_close()


def test_futures_of_futures_are_waited_for_and_clients_are_not() -> None:
    inner = SimpleNamespace(result=lambda: 3)
    assert wait_for_result(SimpleNamespace(result=lambda: inner)) == 3
    client = SimpleNamespace(sample=None)
    assert wait_for_result(client) is client
