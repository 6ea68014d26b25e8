"""A small proxy in front of the test server that answers some requests badly, as services do on bad days."""

from __future__ import annotations

import http.client
import socketserver
import threading
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "content-encoding"}


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


class FaultyProxy:
    """Forwards everything to ``upstream`` but what `fail` says.

    Attributes:
        answered: (status, path) of each request that was answered badly.
    """

    def __init__(self, upstream: str) -> None:
        self._upstream = urlsplit(upstream).netloc
        self._plans: list[list[Any]] = []
        self._lock = threading.Lock()
        self._dead = threading.Event()
        self.answered: list[tuple[int, str]] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None: ...

            def _do(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                if proxy._dead.is_set():  # an open connection dies with the service
                    self.close_connection = True
                    return None
                status = proxy._bad(self.path)
                if status is not None:
                    return self._reply(status, [("content-type", "application/json")], b'{"detail": "injected"}')
                upstream = http.client.HTTPConnection(proxy._upstream, timeout=300)
                headers = {k: v for k, v in self.headers.items() if k.lower() not in _HOP - {"content-encoding"}}
                headers["accept-encoding"] = "identity"
                upstream.request(self.command, self.path, body, headers)
                answer = upstream.getresponse()
                data = answer.read()
                upstream.close()
                return self._reply(
                    answer.status, [(k, v) for k, v in answer.getheaders() if k.lower() not in _HOP], data
                )

            def _reply(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
                self.send_response(status)
                for k, v in headers:
                    self.send_header(k, v)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_DELETE = do_PUT = _do

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def fail(self, path: str, status: int, times: int | None = None, after: int = 0) -> None:
        """Answer requests whose path holds ``path`` with ``status``, the next ``times`` (None: all), letting ``after``
        of them through."""
        with self._lock:
            self._plans.append([path, status, times, after])

    def _bad(self, path: str) -> int | None:
        with self._lock:
            for plan in self._plans:
                if plan[0] not in path:
                    continue
                if plan[3] > 0:
                    plan[3] -= 1
                    continue
                if plan[2] is None or plan[2] > 0:
                    if plan[2] is not None:
                        plan[2] -= 1
                    self.answered.append((plan[1], path))
                    return plan[1]
        return None

    def close(self) -> None:
        """Stop listening: from here on connections are refused, as from a service that has died."""
        self._dead.set()
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> FaultyProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
