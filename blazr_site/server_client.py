"""Send requests of the command line to a running server: find it, send JSON and bytes, read streams of events."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from blazr_site.running_servers import running_url
from inference.errors import BlazrError, InvalidRequest, Unavailable

KEY_FILE = "api_key"
SERVER_VARIABLE, KEY_VARIABLE = "BLAZR_SERVER", "BLAZR_API_KEY"
CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 900.0
"""A model may load first; streams have a comment every 15 s."""
MAX_ERROR_BYTES = 1 << 20
MAX_LINE_BYTES = 16 << 20
MAX_REPLY_BYTES = 64 << 20


class RefusedByServer(BlazrError):
    """The server's own error.

    Attributes:
        status: HTTP status.
    """

    status = 500


@dataclass(frozen=True, slots=True)
class Server:
    """Where a server is, and the key to use.

    Attributes:
        url: ``http://host:port``, perhaps with a path before ``/v1``; without a slash at its end.
        key: API key; None: none is sent.
    """

    url: str
    key: str | None = None


def find_server(url: str | None, key: str | None, data_dir: Path | None) -> Server | None:
    """Return the server of ``--server`` or the environment, else the one that runs on the data directory.

    Args:
        url, key: As options give them; None: the environment's.
        data_dir: Directory whose ``blazr serve`` is looked for; None: none is.

    Raises:
        InvalidRequest: The URL is none.
    """
    given = url or os.environ.get(SERVER_VARIABLE)
    key = key or os.environ.get(KEY_VARIABLE) or None
    if given:
        return Server(_checked_url(given), key)
    running = None if data_dir is None else running_url(data_dir)
    if running is None or data_dir is None:
        return None
    return Server(running, key or _first_key(data_dir))


def _first_key(data_dir: Path) -> str | None:
    """Return the key that the server's first start has made for its owner, if it made one."""
    try:
        return (data_dir / KEY_FILE).read_text().strip() or None
    except OSError:
        return None


def _checked_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_url = False
    if not is_url or parts.query or parts.fragment or parts.username:
        raise InvalidRequest(
            f"--server {text[:120]!r} is no URL of a server, such as http://host:8080.", param="server"
        )
    return text.rstrip("/").removesuffix("/v1")


class ServerClient:
    """A connection to a server; one request at a time.

    Raises:
        Unavailable: The server can't be reached, in each method.
        RefusedByServer: It has refused the request, in each method.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        parts = urlsplit(server.url)
        self._prefix = parts.path
        if parts.scheme == "https":
            self._connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                parts.hostname or "", parts.port, timeout=CONNECT_TIMEOUT_S, context=ssl.create_default_context()
            )
        else:
            self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=CONNECT_TIMEOUT_S)

    def close(self) -> None:
        """Close the connection; a later request opens it again."""
        self._connection.close()

    def json(self, method: str, path: str, body: Any = None, *, content: bytes | None = None) -> Any:
        """Send JSON or bytes, and return the JSON of the response (None without a body).

        Args:
            path: Behind the server's URL, quoted, with its query.
        """
        with self._response(method, path, body, content) as response:
            payload = response.read(MAX_REPLY_BYTES + 1)
        try:
            if len(payload) > MAX_REPLY_BYTES:
                raise ValueError
            return json.loads(payload) if payload else None
        except (ValueError, RecursionError):
            raise Unavailable(f"{self.server.url} doesn't reply as a blazr server does; check --server.") from None

    def events(self, path: str, body: Any) -> Iterator[dict[str, Any]]:
        """Send JSON and yield the data of a ``text/event-stream``; closing the iterator closes the connection."""
        is_whole = False
        try:
            with self._response("POST", path, body, None) as response:
                while line := response.readline(MAX_LINE_BYTES):
                    data = line.strip().removeprefix(b"data: ")
                    if not line.startswith(b"data: "):
                        continue
                    if data == b"[DONE]":
                        is_whole = True
                        return
                    payload = json.loads(data)
                    if not isinstance(payload, dict):
                        raise ValueError
                    if "error" in payload:
                        raise _refusal(500, payload)
                    yield payload
            raise Unavailable("the server ended the stream before its last event; try again.")
        except (ValueError, RecursionError):
            raise Unavailable(f"{self.server.url} sent a stream that is no JSON; check --server.") from None
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        finally:
            if not is_whole:
                self.close()  # the server ends the generation

    @contextmanager
    def _response(self, method: str, path: str, body: Any, content: bytes | None) -> Iterator[http.client.HTTPResponse]:
        headers = {"Accept": "application/json", "User-Agent": "blazr"}
        if self.server.key:
            headers["Authorization"] = f"Bearer {self.server.key}"
        if content is not None:
            headers["Content-Type"] = "application/octet-stream"
        elif body is not None:
            content = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
            headers["Content-Type"] = "application/json"
        try:
            response = self._send(method, path, content, headers)
            if response.status >= 400:
                raise _refusal(response.status, _json_or_none(response.read(MAX_ERROR_BYTES)))
            yield response
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._unreachable(error) from error
        except BaseException:
            self.close()
            raise

    def _send(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        """Send a request; once more on a new connection, if the server has closed the idle one."""
        connection, is_new = self._connection, self._connection.sock is None
        try:
            connection.request(method, self._prefix + path, body=content, headers=dict(headers))
            _wait_longer(connection)
            return connection.getresponse()
        except (http.client.RemoteDisconnected, ConnectionError):
            self.close()
            if is_new:
                raise
        connection.request(method, self._prefix + path, body=content, headers=dict(headers))
        _wait_longer(connection)
        return connection.getresponse()

    def _unreachable(self, error: Exception) -> Unavailable:
        if isinstance(error, socket.gaierror | ConnectionRefusedError):
            reason = "no server listens there; start one with blazr serve, or check --server"
        else:
            reason = f"{type(error).__name__}: {error}"[:200]
        return Unavailable(f"{self.server.url} can't be reached ({reason}).")


def quoted(name: str) -> str:
    """Return a name as a part of a path."""
    return quote(name, safe="")


def _wait_longer(connection: http.client.HTTPConnection) -> None:
    if connection.sock is not None:
        connection.sock.settimeout(READ_TIMEOUT_S)


def _json_or_none(payload: bytes) -> Any:
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        return None


def _refusal(status: int, payload: Any) -> RefusedByServer:
    """Return the server's error; OpenAI's shape or Ollama's."""
    found = payload.get("error") if isinstance(payload, dict) else None
    message = found.get("message") if isinstance(found, dict) else found
    if not isinstance(message, str) or not message:
        message = f"the server has refused the request with status {status}."
    if status == 401 or (status == 403 and "API key" in message):  # others refuse a path, or a hub's model
        message += f" (The key is --key or {KEY_VARIABLE}.)"
    error = RefusedByServer(message, param=found.get("param") if isinstance(found, dict) else None)
    error.status = status
    return error
