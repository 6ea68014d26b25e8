"""A connection to a Tinker-compatible service (Tinker, Modal's Spindle, SkyRL's server ...) that fails in sentences and
in bounded time.

The SDK retries on its own, with backoff: some requests for five minutes, sampling for two hours, the fetching of a
result for ever. That is right for a busy service and wrong for one that isn't there. So every call runs beside a watch,
which asks the service's ``healthz`` and gives up when it has not been well for ``patience_s`` on end, or when one call
has taken ``timeout_s``.
"""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from typing import Any, TypeVar

from rollonce.errors import InputError, MissingExtraError

T = TypeVar("T")

_POLL_S = 2.0
_DEFAULT_URL = "https://tinker.thinkingmachines.dev/services/tinker-prod"  # the SDK's own, asked for its health too


class ServiceError(InputError):
    """The service is not there, refuses, or went away: a sentence with what to do."""


def api_key_from_environment() -> str | None:
    """The key in ``TINKER_API_KEY``, None where ``TINKER_CREDENTIAL_CMD`` is to make one.

    Only the environment is asked, and nobody here writes it anywhere.

    Raises:
        InputError: neither is set, or the key has not the shape that the SDK insists on.
    """
    key = os.environ.get("TINKER_API_KEY", "")
    if not key:
        if os.environ.get("TINKER_CREDENTIAL_CMD"):
            return None
        raise InputError(
            "no key for the Tinker-compatible service: set TINKER_API_KEY (a server that checks none takes tml-dummy)"
        )
    if not key.startswith(("tml-", "eyJ")):
        raise InputError(
            "the key in TINKER_API_KEY does not start with tml-, which the tinker SDK insists on; check what was "
            "exported"
        )
    return key


def redact_service_key(text: str) -> str:
    """The text with the key, should a service have echoed it, struck out."""
    key = os.environ.get("TINKER_API_KEY", "")
    return text.replace(key, "[key]") if key else text


def load_tinker_sdk() -> Any:
    """The ``tinker`` package.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import tinker  # type: ignore
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "a Tinker-compatible service", (error.name or "tinker").partition(".")[0], "tinker"
        ) from error
    return tinker


class _Status(Exception):
    """An answer's status, for `TinkerService._translate_error`."""

    def __init__(self, status_code: int) -> None:
        super().__init__(f"status {status_code}")
        self.status_code = status_code


class TinkerService:
    """One session with a service.

    Args:
        base_url: Its address, default ``TINKER_BASE_URL``, default the SDK's own (Thinking Machines').
        patience_s: Seconds that it may be unreachable, or answer its health check with 429 or 5xx, before a call is
            given up.
        timeout_s: Seconds that one call may take altogether.
        connect_s: Seconds to try at the very start, where a wrong address is likelier than a busy server.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        patience_s: float = 120.0,
        timeout_s: float = 3600.0,
        connect_s: float = 10.0,
    ) -> None:
        if not (patience_s > 0 and timeout_s > 0 and connect_s > 0):
            raise InputError(
                f"patience_s, timeout_s and connect_s must be positive, not {patience_s}, {timeout_s} and {connect_s}"
            )
        self.url = (base_url or os.environ.get("TINKER_BASE_URL") or "").rstrip("/") or None
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise InputError(f"the service's address must begin with http:// or https://; {self.url!r} does not")
        self.patience_s, self.timeout_s, self.connect_s = patience_s, timeout_s, connect_s
        self._client: Any = None

    @property
    def name(self) -> str:
        """For messages and records: the address without any key."""
        return self.url or "the default Tinker service"

    @property
    def _address_or_default(self) -> str:
        return self.url or _DEFAULT_URL

    def supported_models(self, timeout: float = 5.0) -> list[str] | None:
        """Names of the models that it has, by one request without a session; None if it does not say.

        Raises:
            ServiceError: nobody is there, or the key is refused.
        """
        request = urllib.request.Request(f"{self._address_or_default}/api/v1/get_server_capabilities")
        key = api_key_from_environment()
        if key is not None:
            request.add_header("X-API-Key", key)
        self._wait_until_well(self.connect_s)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                told = json.load(answer)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in (401, 402, 403):
                raise self._translate_error("asking for its models", _Status(error.code)) from None
            return None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise ServiceError(f"the service at {self.name} does not say which models it has: {reason}") from None
        models = told.get("supported_models") if isinstance(told, dict) else None
        if not isinstance(models, list):
            return None
        return [m if isinstance(m, str) else str(m.get("model_name")) for m in models]

    @property
    def service_client(self) -> Any:
        """The SDK's ServiceClient, with a session that is open: a wrong key is known here, before anything is asked of
        it."""
        if self._client is None:
            api_key_from_environment()
            tinker = load_tinker_sdk()
            self._wait_until_well(self.connect_s)
            options = {} if self.url is None else {"base_url": self.url}

            def open_service_session() -> Any:
                client = tinker.ServiceClient(**options)
                getattr(client, "holder", None)  # since 0.38 the session itself waits for its first use
                return client

            self._client = self.call_with_watch("opening a session", open_service_session)
        return self._client

    def health_check_trouble(self, timeout: float = 5.0) -> str | None:
        """What is wrong with the service's health check now; None if it is well."""
        try:
            with urllib.request.urlopen(f"{self._address_or_default}/api/v1/healthz", timeout=timeout):
                return None
        except urllib.error.HTTPError as error:
            error.close()
            # A 404 or 401 comes from something that is there; the SDK will say what it thinks of the request itself.
            return f"it answers {error.code}" if error.code == 429 or error.code >= 500 else None
        except (OSError, ValueError) as error:
            return f"{getattr(error, 'reason', None) or error}"

    def _wait_until_well(self, seconds: float) -> None:
        deadline, pause = time.monotonic() + seconds, 0.25
        # No single try may outlast what is left: an address that swallows packets answers nothing at all.
        while (trouble := self.health_check_trouble(max(0.5, min(5.0, deadline - time.monotonic())))) is not None:
            if time.monotonic() + pause > deadline:
                raise ServiceError(
                    f"no Tinker-compatible service at {self.name}: {trouble} (tried for {seconds:g} s). Start it, or "
                    "correct --base-url or TINKER_BASE_URL"
                )
            time.sleep(pause)
            pause = min(2 * pause, 4.0)

    def call_with_watch(self, what: str, function: Callable[[], T]) -> T:
        """The function's result, run beside the watch.

        Args:
            what: For the message: "sampling", "an optimizer step".
            function: Calls the SDK; a future that it returns is waited for.

        Raises:
            ServiceError: it failed, or took too long, or the service went away.
        """
        result: Future[T] = Future()

        def set_result_of_call() -> None:
            try:
                result.set_result(wait_for_result(function()))
            except BaseException as error:
                result.set_exception(error)

        # A daemon: a call that never returns must not keep the process from ending with its message.
        threading.Thread(target=set_result_of_call, name=f"tinker {what}", daemon=True).start()
        began, unwell_since = time.monotonic(), None
        while True:
            try:
                return result.result(timeout=_POLL_S)
            except NotYet:
                if result.done():  # just now, or with a time-out of the request's own
                    if isinstance(result.exception(), NotYet):
                        raise self._translate_error(what, TimeoutError("the request timed out")) from None
                    continue
                now = time.monotonic()
                trouble = self.health_check_trouble()
                unwell_since = None if trouble is None else (unwell_since or now)
                if unwell_since is not None and now - unwell_since >= self.patience_s:
                    raise ServiceError(
                        f"the service at {self.name} went away during {what}: {trouble} for {self.patience_s:g} s."
                        " What it was doing may or may not have happened; start it again and resume from the last "
                        "checkpoint"
                    ) from None
                if now - began >= self.timeout_s:
                    raise ServiceError(
                        f"{what} at {self.name} has taken {self.timeout_s:g} s and is given up; the service answers "
                        "its health check, so it may only be overloaded: resume from the last checkpoint, with a "
                        "longer timeout_s if need be"
                    ) from None
            except InputError:
                raise
            except Exception as error:
                raise self._translate_error(what, error) from error

    def _translate_error(self, what: str, error: BaseException) -> ServiceError:
        status = getattr(error, "status_code", None)
        said = redact_service_key(str(error).strip()).splitlines()
        detail = f"{type(error).__name__}: {said[0][:300]}" if said else type(error).__name__
        if status in (401, 403):
            text = (
                f"the service at {self.name} refuses the key in TINKER_API_KEY ({status}); check the key and what it "
                "may use"
            )
        elif status == 402:
            text = f"the service at {self.name} wants payment first (402) during {what}: {detail}"
        elif status == 404:
            text = (
                f"the service at {self.name} does not know what {what} asked for (restarted? then resume from a "
                f"checkpoint): {detail}"
            )
        elif status == 429 or (isinstance(status, int) and status >= 500):
            text = (
                f"the service at {self.name} answered {status} to {what}, again and again: {detail}. Resume from the "
                "last checkpoint later"
            )
        else:
            text = f"{what} failed at {self.name}: {detail}"
        return ServiceError(text)

    def close(self) -> None:
        """End the session, so that the service frees what it held; never an error."""
        client, self._client = self._client, None
        close = getattr(client, "close", None)
        if close is None:
            return
        done: Future[None] = Future()

        def close_session() -> None:
            try:
                try:
                    wait_for_result(close("success"))
                except TypeError:  # SDKs before 0.38 take no status
                    wait_for_result(close())
            except Exception:  # the run is over and saved; a session that could not be closed times out on the service
                pass
            finally:
                done.set_result(None)

        threading.Thread(target=close_session, daemon=True).start()
        try:
            done.result(timeout=10)
        except NotYet:
            return


def wait_for_result(value: Any) -> Any:
    """What a call came to: SDK 0.24 returns clients where 0.38 returns futures of them, so wait where there is
    something to wait for."""
    depth = 0
    while hasattr(value, "result") and callable(value.result) and depth < 3:
        value, depth = value.result(), depth + 1
    return value
