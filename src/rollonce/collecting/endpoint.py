"""Any OpenAI-compatible server as a policy: vLLM, SGLang, llama.cpp, transformers serve, Tinker's, a provider's.

One request is one rollout (``n=1``), so that each has its own seed and can fail, be retried and be written by itself.
What a server does not take (``seed``, ``logprobs``, ``max_tokens`` under that name) is found out from its refusal,
once, and noted in the provenance.
"""

from __future__ import annotations

import asyncio
import email.utils
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rollonce.collecting.log_probs import ServerLogProbs
from rollonce.collecting.settings import CollectSettings, Sampled
from rollonce.errors import InputError
from rollonce.tasks import Task

if TYPE_CHECKING:
    import httpx

_MOMENTARY = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
_LONGEST_WAIT = 60.0
# A server that wants us to come back later than this has said no.
_PATIENCE = 600.0


class Endpoint:
    """A model at an OpenAI-compatible server.

    Args:
        settings: ``url``, ``policy`` (the model's name) and how to ask.
        note: Takes what was found out about the server, for the provenance.
        say: Takes a sentence for the user.
        client: An httpx client to use instead of one of its own, for tests.
    """

    def __init__(
        self,
        settings: CollectSettings,
        note: dict[str, Any],
        say: Callable[[str], None],
        client: httpx.AsyncClient | None = None,
    ) -> None:
        import httpx

        self.settings, self.note, self.say = settings, note, say
        self._key = settings.read_key_from_environment()
        self.base = (settings.url or "").rstrip("/")
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        limits = httpx.Limits(max_connections=settings.concurrency, max_keepalive_connections=settings.concurrency)
        timeout = httpx.Timeout(settings.timeout, connect=min(15.0, settings.timeout))
        self.client = client or httpx.AsyncClient(
            headers=headers, limits=limits, timeout=timeout, follow_redirects=True
        )
        self.retries = 0
        self._send_seed = not str(note.get("seed", "")).startswith("refused")
        self._limit_key = note.get("limit_key", "max_tokens")
        self._log_probs = ServerLogProbs(settings, note, say)
        self._listed: list[str] | None = None
        self._answered = False

    async def close(self) -> None:
        await self.client.aclose()

    async def prepare_for_sampling(self) -> None:
        """See that the server is there, takes the key, and, where it lists its models, whether ours is among them.

        Raises:
            InputError: it is not there, or refuses the key.
        """
        import httpx

        try:
            # On a connection of its own: one on which a listing failed may be closed by the server at any moment, and
            # would cost the first rollout a try.
            answer = await self.client.get(
                f"{self.base}/models", headers={"Connection": "close"}, timeout=min(30.0, self.settings.timeout)
            )
        except httpx.InvalidURL as error:
            raise InputError(f"--url {self.settings.url!r} is no address ({error})") from None
        except (httpx.ReadError, httpx.RemoteProtocolError, httpx.ReadTimeout):
            return  # it is there, and fails to list its models: whether it answers, the first rollout will tell
        except httpx.TransportError as error:
            raise InputError(
                f"no server answers at {self.base} ({_describe_transport_error(error)}); "
                "start it, or correct --url (it ends with /v1 for most servers)"
            ) from None
        self._raise_if_key_refused(answer)
        if answer.status_code == 200:
            try:
                self._listed = [str(m["id"]) for m in answer.json()["data"]]
            except (ValueError, KeyError, TypeError):
                self._listed = None
        if self._listed:
            self.note["models"] = self._listed[:20]
            if self.settings.policy not in self._listed:
                self.say(
                    f"the server does not list {self.settings.policy!r}, but {_format_model_names(self._listed)}; "
                    "asking it all the same"
                )

    async def sample_rollout(self, task: Task, seed: int) -> Sampled:
        """One rollout of a task.

        Raises:
            InputError: the server refuses for good, or has refused for the moment too often.
        """
        answer = await self._request_with_retries(task, seed)
        self._answered = True
        try:
            body = answer.json()
            choice = body["choices"][0]
            if self.settings.api == "chat":
                text = choice["message"].get("content") or ""
            else:
                text = choice["text"] or ""
            finish = choice.get("finish_reason") or "stop"
            usage = body.get("usage") or {}
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            raise InputError(
                f"{self._describe_server()} answers what is no {self.settings.api} completion: "
                f"{self._quote_server_answer(answer)}"
            ) from None
        if not isinstance(text, str):
            text = "".join(p.get("text", "") for p in text if isinstance(p, dict))
        self._note_answering_model(body)
        if self._send_seed:
            self.note.setdefault("seed", "sent with each request; whether the server heeds it was not checked")
        return Sampled(
            text,
            prompt_tokens=_parse_token_count(usage.get("prompt_tokens")),
            tokens=_parse_token_count(usage.get("completion_tokens")),
            truncated=finish == "length",
            log_prob=self._log_probs.read_answer_log_prob(choice, _parse_token_count(usage.get("completion_tokens"))),
            finish="" if finish in ("stop", "length", "eos", "end_turn") else str(finish),
        )

    def _note_answering_model(self, body: dict[str, Any]) -> None:
        """Which model says that it answered: some servers have one and give it whatever name they are asked for."""
        for name in ("model", "system_fingerprint"):
            if isinstance(body.get(name), str) and f"answered_{name}" not in self.note:
                self.note[f"answered_{name}"] = body[name]
                # Providers answer with a dated name, transformers with a revision behind it: those are the model asked
                # for.
                if name == "model" and not body[name].startswith(self.settings.policy):
                    self.say(
                        f"asked for {self.settings.policy!r}, the server says that {body[name]!r} answers; see that it "
                        "is the one you mean"
                    )

    # ---- a request

    def _build_request_body(self, task: Task, seed: int) -> dict[str, Any]:
        s = self.settings
        text = s.template.replace("{prompt}", task.prompt)
        body: dict[str, Any] = {
            "model": s.policy,
            "temperature": s.temperature,
            self._limit_key: s.max_tokens,
            **self._log_probs.build_request_fields(),
            **s.extra,
        }
        if self._send_seed:
            body["seed"] = seed
        if s.api == "chat":
            system = [] if s.system is None else [{"role": "system", "content": s.system}]
            body["messages"] = [*system, {"role": "user", "content": text}]
        else:
            body["prompt"] = text if s.system is None else f"{s.system}\n\n{text}"
        return body

    async def _request_with_retries(self, task: Task, seed: int) -> httpx.Response:
        import httpx

        s = self.settings
        url = f"{self.base}/{'chat/completions' if s.api == 'chat' else 'completions'}"
        # A name that the server does not list and has never answered to is likelier wrong than the server is ill.
        doubtful = self._listed is not None and s.policy not in self._listed
        tries, last = 0, ""
        while True:
            body = self._build_request_body(task, seed)
            wait = None
            try:
                answer = await self.client.post(url, json=body)
            except httpx.TransportError as error:
                last = _describe_transport_error(error)
            else:
                if answer.is_success:
                    return answer
                self._raise_if_key_refused(answer)
                last = f"status {answer.status_code}: {self._quote_server_answer(answer)}"
                if self._leave_out_refused_field(answer, body):
                    continue
                if answer.status_code not in _MOMENTARY:
                    raise InputError(self._describe_refusal(answer, task))
                wait = _parse_retry_after(answer)
            limit = min(s.retries, 2) if doubtful and not self._answered else s.retries
            if tries >= limit or (wait is not None and wait > _PATIENCE):
                late = f"; it asks to wait {wait:.0f} s" if wait is not None and wait > _PATIENCE else ""
                raise InputError(
                    f"{self._describe_server()} failed {tries + 1} times in a row, last with "
                    f"{last}{late}{self._hint_at_unlisted_model()}"
                )
            tries += 1
            self.retries += 1
            # Spread out, or all that failed together come back together.
            await asyncio.sleep(max(wait or 0.0, min(_LONGEST_WAIT, 0.5 * 2 ** (tries - 1)) * random.uniform(0.5, 1.0)))

    def _leave_out_refused_field(self, answer: httpx.Response, body: dict[str, Any]) -> bool:
        """Whether the server refuses a field that can be done without, now left out: the request is to be sent
        again."""
        if answer.status_code not in (400, 422, 501):
            return False
        text = answer.text.lower()
        # Compared with what *this* request held: of many that were under way at the first refusal each is sent again.
        if "max_completion_tokens" in text and "max_tokens" in body:
            self._limit_key = self.note["limit_key"] = "max_completion_tokens"
            return True
        if "logprobs" in text and "logprobs" in body:
            self._log_probs.handle_field_refusal(self._quote_server_answer(answer))
            return True
        if "seed" in text and "seed" in body:
            if self._send_seed:
                self._send_seed = False
                self.note["seed"] = f"refused by the server, not sent ({self._quote_server_answer(answer)})"
                self.say("the server refuses seeds: going on without, so that sampling cannot be repeated")
            return True
        return False

    def _raise_if_key_refused(self, answer: httpx.Response) -> None:
        if answer.status_code not in (401, 403):
            return
        env = self.settings.key_env
        given = f"the key in {env}" if env else "a request without a key"
        todo = f"correct {env}" if env else "put the key into an environment variable and name it with --key-env"
        raise InputError(
            f"{self.base} refuses {given} (status {answer.status_code}: {self._quote_server_answer(answer)}); {todo}"
        )

    def _describe_refusal(self, answer: httpx.Response, task: Task) -> str:
        text = answer.text.lower()
        what = (
            f"{self._describe_server()} refuses the request for task {task.id!r} (status {answer.status_code}: "
            f"{self._quote_server_answer(answer)})"
        )
        if answer.status_code == 404 and "model" not in text:
            other = "completions" if self.settings.api == "chat" else "chat"
            return f"{what}; correct --url (it ends with /v1 for most servers), or try --api {other}"
        if "template" in text and self.settings.api == "chat":
            return f"{what}; a base model without a chat template is asked with --api completions"
        return what + self._hint_at_unlisted_model()

    def _hint_at_unlisted_model(self) -> str:
        listed = self._listed
        if listed and self.settings.policy not in listed:
            return f"; the server lists no model {self.settings.policy!r}, but {_format_model_names(listed)}"
        return ""

    def _describe_server(self) -> str:
        return f"the server at {self.base}"

    def redact_server_key(self, text: str) -> str:
        """The text, with ``***`` for the key."""
        return text.replace(self._key, "***") if self._key else text

    def _quote_server_answer(self, answer: httpx.Response) -> str:
        """The server's own words, on one line and without the key, which some servers repeat."""
        text = answer.text
        try:
            body = answer.json()
            error = body.get("error", body) if isinstance(body, dict) else body
            text = error.get("message") or error.get("detail") or text if isinstance(error, dict) else str(error)
        except ValueError:
            pass
        text = self.redact_server_key(" ".join(str(text).split()))
        return repr(text[:200] + ("..." if len(text) > 200 else "")) if text else "no words"


def _describe_transport_error(error: Exception) -> str:
    kind = type(error).__name__
    said = str(error).strip()
    return f"{kind}: {said}" if said else kind


def _format_model_names(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _parse_token_count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _parse_retry_after(answer: httpx.Response) -> float | None:
    """Seconds that the server asks to wait: a number or a date (RFC 9110, section 10.2.3)."""
    value = answer.headers.get("retry-after", "").strip()
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError):
        return None
