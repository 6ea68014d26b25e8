"""A FAKE server: no model behind it. It answers as an OpenAI-compatible server would, and misbehaves when told to.

What it says is a function of prompt and seed alone (`answer`), so a test can work out every row. The real server is in
test_real_server.py.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Trouble = Callable[[int, dict[str, Any]], Any]
"""``trouble(k, body)`` for the k-th request (from 0): None, ``"drop"``, ``"hang"``, or ``(status, headers, body)``."""


def answer(prompt: str, seed: int | None) -> str:
    """``A + B =`` -> the sum for three of four seeds, else one more than it."""
    digits = [int(w) for w in prompt.split() if w.isdigit()]
    wrong = hashlib.sha256(f"{prompt}/{seed}".encode()).digest()[0] % 4 == 0
    return f"That makes {sum(digits) + wrong}"


def token_log_probs(text: str) -> list[float]:
    """Of each word: minus an eighth of its length."""
    return [-len(word) / 8 for word in text.split()]


class FakeServer:
    """Serves on a free port of the loopback from ``with`` to its end.

    Attributes:
        requests: (path, body, headers) of every POST, in order.
        most_at_once: The largest number of POSTs that were under way together.
    """

    def __init__(
        self,
        *,
        models: list[str] | None = None,
        listing: str = "works",
        trouble: Trouble | None = None,
        delay: float = 0.0,
        usage: bool = True,
        log_probs: str = "all",
    ) -> None:
        """``listing``: what ``GET /models`` does: ``works``; ``fails`` (status 500, after which the connection is
        dropped when it is used again, as transformers serve does where the hub has no cache); ``drops`` (no answer at
        all). ``log_probs``: whether it returns them when asked: ``all``; ``without the last`` token's; ``one`` alone;
        ``ignores`` the field; ``refuses`` it."""
        self.models, self.trouble, self.delay, self.usage = models, trouble, delay, usage
        self.listing, self.log_probs = listing, log_probs
        self.requests: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.key: str | None = None
        self.limit: int | None = None
        self.most_at_once = self._now = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def __enter__(self) -> FakeServer:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None: ...

            spoiled = False  # this connection is dropped at its next request

            def do_GET(self) -> None:
                if fake.listing == "drops":
                    self.close_connection = True
                elif fake.listing == "fails":
                    self.spoiled = True
                    self.reply(500, {"error": "Internal Server Error"})
                elif fake.models is None:
                    self.reply(404, {"error": "Not Found"})
                elif self.refused():
                    return
                else:
                    self.reply(200, {"object": "list", "data": [{"id": m, "object": "model"} for m in fake.models]})

            def do_POST(self) -> None:
                if self.spoiled:
                    self.close_connection = True
                    return
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with fake._lock:
                    k = len(fake.requests)
                    fake.requests.append((self.path, body, {k.lower(): v for k, v in self.headers.items()}))
                    fake._now += 1
                    fake.most_at_once = max(fake.most_at_once, fake._now)
                try:
                    self.answer(k, body)
                finally:
                    with fake._lock:
                        fake._now -= 1

            def answer(self, k: int, body: dict[str, Any]) -> None:
                if self.refused():
                    return
                time.sleep(fake.delay)
                trouble = fake.trouble(k, body) if fake.trouble else None
                if trouble == "drop":
                    self.close_connection = True
                    self.connection.close()
                elif trouble == "hang":
                    fake._stop.wait(30)
                    self.close_connection = True
                elif trouble is not None:
                    self.reply(trouble[0], trouble[2], trouble[1])
                elif fake.log_probs == "refuses" and "logprobs" in body:
                    self.reply(422, {"detail": "Unsupported fields in the request: {'logprobs'}"})
                elif body.get("stream"):
                    self.stream(body)
                else:
                    self.reply(200, fake.completion(self.path, body))

            def refused(self) -> bool:
                if fake.key is None or self.headers.get("authorization") == f"Bearer {fake.key}":
                    return False
                said = self.headers.get("authorization", "no key")
                self.reply(401, {"error": {"message": f"Incorrect API key provided: {said}"}})
                return True

            def reply(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def stream(self, body: dict[str, Any]) -> None:
                whole = fake.completion(self.path, body)
                choice = whole["choices"][0]
                head = {"id": "fake", "object": "chat.completion.chunk", "created": 0, "model": body["model"]}
                chunks = [
                    head | {"choices": [{"index": 0, "delta": choice["message"], "finish_reason": None}]},
                    head | {"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]},
                    head | {"choices": [], "usage": whole.get("usage")},
                ]
                data = "".join(f"data: {json.dumps(c)}\n\n" for c in chunks) + "data: [DONE]\n\n"
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data.encode())

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request: Any, client_address: Any) -> None: ...

        self._server = Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._stop.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def completion(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """What an untroubled server says; a word is a token."""
        chat = path.endswith("/chat/completions")
        prompt = body["messages"][-1]["content"] if chat else body["prompt"]
        words = answer(prompt, body.get("seed")).split()
        limit = body.get("max_tokens", body.get("max_completion_tokens"))
        text, finish = " ".join(words[:limit]), "length" if len(words) > limit else "stop"
        said = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        out: dict[str, Any] = {
            "id": "fake",
            "created": 0,
            "model": body["model"],
            "choices": [{"index": 0, "finish_reason": finish} | said],
        }
        if body.get("logprobs") and self.log_probs != "ignores":
            values = token_log_probs(text)
            values = {"all": values, "without the last": values[:-1], "one": values[:1]}[self.log_probs]
            plain = {"tokens": text.split()[: len(values)], "token_logprobs": values}
            listed = {"content": [{"token": "?", "logprob": v, "top_logprobs": []} for v in values]}
            out["choices"][0]["logprobs"] = listed if chat else plain
        out["object"] = "chat.completion" if chat else "text_completion"
        if self.usage:
            n, m = len(prompt.split()), len(text.split())
            out["usage"] = {"prompt_tokens": n, "completion_tokens": m, "total_tokens": n + m}
        return out

    def asked(self) -> list[tuple[str, int | None]]:
        """(prompt, seed) of every POST."""
        return [
            (b["messages"][-1]["content"] if "messages" in b else b["prompt"], b.get("seed"))
            for _, b, _ in self.requests
        ]
