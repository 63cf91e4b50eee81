"""The WebSocket that tells pages what has changed."""

from __future__ import annotations

import asyncio

import orjson
import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.contrib.auth.models import AnonymousUser

from inference.pages import live as pages_live
from inference.pages.live import ConsoleConsumer, read_topics
from tests.accounts import account
from tests.models_registry.detection.builders import small_hybrid, write_checkpoint

pytestmark = pytest.mark.django_db(transaction=True)


async def connected(user) -> ApplicationCommunicator:
    scope = {"type": "websocket", "path": "/console/live", "headers": [], "user": user}
    found = ApplicationCommunicator(ConsoleConsumer.as_asgi(), scope)
    await found.send_input({"type": "websocket.connect"})
    assert (await found.receive_output(5))["type"] == "websocket.accept"
    return found


async def told(page: ApplicationCommunicator) -> dict:
    return orjson.loads((await page.receive_output(10))["text"])


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(pages_live, "PERIOD_S", 0.05)


async def test_strangers_are_closed_with_a_code_that_browsers_see():
    page = await connected(AnonymousUser())
    closed = await page.receive_output(5)
    assert (closed["type"], closed["code"]) == ("websocket.close", 4401)


async def test_a_change_is_told_once_to_who_may_see_it(tmp_path):
    from models_registry.services import checkpoint_register

    viewer = await connected(await sync_to_async(account)("vera", "viewer"))
    nobody = await connected(await sync_to_async(account)("nobody"))
    first = await told(viewer)
    assert first["changed"] == [] and set(first["memory"]) == {"used", "budget"} and "uploads" not in first
    assert "memory" not in (await told(nobody))
    await sync_to_async(checkpoint_register)(path=write_checkpoint(tmp_path / "tiny", *small_hybrid()))
    assert "models" in (await told(viewer))["changed"]
    await asyncio.sleep(0.3)
    assert await viewer.receive_nothing(0.2)
    for page in (viewer, nobody):
        await page.send_input({"type": "websocket.disconnect", "code": 1000})
        await page.wait()


def test_topics_can_be_compared_without_a_server():
    assert read_topics()[0] == read_topics()[0]
