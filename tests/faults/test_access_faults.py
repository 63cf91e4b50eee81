"""What strangers try: guessed and exchanged ids, forged requests, leaked keys, log forgery, requests to others."""

from __future__ import annotations

import asyncio
import io
import logging
import re
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest
from asgiref.sync import async_to_sync
from asgiref.testing import ApplicationCommunicator
from django.apps import apps
from django.test import Client
from django.urls import get_resolver
from django.utils import timezone

from blazr_site.asgi import application
from blazr_site.log_lines import JsonFormatter
from inference.access import api_keys, key_watch
from inference.access.api_keys import api_key_create
from inference.batches import webhooks
from inference.jobs import hints
from inference.models import ApiKey, Batch, GenerationJob, Schedule, StoredFile, WebhookDelivery
from inference.values.principal import LOCAL, principal_set
from tests.accounts import account
from tests.blazr_site.test_asgi_bodies import in_settings, post  # noqa: F401 - a fixture for all
from tests.inference.api.test_urls_access import address, objects, routes  # noqa: F401 - a fixture
from tests.inference.batches.fakes import EchoManager, line, make_batch, make_runner, work
from tests.inference.batches.test_webhooks import Receiver
from tests.inference.rows import make_checkpoint
from tests.inference.worker.fakes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

MIN_ID_BITS = 122
GUESSES = 10**5
NUM_TRIES = 3
"""Measurements until the times are the same: another program may meet the one kind more than the other."""
UNSAFE = ("POST", "PUT", "PATCH", "DELETE")
SECRET = re.compile(r"blazr_[0-9A-Za-z]{12}_([0-9A-Za-z]{46})")


@pytest.fixture(autouse=True)
def caller_of_the_thread() -> Iterator[None]:
    """Requests of Django's client set the caller in the thread of the tests."""
    yield
    principal_set(LOCAL)


def bearer(**rules: Any) -> dict[str, str]:
    return {"authorization": f"Bearer {api_key_create(name='some', **rules)[1]}"}


# --- ids ---------------------------------------------------------------------------------------


@pytest.mark.fault(
    "F60",
    provoked="ids of others in every member of a body and of a query that takes one; 100,000 guesses by computation",
    holds="each is answered as an id that doesn't exist; ids have 122 random bits or more, so that 100,000 guesses at "
    "a million objects hit one with a probability below 10^-25; the access table has the ids of paths",
)
def test_ids_can_be_neither_guessed_nor_used_by_others(objects, settings):  # noqa: F811
    settings.BLAZR_API_KEY_REQUIRED = True
    found = {
        "file": StoredFile.objects.exclude(purpose="state").get().file_id,
        "batch": Batch.objects.get().batch_id,
        "schedule": Schedule.objects.get().schedule_id,
        "job": str(GenerationJob.objects.get().job_id),
        "checkpoint": str(objects["checkpoint_id"]),
        "upload": str(objects["upload_id"]),
        "quantisation": str(objects["quantisation_id"]),
        "measurement": str(objects["measurement_id"]),
    }
    for kind, text in found.items():
        digits = re.search(r"[0-9a-f-]{32,36}$", text)
        assert digits is not None, (kind, text)
        bits = 4 * len(digits[0].strip("-").replace("-", ""))
        bits -= 6 if "-" in digits[0].strip("-") else 0  # version and variant of a UUID
        assert bits >= MIN_ID_BITS, (kind, text)
    assert GUESSES * 10**6 / 2**MIN_ID_BITS < 1e-25
    other = bearer()
    batch = {"endpoint": "/v1/completions", "completion_window": "24h"}
    bodies = [
        ("/v1/batches", lambda ids: batch | {"input_file_id": ids["file"]}),
        ("/v1/batches/schedules", lambda ids: batch | {"input_file_id": ids["file"], "cron": "0 3 * * *"}),
        ("/v1/responses", lambda ids: {"model": "tiny", "input": "a", "previous_response_id": ids["response"]}),
    ]
    queries = [("/v1/files", "after", "file"), ("/v1/batches", "after", "batch"), ("/api/jobs", "after", "job")]
    known = found | {"response": objects["response_id"]}
    unknown = {kind: re.sub(r"[0-9a-f]", "0", text) for kind, text in known.items()}
    for path, body in bodies:
        theirs, nobodys = (async_to_sync(post)(path, orjson.dumps(body(ids)), **other) for ids in (known, unknown))
        assert theirs[0] == nobodys[0] and theirs[0] in (400, 404), (path, theirs, nobodys)
        assert _without_ids(theirs[1], known, unknown) == _without_ids(nobodys[1], known, unknown)
    client = Client(headers=other)
    for path, name, kind in queries:
        theirs, nobodys = (client.get(path, {name: ids[kind]}) for ids in (known, unknown))
        assert (theirs.status_code, nobodys.status_code) == (404, 404), path
        assert _without_ids(theirs.json(), known, unknown) == _without_ids(nobodys.json(), known, unknown)


def _without_ids(body: Any, *several: dict[str, str]) -> str:
    text = orjson.dumps(body).decode()
    for ids in several:
        for item in ids.values():
            text = text.replace(item, "ID")
    return text


# --- forged requests ---------------------------------------------------------------------------


@pytest.mark.fault(
    "F61",
    provoked="every unsafe method of every route with an admin's session, without the CSRF token and from a page of "
    "another origin; the same for the sign-in; a WebSocket of that session from another origin, and from none",
    holds="each is refused with 403 or, where sessions count for nothing, 401; the socket is closed",
)
def test_forged_requests_of_a_browser_are_refused(objects, settings):  # noqa: F811
    settings.ALLOWED_HOSTS = ["testserver"]
    settings.BLAZR_API_KEY_REQUIRED = True
    client = Client(enforce_csrf_checks=True, raise_request_exception=False)
    client.force_login(account("boss", "superuser"))
    accepted, refused = [], 0
    for route, view in dict(routes(get_resolver())).items():
        for method in UNSAFE:
            if view is not None and not hasattr(view, method.lower()):
                continue
            for headers in ({}, {"origin": "http://evil.example"}, {"x-csrftoken": "x" * 32}):
                response = client.generic(
                    method, address(route, objects), b"{}", content_type="application/json", headers=headers
                )
                # Where there is no such page or method, nothing is done; a redirect goes to the page's real address.
                is_nothing = response.status_code in (404, 405, 301) or "/login/" in response.get("Location", "")
                refused += response.status_code in (401, 403)
                if not is_nothing and response.status_code not in (401, 403):
                    accepted.append(f"{response.status_code} {method} {route} {headers}")
    assert accepted == []
    assert refused > 100
    stranger = Client(enforce_csrf_checks=True)
    for path in ("/login/", "/admin/login/"):
        assert stranger.post(path, {"username": "boss", "password": "x"}).status_code == 403
    session = client.cookies["sessionid"].value
    assert async_to_sync(_answer_to)(session, "http://testserver") == "websocket.send"
    for origin in ("http://evil.example", "https://testserver.evil.example", "null", "http://testserver:81", None):
        assert async_to_sync(_answer_to)(session, origin) == "websocket.close", origin


async def _answer_to(session: str, origin: str | None) -> str:
    """Ask for a generation over a WebSocket with a session; return the type of the server's message."""
    headers = [(b"host", b"testserver"), (b"cookie", f"sessionid={session}".encode())]
    headers += [] if origin is None else [(b"origin", origin.encode())]
    scope = {"type": "websocket", "path": "/v1/stream", "headers": headers, "client": ("127.0.0.1", 50000)}
    connection = ApplicationCommunicator(application, {**scope, "query_string": b"", "subprotocols": []})
    await connection.send_input({"type": "websocket.connect"})
    message = await connection.receive_output(5)
    if message["type"] == "websocket.accept":
        frame = {"type": "chat", "id": "a", "request": {"model": "nobody-has-it", "messages": []}}
        await connection.send_input({"type": "websocket.receive", "text": orjson.dumps(frame).decode()})
        message = await connection.receive_output(5)
    await connection.send_input({"type": "websocket.disconnect", "code": 1000})
    await connection.wait(5)
    return str(message["type"])


# --- keys and logs -----------------------------------------------------------------------------


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What the server logs from DEBUG on, in its JSON form."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    old = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield stream
    root.setLevel(old)
    root.removeHandler(handler)


@pytest.mark.fault(
    "F62",
    provoked="keys made over the API and used in requests that fail, are kept for their idempotency key, or hold the "
    "key in a wrong place",
    holds="no key in any table of the database, in any value of Redis or in the log; a revoked key ends within a "
    "second for new requests and within 5 s for open ones; a mistyped one costs no query; 5,000 keys whose id exists "
    "are refused in the same time as others (the medians differ by less than a tenth)",
)
def test_keys_are_nowhere_but_with_their_owner(settings, redis_server, log, django_assert_num_queries):
    import redis

    settings.BLAZR_API_KEY_REQUIRED = True
    make_checkpoint("tiny")
    admin = bearer(scopes=["admin"])
    made = []
    for number in range(5):
        headers = admin | {"idempotency_key": f"key-{number}"}
        status, body = async_to_sync(post)("/v1/keys", orjson.dumps({"name": f"key {number}"}), **headers)
        assert status == 201
        made.append(body["value"])
    for key in made:
        for headers in ({"authorization": f"Bearer {key}"}, {"x_api_key": key}, {"authorization": f"Basic {key}"}):
            for body in ({"model": "nobody"}, {"model": key, "prompt": key}, {"model": "tiny", "prompt": [1 << 40]}):
                status, _ = async_to_sync(post)("/v1/completions", orjson.dumps(body), **headers)
                assert 400 <= status < 500
        Client().get("/v1/models", headers={"authorization": f"Bearer {key[:-1]}"})
    logging.getLogger("inference.x").warning("refused %s", made[0])
    secrets = [SECRET.fullmatch(key)[1] for key in [*made, admin["authorization"].split()[1]]]
    rows = [str(row) for model in apps.get_models() for row in model.objects.values_list()]
    with redis.Redis.from_url(redis_server.client) as client:
        values = [str(client.dump(name)) + str(name) for name in client.scan_iter()]
    assert len(rows) > 5 and "key 0" in log.getvalue() + " ".join(rows)
    for secret in secrets:
        for part in (secret, secret[:20]):
            assert not [text for text in (*rows, *values, log.getvalue()) if part in text]
    with django_assert_num_queries(0):
        mistyped = made[0][:-1] + ("0" if made[0][-1] != "0" else "1")
        assert async_to_sync(api_keys.principal_of_key)(f"Bearer {mistyped}") is None
    for _ in range(NUM_TRIES):
        known, unknown = async_to_sync(refusal_medians_s)(made[0][:18], "blazr_" + "0" * 12)
        if abs(known - unknown) < 0.1 * max(known, unknown):
            break
    assert abs(known - unknown) < 0.1 * max(known, unknown), (known, unknown)
    assert api_keys.CACHE_S < 1 and key_watch.WATCH_S < 4
    assert ApiKey.objects.filter(digest__in=made).count() == 0


async def refusal_medians_s(*prefixes: str, num: int = 5000) -> list[float]:
    """Median times in which keys with these ids, wrong secrets and right checksums are refused; tried in turns."""
    texts = [f"{prefix}_{'x' * 40}" for prefix in prefixes]
    wrong = {f"Bearer {text}{api_keys._checksum(text)}": [] for text in texts}
    for _ in range(num):
        for key, times in wrong.items():
            began = time.perf_counter()
            assert await api_keys.principal_of_key(key) is None
            times.append(time.perf_counter() - began)
    return [statistics.median(times) for times in wrong.values()]


MIB = 1 << 20
CANARY = "canary-of-the-prompt"
CONTROLS = "\r\nlevel=ERROR\x1b[31m\u2028\u2029\x85\x00\x07" + "x" * 1000
LABEL = CONTROLS[:90]


@pytest.mark.fault(
    "F63",
    provoked="CR, LF, ANSI, U+2028, NUL and 1 MiB in prompts, names of models, labels, headers and paths",
    holds="a record of the log is one line of printable ASCII; at INFO no prompt is in it",
)
def test_what_is_logged_is_one_printable_line_a_record(settings, log):
    logging.getLogger().setLevel(logging.INFO)
    settings.BLAZR_API_KEY_REQUIRED = False
    make_checkpoint("tiny")
    for path, body in (
        ("/v1/completions", {"model": CONTROLS[:200], "prompt": CANARY}),
        ("/v1/completions", {"model": "tiny", "prompt": CANARY + CONTROLS, CONTROLS: 1}),
        ("/v1/completions", {"model": "tiny", "prompt": CANARY + "x" * MIB, "temperature": CONTROLS}),
        ("/v1/chat/completions", {"model": "tiny", "messages": [{"role": CONTROLS, "content": CANARY}]}),
        ("/v1/responses", {"model": "tiny", "input": CANARY, "metadata": {CONTROLS: CONTROLS}}),
        ("/api/jobs", {"endpoint": "completion", "body": {"model": "tiny", "prompt": CANARY}, "batch_label": LABEL}),
        ("/v1/" + CONTROLS, {}),
    ):  # fmt: skip
        headers = {"user_agent": "a\x1b[31m", "x_request_id": "b\x07"}
        status, _ = async_to_sync(post)(path, orjson.dumps(body), **headers)
        assert status < 500, path
    logging.getLogger("inference.x").error("failed with %s", CONTROLS)
    lines = log.getvalue().splitlines()
    assert lines and log.getvalue().count("\n") == len(lines)
    for text in lines:
        assert text.isascii() and text.isprintable()
        assert orjson.loads(text)["message"]
    assert CANARY not in log.getvalue()


# --- requests to others ------------------------------------------------------------------------


class Trap:
    """A listener on an address of this machine that counts connections."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.num_connections = 0
        self._socket = socket.create_server((host, port))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            connection.close()
            self.num_connections += 1

    def close(self) -> None:
        """Stop listening; the thread ends with the process."""
        self._socket.close()


HOSTS = ("127.0.0.1", "127.1", "0x7f.1", "2130706433", "localhost", "[::1]", "[::ffff:127.0.0.1]", "169.254.169.254")


@pytest.mark.fault(
    "F65",
    provoked="addresses of this machine in ten spellings, of its metadata service and of files, as image, file, "
    "`$ref`, webhook, hub id, base URL and forwarded host",
    holds="refused; not one connection at a listener of this machine",
)
def test_no_request_makes_the_server_call_another_host():
    make_checkpoint("tiny")
    admin = bearer(scopes=["admin"])
    trap = Trap()
    batch = {"input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": "24h"}

    async def drive() -> None:
        for url in (*(f"http://{host}:{trap.port}/x.json" for host in HOSTS), "file:///etc/passwd", "//127.0.0.1/x"):
            image = [{"type": "image_url", "image_url": {"url": url}}]
            for path, body in (
                ("/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user", "content": image}]}),
                ("/v1/completions", {"model": "tiny", "prompt": "a", "guided_json": {"$ref": url}}),
                ("/v1/completions", {"model": url, "prompt": "a"}),
                ("/v1/responses", {"model": "tiny", "input": [{"role": "user", "content": [
                    {"type": "input_image", "image_url": url}]}]}),
                ("/v1/responses", {"model": "tiny", "input": "a", "tools": [{"type": "mcp", "server_url": url}]}),
                ("/v1/messages", {"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": [
                    {"type": "image", "source": {"type": "url", "url": url}}]}]}),
                ("/v1/batches", batch | {"webhook": {"url": url}}),
                ("/api/pull", {"model": url, "stream": False}),
                ("/api/show", {"model": url}),
            ):  # fmt: skip
                status, found = await post(path, orjson.dumps(body), x_forwarded_host=url, **admin)
                assert 400 <= status < 500, (path, url, status, found)

    asyncio.run(drive())
    trap.close()
    assert trap.num_connections == 0


ALLOWED = "127.0.0.2"
"""An address of this machine that stands for a public one, so that a connection to it can be counted."""


@pytest.fixture
def webhook_to(settings, monkeypatch, tmp_path) -> Callable[[str, str], WebhookDelivery]:
    """Ends a batch whose message goes to a URL, under a setting of ``BLAZR_WEBHOOKS``, and has it sent."""
    settings.BLAZR_FILES_DIR = tmp_path / "files"
    monkeypatch.setattr(hints, "wake_workers", lambda: None)
    model = make_checkpoint("tiny")

    def send(url: str, setting: str) -> WebhookDelivery:
        settings.BLAZR_WEBHOOKS = setting
        work(make_batch([line("a")], webhook={"url": url}), make_runner(EchoManager(str(model.pk))))
        assert webhooks.deliver_due() == 1
        return WebhookDelivery.objects.latest("pk")

    return send


@pytest.mark.fault(
    "F65",
    provoked="receivers of webhooks that the operator has allowed redirect to this machine, by each status",
    holds="refused; not one connection at a listener of this machine",
)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_of_a_webhook_is_followed(webhook_to, status):
    trap, receiver = Trap(), Receiver()
    receiver.status, receiver.headers = status, {"Location": f"http://127.0.0.1:{trap.port}/"}
    delivery = webhook_to(receiver.url, "any")
    receiver.close()
    trap.close()
    assert (len(receiver.received), trap.num_connections) == (1, 0)
    assert delivery.last_error == f"answered {status}"


@pytest.mark.fault(
    "F65",
    provoked="the name of a webhook's receiver leads to a public address first, and to this machine then, or to both",
    holds="refused; not one connection at a listener of this machine",
)
def test_a_name_that_is_bound_again_leads_a_webhook_nowhere(webhook_to, monkeypatch):
    allowed = Trap(ALLOWED)
    trap = Trap("127.0.0.1", allowed.port)
    is_public, asked = webhooks.is_public, iter(((ALLOWED,), ("127.0.0.1",), (ALLOWED, "127.0.0.1"), ("127.0.0.1",)))
    real = socket.getaddrinfo

    def resolve(host: str, *arguments: Any, **options: Any) -> list[Any]:
        names = next(asked, ("127.0.0.1",)) if host == "rebound.example" else (host,)
        return [found for name in names for found in real(name, *arguments, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(webhooks, "is_public", lambda address: address == ALLOWED or is_public(address))
    delivery = webhook_to(f"https://rebound.example:{allowed.port}/", "public")
    wait_until(lambda: allowed.num_connections == 1)  # it hangs up, so there will be other tries
    for num_tries in (2, 3, 4):
        WebhookDelivery.objects.update(next_attempt_at=timezone.now())
        assert webhooks.deliver_due() == 1
        delivery.refresh_from_db()
        assert delivery.attempts == num_tries
        assert "127.0.0.1, which is not a public address" in delivery.last_error
    trap.close()
    allowed.close()
    assert (allowed.num_connections, trap.num_connections) == (1, 0)
