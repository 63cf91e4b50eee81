"""Every route and method for every kind of caller: ``access_table.txt`` says who gets in, and it is true.

A row of the table is a method, a route, and a cell per caller: ``+`` lets it in, a number is the status of the refusal.
Methods without a row let nobody in. The route of the WebSocket has the close code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import orjson
import pytest
from asgiref.sync import async_to_sync
from asgiref.testing import ApplicationCommunicator
from django.conf import settings as django_settings
from django.db import transaction
from django.test import Client
from django.urls import get_resolver, resolve
from django.urls.resolvers import URLResolver
from django.utils import timezone

from blazr_site.asgi import application, refuse_socket
from inference.access.api_keys import api_key_create, api_key_revoke, principal_of_tenant
from inference.dialects.openai.requests import plan_from_body
from inference.files.store import FileWriter
from inference.jobs.services import JobRequest, jobs_submit
from inference.models import ApiKey, SavedChat, StoredResponse, UsageDay
from inference.states.services import StateFacts, state_create
from inference.transport import questions as worker_questions
from inference.values.messages import StateOrder
from inference.values.principal import DEFAULT_SCOPES, LOCAL, principal_set
from models_registry.aliases import alias_promote
from models_registry.model_page import TABS
from models_registry.models import (
    Adapter,
    Passport,
    PullJob,
    Quantisation,
    SpanMeasurement,
    TrainingRun,
    Upload,
    UploadFile,
)
from models_registry.runs.services import DEFAULTS
from models_registry.services import checkpoint_register
from tests.accounts import account
from tests.inference.batches.fakes import line, make_batch
from tests.inference.rows import make_checkpoint
from tests.inference.schedules.fakes import make_schedule
from tests.models_registry.detection.builders import small_hybrid, write_checkpoint

TABLE = Path(__file__).with_name("access_table.txt")
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
KEYS = ("nothing", "bad", "revoked", "expired", "unscoped", "other", "owner", "admin")
"""Callers of a server that requires keys: without one, a wrong one, …, without the scope, of another tenant, its."""
SESSIONS = ("norole", "viewer", "member", "operator", "superuser")
CALLERS = (*KEYS, "local", *SESSIONS)
STRONGEST = ("nothing", "admin", "superuser")
REFUSALS = (301, 302, 401, 403, 405)
SCOPES_OF_UNSCOPED = {"/metrics": ("generate",)}
"""Scopes of the key that has not the one of the route; ``metrics`` for the others."""


def routes(resolver: URLResolver, prefix: str = "/") -> Iterator[tuple[str, Any]]:
    """Yield each route of the site with its view."""
    for pattern in resolver.url_patterns:
        path = prefix + str(pattern.pattern).removeprefix("^").removesuffix("$").lstrip("/")
        if isinstance(pattern, URLResolver):
            yield from routes(pattern, path)
        else:
            yield path, getattr(pattern.callback, "view_class", getattr(pattern.callback, "cls", None))


@pytest.fixture
def objects(db, data_dir, tmp_path, settings) -> dict[str, Any]:
    """One object of each kind, which the key ``owner`` owns, by the names of the routes' parameters."""
    principal_set(LOCAL)
    shapes, config = small_hybrid()
    path = write_checkpoint(tmp_path / "tiny", shapes, config)
    checkpoint = checkpoint_register(path=path, served_model_name="tiny")
    alias_promote(name="alias", checkpoint=make_checkpoint("earlier"))
    alias_promote(name="alias", checkpoint=checkpoint)
    row, key = api_key_create(name="owner")
    owner = principal_of_tenant(f"key:{row.pk}")
    batch = make_batch([line("a")], owner)
    schedule = make_schedule(owner, input_file_id=batch.input_file_id)
    (job,) = jobs_submit(
        requests=[JobRequest(plan_from_body("completion", {"model": "tiny", "prompt": [1]}))], principal=owner
    )
    response = StoredResponse.objects.create(
        response_id="resp_1", tenant=owner.tenant, body='{"status": "completed", "background": true, "output": []}',
        input_items="[]", created_at=timezone.now(), job=job,
    )  # fmt: skip
    upload = Upload.objects.create(served_model_name="new", size_bytes=1, active_at=timezone.now())
    UploadFile.objects.create(upload=upload, number=0, name="config.json", size_bytes=1)
    quantisation = Quantisation.objects.create(
        source=checkpoint, source_name="tiny", served_model_name="smaller", max_kl=1.0, active_at=timezone.now()
    )
    measurement = SpanMeasurement.objects.create(
        source=checkpoint, source_name="tiny", max_tokens=2, max_seconds=1, figures="{}", picture="<svg/>",
        active_at=timezone.now(),
    )  # fmt: skip
    settings.BLAZR_WATCHED_DIRECTORIES = [str(tmp_path)]
    run = TrainingRun.objects.create(name="nano", directory=str(tmp_path), **DEFAULTS)
    passport = Passport.objects.create(source=checkpoint, source_name="tiny", active_at=timezone.now())
    adapter = Adapter.objects.create(base=checkpoint, name="sql", path="/sql", rank=1, num_values=1, size_bytes=1)
    pull = PullJob.objects.create(origin="org/tiny", state="done", active_at=timezone.now())
    chat = SavedChat.objects.create(
        owner=account("chatter", "member"), title="Hi", model="tiny", content='{"mode": "chat", "turns": []}'
    )
    UsageDay.objects.create(day=timezone.now().date(), tenant=owner.tenant, model="tiny")
    writer = FileWriter()
    writer.write(b"state")
    order = StateOrder(name="mine", tenant=owner.tenant, model="tiny", is_pinned=False, expires_s=None, replaces=False)
    state = state_create(writer=writer, facts=StateFacts("tiny", "a" * 64, 2, has_conversation=False), order=order)
    return {
        "checkpoint_id": checkpoint.pk, "model_id": "alias", "fact": "vocab_size", "upload_id": upload.pk, "number": 0,
        "name": "mine", "file_id": batch.input_file_id, "batch_id": batch.batch_id, "schedule_id": schedule.schedule_id,
        "job_id": job.job_id, "response_id": response.response_id, "key_id": row.prefix, "request_id": "cmpl-1",
        "rest": "nowhere", "path": "registry/app.css", "object_id": 1, "content_type_id": 1, "id": 1, "url": "nowhere",
        "app_label": "inference", "owner": key, "quantisation_id": quantisation.pk,
        "measurement_id": measurement.pk, "run_id": run.pk, "passport_id": passport.pk, "alias": "alias",
        "digest": "sha256:" + "0" * 64, "pull_id": pull.pk, "chat_id": chat.chat_id, "prefix": row.prefix,
        "adapter_id": adapter.pk, "key": state.pk, "account_id": chat.owner_id,
    }  # fmt: skip


@pytest.fixture
def callers(objects) -> dict[str, dict[str, Any]]:
    """The arguments of a client's request by caller."""
    revoked, revoked_key = api_key_create(name="revoked")
    api_key_revoke(prefix=revoked.prefix)
    expired, expired_key = api_key_create(name="expired")
    ApiKey.objects.filter(pk=expired.pk).update(expires_at=timezone.now() - timedelta(days=1))
    keys = {
        "bad": revoked_key[:-8] + "0" * 8,
        "revoked": revoked_key,
        "expired": expired_key,
        "other": api_key_create(name="other", scopes=(*DEFAULT_SCOPES, "lifecycle", "priority", "metrics"))[1],
        "owner": objects["owner"],
        "admin": api_key_create(name="admin", scopes=["admin"])[1],
    }
    found: dict[str, dict[str, Any]] = {"nothing": {}, "local": {}}
    found |= {name: {"HTTP_AUTHORIZATION": f"Bearer {key}"} for name, key in keys.items()}
    for name in SESSIONS:
        client = Client()
        client.force_login(account(name, None if name == "norole" else name))
        found[name] = {"HTTP_COOKIE": f"sessionid={client.cookies['sessionid'].value}"}
    return found


def asked(route: str, view: Any, method: str) -> tuple[str, ...]:
    """The callers who are tried: all, or the strongest where keys (Django's admin) or methods have no handler."""
    if route.startswith("/admin/"):
        return (*STRONGEST, *SESSIONS) if method in ("GET", "POST") else ()
    return CALLERS if view is None or hasattr(view, method.lower()) else STRONGEST


def address(route: str, objects: dict[str, Any]) -> str:
    """The path of a route for the objects."""
    path = re.sub(r"\(\?P<(\w+)>(?:[^()]|\([^()]*\))*\)", lambda found: str(objects[found[1]]), route)
    return re.sub(r"<(?:\w+:)?(\w+)>", lambda found: str(objects[found[1]]), path)


def cell(response: Any) -> str:
    """What a caller met: ``+``, or the status of the refusal."""
    status = response.status_code
    if status == 302 and "/login/" not in response["Location"]:
        return "+"
    if status == 404 and not _is_of_api(response.request["PATH_INFO"]):
        return "+"
    return str(status) if status in (*REFUSALS, 404) else "+"


def _is_of_api(path: str) -> bool:
    return path.startswith(("/v1/", "/api/"))


def declared() -> dict[str, list[str]]:
    """The table: a row's method and route, and its cells."""
    found = {}
    for text in TABLE.read_text().splitlines():
        if text.strip() and not text.startswith("#"):
            method, route, *cells = text.split()
            found[f"{method} {route}"] = cells
    return found


@pytest.mark.fault(
    "F59",
    provoked="every route and the WebSocket with every method, by fourteen kinds of callers: no key, a wrong, revoked, "
    "expired, unscoped, foreign, own and admin's key, this machine without one, and accounts of every role",
    holds="who gets in is what `access_table.txt` says; a route that isn't in the table fails the test; another "
    "tenant's object is 404",
)
@pytest.mark.django_db
def test_every_route_lets_in_whom_the_table_says(objects, callers, settings, monkeypatch, redis_urls_in_settings):
    monkeypatch.setattr(worker_questions, "REPLY_TIMEOUT_S", 0.0)  # there is no worker
    monkeypatch.setattr("channels.db.close_old_connections", lambda: None)  # the test's transaction is open
    settings.ALLOWED_HOSTS = ["testserver"]
    settings.BLAZR_API_KEY_REQUIRED = True  # restored at the end
    found: dict[str, list[str]] = {}
    # DELETE comes last: the bytes of a file stay deleted when its row is back.
    for method in METHODS:
        for route, view in dict(routes(get_resolver())).items():
            unscoped = api_key_create(name="unscoped", scopes=SCOPES_OF_UNSCOPED.get(route, ("metrics",)))[1]
            callers["unscoped"] = {"HTTP_AUTHORIZATION": f"Bearer {unscoped}"}
            cells = ["."] * len(CALLERS)
            for number, name in enumerate(CALLERS):
                if name not in asked(route, view, method):
                    continue
                django_settings.BLAZR_API_KEY_REQUIRED = name != "local"
                point = transaction.savepoint()
                response = Client(raise_request_exception=False).generic(
                    method, address(route, objects), b"{}", content_type="application/json", **callers[name]
                )
                assert response.status_code != 500, (method, route, name)
                cells[number] = cell(response)
                transaction.savepoint_rollback(point)
            if "+" in cells:
                found[f"{method} {route}"] = cells
    table = {row: cells for row, cells in declared().items() if not row.startswith("WS ")}
    wrong = [f"{row} {' '.join(cells)}" for row, cells in found.items() if table.get(row) != cells]
    wrong += [f"{row} (the table has it, nobody gets in)" for row in table if row not in found]
    assert not wrong, "\n".join(["# " + " ".join(CALLERS), *wrong])


# --- what pages show -------------------------------------------------------------------------------


class Offers(HTMLParser):
    """Method and address of each link, button and form of a page, without Django's admin and the way out."""

    ATTRIBUTES: ClassVar[dict[str, str]] = {
        "href": "GET", "hx-get": "GET", "data-post": "POST", "data-delete-url": "DELETE"
    }  # fmt: skip

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: set[tuple[str, str]] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        pairs = [(method, values.get(name)) for name, method in self.ATTRIBUTES.items()]
        if tag == "form":
            pairs.append((str(values.get("method", "get")).upper(), values.get("action")))
        for method, text in pairs:
            path = urlsplit(text or "").path
            if path.startswith("/") and not path.startswith(("/admin/", "/static/", "/logout/")):
                self.found.add((method, path))


@pytest.mark.django_db
@pytest.mark.parametrize("role", [name for name in SESSIONS if name != "norole"])
def test_pages_offer_only_what_the_table_lets_in(role, objects, callers, monkeypatch) -> None:
    """Each page that the role may open, each tab of a model: no link, button or form leads to a refusal."""
    monkeypatch.setattr(worker_questions, "REPLY_TIMEOUT_S", 0.0)
    table, column = declared(), CALLERS.index(role)
    pages = [
        address(row.split()[1], objects)
        for row, cells in table.items()
        if row.startswith("GET /") and cells[column] == "+" and not row.startswith(("GET /admin/", "GET /v1/"))
    ]
    model = f"/models/{objects['checkpoint_id']}/"
    pages += [f"{model}?tab={tab}" for tab in TABS] if model in pages else []
    wrong, num_offers = set(), 0
    for page in pages:
        response = Client().get(page, **callers[role])
        if response.status_code != 200 or not response["Content-Type"].startswith("text/html"):
            continue
        for method, path in Offers(response.content.decode()).found:
            row = f"{method} /{resolve(path).route.removeprefix('^').removesuffix('$')}"
            num_offers += 1
            if table.get(row, ["403"] * len(CALLERS))[column] not in ("+", "404"):
                wrong.add(f"{page} offers {row}")
    assert not wrong, "\n".join(sorted(wrong))
    assert num_offers


WEBSOCKET = "/v1/stream"
CONSOLE_SOCKET = "/console/live"


async def _websocket(arguments: dict[str, Any]) -> str:
    """Ask for a generation without a model: ``+`` if only the model is missed, else how the caller was refused."""
    names = {"HTTP_AUTHORIZATION": b"authorization", "HTTP_COOKIE": b"cookie"}
    headers = [(b"host", b"testserver"), (b"origin", b"http://testserver")]
    headers += [(names[name], value.encode()) for name, value in arguments.items()]
    scope = {"type": "websocket", "path": WEBSOCKET, "headers": headers, "client": ("127.0.0.1", 50000)}
    connection = ApplicationCommunicator(application, {**scope, "query_string": b"", "subprotocols": []})
    await connection.send_input({"type": "websocket.connect"})
    message = await connection.receive_output(60)
    if message["type"] == "websocket.accept":
        frame = {"type": "chat", "id": "a", "request": {"model": "nobody-has-it", "messages": []}}
        await connection.send_input({"type": "websocket.receive", "text": orjson.dumps(frame).decode()})
        message = await connection.receive_output(60)
    await connection.send_input({"type": "websocket.disconnect", "code": 1000})
    await connection.wait(60)
    if message["type"] == "websocket.close":
        return str(message["code"])
    status = orjson.loads(message["text"])["status"]
    return str(status) if status in REFUSALS else "+"


@pytest.mark.django_db
def test_the_websocket_lets_in_whom_the_table_says(callers, settings, monkeypatch):
    monkeypatch.setattr("channels.db.close_old_connections", lambda: None)
    settings.ALLOWED_HOSTS = ["testserver"]
    callers["unscoped"] = {"HTTP_AUTHORIZATION": f"Bearer {api_key_create(name='unscoped', scopes=['metrics'])[1]}"}
    cells = []
    for name in CALLERS:
        settings.BLAZR_API_KEY_REQUIRED = name != "local"
        cells.append(async_to_sync(_websocket)(callers[name]))
    assert declared()[f"WS {WEBSOCKET}"] == cells


async def _console_socket(arguments: dict[str, Any]) -> str:
    """Open the pages' socket: ``+`` if it stays open, else the code of its end."""
    headers = [(b"host", b"testserver"), (b"origin", b"http://testserver")]
    headers += [(b"cookie", value.encode()) for name, value in arguments.items() if name == "HTTP_COOKIE"]
    scope = {"type": "websocket", "path": CONSOLE_SOCKET, "headers": headers, "client": ("127.0.0.1", 50000)}
    connection = ApplicationCommunicator(application, {**scope, "query_string": b"", "subprotocols": []})
    await connection.send_input({"type": "websocket.connect"})
    assert (await connection.receive_output(60))["type"] == "websocket.accept"
    first = await connection.receive_output(60)  # its first report, or its end
    found = "+" if first["type"] == "websocket.send" else str(first["code"])
    await connection.send_input({"type": "websocket.disconnect", "code": 1000})
    await connection.wait(60)
    return found


@pytest.mark.django_db
def test_the_pages_socket_lets_in_whom_the_table_says(callers, monkeypatch, settings):
    monkeypatch.setattr("channels.db.close_old_connections", lambda: None)
    settings.ALLOWED_HOSTS = ["testserver"]
    callers["unscoped"] = {}
    assert declared()[f"WS {CONSOLE_SOCKET}"] == [async_to_sync(_console_socket)(callers[name]) for name in CALLERS]


def test_the_socket_has_no_other_routes():
    routed = application.application_mapping["websocket"]
    while not hasattr(routed, "routes"):
        routed = getattr(routed, "inner", None) or routed._app
    assert [str(route.pattern) for route in routed.routes] == [
        WEBSOCKET.removeprefix("/"),
        CONSOLE_SOCKET.removeprefix("/"),
        "",  # refuses all others
    ]
    assert routed.routes[-1].callback is refuse_socket
