"""What the client makes of responses, streams and errors."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from bench.soak.client import SoakClient
from bench.soak.requests import SoakRequest


class Handler(BaseHTTPRequestHandler):
    """Answers by the path."""

    protocol_version = "HTTP/1.1"
    responses_by_path = {
        "/whole": (200, [json.dumps({"choices": [{"text": "one"}, {"text": "two"}]})]),
        "/events": (200, [*(f'data: {{"choices": [{{"text": "{text}"}}]}}\n\n' for text in "ab"), "data: [DONE]\n\n"]),
        "/api/lines": (200, ['{"response": "c"}\n', '{"response": "d", "done": true}\n']),
        "/late": (200, ['data: {"choices": [{"text": "a"}]}\n\n', 'data: {"error": {"message": "engine"}}\n\n']),
        "/down": (503, ['{"error": {"message": "no worker"}}']),
    }

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        status, pieces = self.responses_by_path[self.path]
        content = "".join(pieces).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def client():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        found = SoakClient(server.server_address[1])
        yield found
        found.close()
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("path", "stream", "text"), [("/whole", False, "onetwo"), ("/events", True, "ab"), ("/api/lines", True, "cd")]
)
def test_all_text_of_a_response(client, path, stream, text):
    for _ in range(2):  # the second one over the same connection
        outcome = client.send(SoakRequest(path, {"stream": stream}))
        assert (outcome.text, outcome.error, outcome.cancelled) == (text, "", False)


def test_a_stream_is_ollama_s_default_only(client):
    assert client.send(SoakRequest("/api/lines", {})).text == "cd"
    assert client.send(SoakRequest("/whole", {})).text == "onetwo"


@pytest.mark.parametrize(
    ("path", "stream", "words"),
    [("/down", False, "status 503"), ("/down", True, "no worker"), ("/late", True, "engine")],
)
def test_errors_are_errors_whenever_they_come(client, path, stream, words):
    outcome = client.send(SoakRequest(path, {"stream": stream}))
    assert words in outcome.error and outcome.error.startswith(path)
    assert client.send(SoakRequest("/whole", {})).text == "onetwo", "the next request is not harmed"


@pytest.mark.parametrize("after", [0, 1])
def test_a_client_that_leaves_early(client, after):
    outcome = client.send(SoakRequest("/events", {"stream": True}, cancel_after=after))
    assert outcome.cancelled and not outcome.error
    assert client.send(SoakRequest("/whole", {})).text == "onetwo"


def test_a_server_that_is_gone_is_an_error():
    outcome = SoakClient(1).send(SoakRequest("/whole", {}))
    assert "ConnectionRefusedError" in outcome.error
