"""The WebSocket that tells pages what has changed."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import orjson
import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.db.models import F
from django.test import Client
from django.utils import timezone

from inference.models import Batch, GenerationJob
from inference.pages import live as pages_live
from inference.pages.live import ConsoleConsumer, read_topics
from models_registry.services import checkpoint_register
from tests.accounts import account
from tests.inference.batches.fakes import line, make_batch
from tests.inference.models.test_jobs import make_job
from tests.models_registry.detection.builders import small_hybrid, write_checkpoint

pytestmark = pytest.mark.django_db(transaction=True)


def signed_in(user) -> Any:
    client = Client()
    client.force_login(user)
    return client.session


def end_sessions(user: User) -> None:
    for session in Session.objects.all():
        if session.get_decoded()["_auth_user_id"] == str(user.pk):
            session.delete()


async def connected(user) -> ApplicationCommunicator:
    session = SessionStore() if user is None else await sync_to_async(signed_in)(user)
    scope = {"type": "websocket", "path": "/console/live", "headers": [], "session": session}
    found = ApplicationCommunicator(ConsoleConsumer.as_asgi(), scope)
    await found.send_input({"type": "websocket.connect"})
    assert (await found.receive_output(60))["type"] == "websocket.accept"
    return found


async def told(page: ApplicationCommunicator) -> dict:
    return orjson.loads((await page.receive_output(60))["text"])


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(pages_live, "PERIOD_S", 0.05)
    monkeypatch.setattr(pages_live, "LINGER_S", 0.0)


async def test_strangers_are_closed_with_a_code_that_browsers_see():
    page = await connected(None)
    closed = await page.receive_output(60)
    assert (closed["type"], closed["code"]) == ("websocket.close", 4401)


async def test_a_change_is_told_once_to_who_may_see_it(monkeypatch, tmp_path):
    # Open requests of earlier tests would change by themselves.
    monkeypatch.setattr(pages_live, "TOPICS", {"models": pages_live.TOPICS["models"]})
    viewer = await connected(await sync_to_async(account)("vera", "viewer"))
    nobody = await connected(await sync_to_async(account)("nobody"))
    first = await told(viewer)
    assert first["changed"] == [] and set(first["memory"]) == {"used", "budget"}
    assert not {"uploads", "pulls"} & first.keys()
    assert "memory" not in (await told(nobody))
    await sync_to_async(checkpoint_register)(path=write_checkpoint(tmp_path / "tiny", *small_hybrid()))
    assert "models" in (await told(viewer))["changed"]
    await asyncio.sleep(0.3)
    assert await viewer.receive_nothing(0.2)
    for page in (viewer, nobody):
        await page.send_input({"type": "websocket.disconnect", "code": 1000})
        await page.wait()


async def test_a_page_learns_what_changed_before_its_connection(monkeypatch, tmp_path):
    """Its HTML is older than its connection: a change between the two was told to other pages only, or to none."""
    monkeypatch.setattr(pages_live, "TOPICS", {"models": pages_live.TOPICS["models"], "still": lambda seen: 0})
    monkeypatch.setattr(pages_live, "LINGER_S", 60.0)
    user = await sync_to_async(account)("vera", "viewer")
    first = await connected(user)
    assert set((await told(first))["ages"]) == {"models", "still", "uploads"}
    await sync_to_async(checkpoint_register)(path=write_checkpoint(tmp_path / "tiny", *small_hybrid()))
    frame = await told(first)
    assert frame["changed"] == ["models"] and "ages" not in frame
    second = await connected(user)
    ages = (await told(second))["ages"]
    assert 0 <= ages["models"] < ages["still"]
    for page in (first, second):
        await page.send_input({"type": "websocket.disconnect", "code": 1000})
        await page.wait()
    third = await connected(user)  # the states were compared meanwhile
    later = (await told(third))["ages"]
    assert later["models"] > ages["models"] and later["still"] > ages["still"]


async def test_an_open_page_sees_no_more_than_its_account_may_see_now(monkeypatch, tmp_path):
    monkeypatch.setattr(pages_live, "RECHECK_S", 0.2)
    users = {name: await sync_to_async(account)(name, "operator") for name in ("off", "out", "less")}
    pages = {name: await connected(user) for name, user in users.items()}
    for page in pages.values():
        assert {"uploads", "pulls"} <= (await told(page)).keys()
    await sync_to_async(User.objects.filter(username="off").update)(is_active=False)
    await sync_to_async(end_sessions)(users["out"])
    await sync_to_async(users["less"].groups.clear)()
    for name in ("off", "out"):
        while (sent := await pages[name].receive_output(60))["type"] == "websocket.send":
            pass
        assert (sent["type"], sent["code"]) == ("websocket.close", 4401)
    async with asyncio.timeout(60):
        while any(page.sees_models or page.sees_uploads for page in ConsoleConsumer._open):
            await asyncio.sleep(0.02)
    await sync_to_async(checkpoint_register)(path=write_checkpoint(tmp_path / "tiny", *small_hybrid()))
    while "models" not in (frame := await told(pages["less"]))["changed"]:
        pass
    assert not {"memory", "uploads", "pulls"} & frame.keys()
    for page in pages.values():
        await page.send_input({"type": "websocket.disconnect", "code": 1000})
        await page.wait()


def test_topics_can_be_compared_without_a_server(monkeypatch):
    # Where another test has left a request open, the topic changes with time, too.
    monkeypatch.setattr(pages_live, "_RUNNING_PERIOD_S", 1e9)
    assert read_topics()[0] == read_topics()[0]


def test_what_runs_is_seen_behind_newer_rows_that_wait(monkeypatch, data_dir):
    monkeypatch.setattr(pages_live, "_NUM_ROWS", 2)
    job, batch = make_job(), make_batch([line("a")])
    for number in range(3):
        make_job()
        make_batch([line(str(number))])
    now = timezone.now()
    seen = [read_topics()[0]]
    for values in (
        {"state": "running", "lease_until": now},
        {"completion_tokens": 5},
        {"state": "succeeded", "lease_until": None, "finished_at": now},
    ):
        GenerationJob.objects.filter(pk=job.pk).update(**values)
        Batch.objects.filter(pk=batch.pk).update(num_completed=F("num_completed") + 1)
        seen.append(read_topics()[0])
    for before, after in pairwise(seen):
        assert before["jobs"] != after["jobs"] and before["batches"] != after["batches"]
