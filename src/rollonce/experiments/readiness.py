"""Can this run start at all? Key, service, model, tokenizer, renderer and data are asked for within seconds, before
anything is recorded or paid for; every answer is a sentence.

The service, the hub's tokenizer and the hub's data are asked at the same time: silence costs the longest wait and not
the sum. What takes seconds to import (torch, transformers, datasets) is imported where an answer needs it: whether a
package is there at all, whether a hub's files are there at all, is asked without.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from rollonce.errors import InputError
from rollonce.experiments.derive import ExperimentSettings
from rollonce.experiments.evaluate import run_within_seconds

SERVICE_S, HUB_S = 9.0, 20.0
"""Seconds until a service, or the hub, counts as not there."""
_RECIPE = ("tinker_cookbook", "tinker", "torch", "transformers", "datasets", "chz", "pylatexenc", "sympy")
"""What the stock recipe and its grader import."""
_TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json", "tokenizer.model", "vocab.json")
_LIGHT_TOKENIZER = ("transformers.tokenization_utils_tokenizers",)
"""Where transformers has its class for a ``tokenizer.json``."""
_IMPORTING = threading.Lock()  # two threads that import the same packages from two ends can meet a half-made module


class Readiness(NamedTuple):
    """One thing that the run needs: whether it is there, and what was found."""

    what: str
    ready: bool
    sentence: str


def check_readiness(settings: ExperimentSettings) -> list[Readiness]:
    """Everything that can be asked without spending anything; the answers come in a fixed order."""
    local = settings.policy == "embedded" or Path(settings.policy).expanduser().is_dir()
    with ThreadPoolExecutor(3) as pool:
        asks_hub = settings.tasks == "gsm8k:hub" or not local
        hub = pool.submit(go_offline_without_hub) if asks_hub else None

        def once_hub_is_known(ask: Callable[[ExperimentSettings], list[Readiness]]) -> list[Readiness]:
            if hub is not None:
                hub.result()
            return ask(settings)

        data = pool.submit(once_hub_is_known, _check_task_data)
        if settings.engine == "local" and settings.policy == "embedded":
            return [Readiness("policy", True, "embedded in this package"), *data.result()]
        tokens = pool.submit(once_hub_is_known, _ask_for_tokens)
        if settings.engine == "local":
            return [*tokens.result(), *data.result()]
        key = _ask_within_seconds("key", HUB_S, _check_service_key, "the SDK")
        service = _ask_service(settings) if key.ready else []
        return [key, *service, *tokens.result(), *data.result()]


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
        with _IMPORTING:
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


def _check_installed(*modules: str) -> None:
    """Raises `ImportError` for one that is not there; none of them is imported."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise ImportError(name=module)


def _check_service_key() -> str:
    from rollonce.policies.tinker_service import api_key_from_environment

    _check_installed("tinker")
    api_key_from_environment()
    return "there is one in TINKER_API_KEY"


def _ask_service(settings: ExperimentSettings) -> list[Readiness]:
    from rollonce.policies.tinker_service import TinkerService

    service = TinkerService(settings.base_url, connect_s=SERVICE_S)
    try:
        return [
            _ask_within_seconds(
                "service", SERVICE_S + 8, lambda: _check_service_model(service, settings.policy), service.name
            )
        ]
    finally:
        service.close()


def _check_service_model(service: Any, model: str) -> str:
    models = service.supported_models()
    if models is not None and model not in models:
        raise InputError(
            f"the service at {service.name} does not have {model!r}; it has {', '.join(sorted(models)[:12]) or 'none'}"
        )
    listed = "has the model" if models is not None else "does not say which models it has"
    return f"{service.name} answers, takes the key, and {listed}"


def _ask_for_tokens(settings: ExperimentSettings) -> list[Readiness]:
    """The tokenizer, and the renderer, for which nothing is imported without a tokenizer."""
    loaded: list[Any] = []

    def load() -> str:
        tokenizer = _load_tokenizer_lightly(settings.policy)
        loaded.append(tokenizer)
        place = "a directory" if Path(settings.policy).expanduser().is_dir() else "the hub or its cache"
        return f"{len(tokenizer):,} tokens, from {place}"

    found = _ask_within_seconds("tokenizer", HUB_S, lambda: _check_tokenizer_files(settings.policy), "the hub")
    if found.ready:
        found = _ask_within_seconds("tokenizer", HUB_S, load, "the hub", needs=_LIGHT_TOKENIZER)
    if settings.engine == "local":
        return [found]
    tokenizer = loaded[0] if found.ready else None
    tried = tokenizer is not None and settings.renderer not in (None, "text", "chat")
    needs = ("tinker_cookbook.renderers",) if tried else ()
    work = lambda: _check_renderer(settings, tokenizer)  # noqa: E731
    return [found, _ask_within_seconds("renderer", HUB_S, work, "the cookbook", needs=needs)]


def _check_tokenizer_files(policy: str) -> str:
    """Any file of a tokenizer, from a directory, the hub or its cache: without transformers, whose import takes longer
    than the answer.

    Raises:
        InputError: there is none.
    """
    _check_installed("transformers")
    if Path(policy).expanduser().is_dir():
        return "a directory"
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    why = ""
    for name in _TOKENIZER_FILES:
        try:
            return hf_hub_download(policy, name)
        except LocalEntryNotFoundError:
            why = why or "the hub does not answer, and its cache does not hold it"
        except (OSError, ValueError) as error:  # no such repository, no such file, no repository's name
            why = why or str(error).strip().partition("\n")[0][:200]
    raise InputError(f"no tokenizer can be had for {policy!r}: {why}")


def _load_tokenizer_lightly(policy: str) -> Any:
    """By the class for a ``tokenizer.json``, which is half of transformers to import; by `AutoTokenizer`, as the run
    does it, where that class cannot."""
    from transformers import PreTrainedTokenizerFast

    from rollonce.policies.tinker_render import load_tokenizer

    local = Path(policy).expanduser().is_dir()
    policy = str(Path(policy).expanduser()) if local else policy
    try:
        return PreTrainedTokenizerFast.from_pretrained(policy, local_files_only=local)
    except Exception:  # whatever it is that it cannot read; the other says what is wrong
        return load_tokenizer(policy, local_only=local)


def _check_renderer(settings: ExperimentSettings, tokenizer: Any | None) -> str:
    from rollonce.policies.tinker_render import explain_missing_renderer, make_prompt_renderer

    if settings.renderer is None:
        raise InputError(explain_missing_renderer(settings.policy))
    if settings.engine == "cookbook":
        _check_installed(*_RECIPE)
    name = settings.renderer.removeprefix("cookbook:")
    if settings.engine == "tinker" and name in ("text", "chat"):
        return name
    if tokenizer is None:
        return f"{name}, not tried without a tokenizer"
    make_prompt_renderer(f"cookbook:{name}", tokenizer)
    thinking = "thinking is off" if "disable_thinking" in name else "the model may think before it answers"
    return f"{name} of tinker-cookbook ({thinking}; {settings.max_tokens} tokens in all)"


def _check_task_data(settings: ExperimentSettings) -> list[Readiness]:
    source, _, place = settings.tasks.partition(":")
    if source != "gsm8k":
        return [Readiness("data", True, settings.tasks[:80])]
    from rollonce.experiments.engines.cookbook_tasks import read_gsm8k_rows

    def count_gsm8k_rows() -> str:
        return " and ".join(
            f"{len(read_gsm8k_rows(settings.tasks, split)):,} {split} rows" for split in ("train", "test")
        )

    if place != "hub":
        return [_ask_within_seconds("data", 60.0, count_gsm8k_rows, "the disk")]
    cached = _ask_within_seconds("data", HUB_S, _check_gsm8k_obtainable, "the hub")
    if not cached.ready:
        return [cached]
    return [_ask_within_seconds("data", HUB_S, count_gsm8k_rows, "the hub", needs=("datasets",))]


def _check_gsm8k_obtainable() -> str:
    """Whether there is a hub to ask, or a cache that could hold the rows: without ``datasets``, whose import takes
    longer than the answer.

    Raises:
        InputError: neither.
    """
    _check_installed("datasets")
    if os.environ.get("HF_HUB_OFFLINE") != "1":
        return "the hub"
    from huggingface_hub import constants

    caches = [os.environ.get("HF_DATASETS_CACHE") or Path(constants.HF_HOME) / "datasets", constants.HF_HUB_CACHE]
    if not any(found for cache in caches for found in Path(cache).glob("*openai*gsm8k*")):
        raise InputError("GSM8K cannot be had: the hub does not answer, and its cache is empty; give --gsm8k DIR")
    return "its cache"
