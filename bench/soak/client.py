"""SoakClient: sends one request after another over one connection and says what came of each."""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass
from typing import Any

from bench.soak.requests import SoakRequest, texts_of

TIMEOUT_S = 120.0
CANCEL_S = 0.02
"""A client that leaves before anything has come waits so long."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one request.

    Attributes:
        error: What went wrong; "": nothing.
        cancelled: The client left early.
    """

    text: str = ""
    error: str = ""
    cancelled: bool = False


class SoakClient:
    """Belongs to one thread.

    Args:
        port: Of the server, on loopback.
    """

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)

    def send(self, request: SoakRequest) -> Outcome:
        """Send a request and read its response, or leave early if the request says so."""
        try:
            return self._send(request)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            return Outcome(error=f"{request.path}: {type(error).__name__}: {error}"[:300])

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        self._connection.close()

    def _send(self, request: SoakRequest) -> Outcome:
        body = json.dumps(request.body).encode()
        self._connection.request("POST", request.path, body, {"Content-Type": "application/json"})
        streamed = bool(request.body.get("stream", request.path.startswith("/api/")))
        if request.cancel_after is not None and (request.cancel_after == 0 or not streamed):
            return self._leave_early()
        response = self._connection.getresponse()
        if response.status != 200:
            return Outcome(error=f"{request.path}: status {response.status}: {_shown(response.read())}")
        if not streamed:
            return Outcome(text="".join(texts_of(json.loads(response.read()))))
        pieces: list[str] = []
        for number, line in enumerate(response):
            if number == request.cancel_after:
                self.close()
                return Outcome(cancelled=True)
            event = _event(line)
            if event is None:
                continue
            if isinstance(event, dict) and event.get("error"):
                self.close()
                return Outcome(error=f"{request.path}: in its stream: {_shown(json.dumps(event).encode())}")
            pieces += texts_of(event)
        response.read()  # lines with a length given don't say that they were the last
        return Outcome(text="".join(pieces))

    def _leave_early(self) -> Outcome:
        assert self._connection.sock is not None
        self._connection.sock.settimeout(CANCEL_S)
        try:
            self._connection.sock.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            pass
        finally:
            self.close()
        return Outcome(cancelled=True)


def _event(line: bytes) -> Any:
    """The JSON of a line of a stream, Ollama's or server-sent events; None: the line has none."""
    line = line.strip()
    if line.startswith(b"data: "):
        line = line[6:]
    return json.loads(line) if line.startswith(b"{") else None


def _shown(content: bytes) -> str:
    return content.decode(errors="replace")[:300]
