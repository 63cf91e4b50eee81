"""A server of OpenAI's API that answers what a test says, over real HTTP."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "bz-test"


class FakeServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.bodies: list[dict[str, Any]] = []
        self.chunks: list[dict[str, Any]] = []
        self.pause_s = 0.0
        self.is_left = threading.Event()
        """A client has left in the middle of a stream."""

    def reply(self, *deltas: dict[str, Any], finish_reason: str = "stop", num_tokens: int = 3) -> None:
        """Set the next answers."""
        self.chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        self.chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish_reason}]})
        self.chunks.append({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": num_tokens}})


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a response's second part would wait 40 ms for the client's acknowledgement
    server: FakeServer

    def do_GET(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {KEY}":
            self._json(401, {"error": {"message": "a key is needed.", "code": "invalid_api_key"}})
        elif self.path == "/v1/models":
            self._json(200, {"data": [{"id": "one"}, {"id": "two"}]})
        else:
            self._json(404, {"error": {"message": "no such endpoint."}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        if body["messages"][-1]["content"] == "fail":
            self._json(400, {"error": {"message": "the message is refused; send another one.", "param": "messages"}})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            for chunk in self.server.chunks:
                self.wfile.write(b": beat\n\ndata: " + json.dumps(chunk).encode() + b"\n\n")
                self.wfile.flush()
                time.sleep(self.server.pause_s)
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            self.server.is_left.set()
        self.close_connection = True

    def _json(self, status: int, payload: Any) -> None:
        content = json.dumps(payload).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def fake_server() -> Iterator[FakeServer]:
    server = FakeServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
