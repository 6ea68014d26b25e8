"""Can this run start at all? Key, service, model, tokenizer, renderer and data are asked for within seconds, before
anything is recorded or paid for; every answer is a sentence."""

from __future__ import annotations

import importlib
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from rollonce.errors import InputError
from rollonce.experiments.derive import ExperimentSettings
from rollonce.experiments.evaluate import run_within_seconds

_TOKENIZER = ("transformers.models.auto.tokenization_auto",)
SERVICE_S, HUB_S = 9.0, 20.0
"""Seconds until a service, or the hub, counts as not there."""


class Readiness(NamedTuple):
    """One thing that the run needs: whether it is there, and what was found."""

    what: str
    ready: bool
    sentence: str


def check_readiness(settings: ExperimentSettings) -> list[Readiness]:
    """Everything that can be asked without spending anything."""
    if settings.tasks == "gsm8k:hub" or not (settings.policy == "embedded" or Path(settings.policy).is_dir()):
        go_offline_without_hub()
    policy = _local_readiness(settings) if settings.engine == "local" else _service_readiness(settings)
    return [*policy, _check_task_data(settings)]


def go_offline_without_hub(seconds: float = 5.0) -> None:
    """Where nobody answers at the hub's address, let its clients look into their caches alone, in this process and in
    those that it starts: they would try for minutes else, and print what they think of it."""
    url = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    port = url.port or (443 if url.scheme == "https" else 80)
    if os.environ.get("HF_HUB_OFFLINE") == "1" or any(os.environ.get(k) for k in ("HTTPS_PROXY", "https_proxy")):
        return
    reached = run_within_seconds(seconds, lambda: _can_connect_to_host(url.hostname or "", port))
    if reached:
        return
    os.environ["HF_HUB_OFFLINE"] = "1"
    for module, name in (("huggingface_hub.constants", "HF_HUB_OFFLINE"), ("datasets.config", "HF_HUB_OFFLINE")):
        if module in sys.modules:
            setattr(sys.modules[module], name, True)


def _can_connect_to_host(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5.0).close()
    except OSError:
        return False
    return True


def refuse_unready_run(found: list[Readiness]) -> None:
    """Stop before the first stage, with everything that is missing at once.

    Raises:
        InputError: something is missing.
    """
    missing = [f"{r.what}: {r.sentence}" for r in found if not r.ready]
    if missing:
        raise InputError("this run cannot start yet:\n  " + "\n  ".join(missing))


def _ask_within_seconds(
    what: str, seconds: float, work: Callable[[], str], who: str, *, needs: tuple[str, ...] = ()
) -> Readiness:
    """``needs``: modules that are imported first, which is this machine's time and nobody's silence."""
    try:
        for module in needs:
            importlib.import_module(module)
        said = run_within_seconds(seconds, work)
    except ImportError as error:
        return Readiness(what, False, f"{error.name or error} is not installed: pip install 'rollonce[tinker]'")
    except InputError as error:
        return Readiness(what, False, str(error))
    except Exception as error:  # whatever a client, a hub or a tokenizer raises is an answer too
        first = (str(error).strip().splitlines() or [""])[0][:200]
        return Readiness(what, False, f"{type(error).__name__}: {first}")
    if said is None:
        return Readiness(what, False, f"{who} did not answer within {seconds:g} s")
    return Readiness(what, True, said)


def _local_readiness(settings: ExperimentSettings) -> Iterator[Readiness]:
    if settings.policy == "embedded":
        yield Readiness("policy", True, "embedded in this package")
    else:
        yield _ask_within_seconds(
            "tokenizer", HUB_S, lambda: _check_tokenizer(settings.policy), "the hub", needs=_TOKENIZER
        )


def _service_readiness(settings: ExperimentSettings) -> Iterator[Readiness]:
    from rollonce.policies.tinker_service import TinkerService, api_key_from_environment, load_tinker_sdk

    def check_service_key() -> str:
        load_tinker_sdk()
        api_key_from_environment()
        return "there is one in TINKER_API_KEY"

    answer = _ask_within_seconds("key", HUB_S, check_service_key, "the SDK", needs=("tinker",))
    yield answer
    if answer.ready:
        service = TinkerService(settings.base_url, connect_s=SERVICE_S)
        yield _ask_within_seconds(
            "service", SERVICE_S + 8, lambda: _check_service_model(service, settings.policy), service.name
        )
        service.close()
    tokenizer = _ask_within_seconds(
        "tokenizer", HUB_S, lambda: _check_tokenizer(settings.policy), "the hub", needs=_TOKENIZER
    )
    yield tokenizer
    cookbook = ("tinker_cookbook.renderers", "tinker_cookbook.recipes.math_rl.math_env")
    needs = cookbook if settings.engine == "cookbook" else ()
    yield _ask_within_seconds(
        "renderer", HUB_S, lambda: _check_renderer(settings, tokenizer.ready), "the cookbook", needs=needs
    )


def _check_service_model(service: Any, model: str) -> str:
    models = service.supported_models()
    if models is not None and model not in models:
        raise InputError(
            f"the service at {service.name} does not have {model!r}; it has {', '.join(sorted(models)[:12]) or 'none'}"
        )
    listed = "has the model" if models is not None else "does not say which models it has"
    return f"{service.name} answers, takes the key, and {listed}"


def _check_tokenizer(policy: str) -> str:
    from rollonce.policies.tinker_render import load_tokenizer

    local = Path(policy).expanduser().is_dir()
    tokenizer = load_tokenizer(policy, local_only=local)
    return f"{len(tokenizer):,} tokens, from {'a directory' if local else 'the hub or its cache'}"


def _check_renderer(settings: ExperimentSettings, tokenizer_ready: bool) -> str:
    from rollonce.experiments.engines.cookbook import explain_missing_renderer

    if settings.renderer is None:
        raise InputError(explain_missing_renderer(settings.policy))
    name = settings.renderer.removeprefix("cookbook:")
    if settings.engine == "tinker" and name in ("text", "chat"):
        return name
    from rollonce.policies.tinker_render import load_tokenizer, make_prompt_renderer

    if not tokenizer_ready:
        return f"{name}, not tried without a tokenizer"
    local = Path(settings.policy).expanduser().is_dir()
    make_prompt_renderer(f"cookbook:{name}", load_tokenizer(settings.policy, local_only=local))
    thinking = "thinking is off" if "disable_thinking" in name else "the model may think before it answers"
    return f"{name} of tinker-cookbook ({thinking}; {settings.max_tokens} tokens in all)"


def _check_task_data(settings: ExperimentSettings) -> Readiness:
    source, _, place = settings.tasks.partition(":")
    if source != "gsm8k":
        return Readiness("data", True, settings.tasks[:80])
    from rollonce.experiments.engines.cookbook_tasks import read_gsm8k_rows

    def count_gsm8k_rows() -> str:
        return " and ".join(
            f"{len(read_gsm8k_rows(settings.tasks, split)):,} {split} rows" for split in ("train", "test")
        )

    hub = place == "hub"
    return _ask_within_seconds(
        "data", HUB_S if hub else 60.0, count_gsm8k_rows, "the hub", needs=("datasets",) if hub else ()
    )
