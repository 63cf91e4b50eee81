"""Requests end with their keys: when one is revoked, or expires, while they run."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.db import DatabaseError
from django.utils import timezone

from inference.access import key_watch as module
from inference.access.api_keys import api_key_create, api_key_revoke
from inference.access.key_watch import KeyWatch
from inference.errors import BlazrError, NotAuthenticated
from inference.models import ApiKey

pytestmark = pytest.mark.django_db(transaction=True)


class Running:
    def __init__(self) -> None:
        self.error: BlazrError | None = None

    def give_up(self, error: BlazrError) -> None:
        self.error = error


@pytest.fixture
def keys() -> list[ApiKey]:
    return [api_key_create(name=name)[0] for name in ("a", "b", "c")]


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(module, "WATCH_S", 0.05)


async def ended(*requests: Running) -> None:
    async with asyncio.timeout(60):
        while any(request.error is None for request in requests):
            await asyncio.sleep(0.01)


async def test_only_what_runs_under_a_void_key_is_ended(keys):
    watch = KeyWatch()
    requests = [Running() for _ in keys]
    for request, row in zip(requests, keys, strict=True):
        watch.add(request, row.pk)
    await sync_to_async(api_key_revoke)(prefix=keys[0].prefix)
    await sync_to_async(ApiKey.objects.filter(pk=keys[1].pk).update)(expires_at=timezone.now() - timedelta(seconds=1))
    await ended(*requests[:2])
    assert all(isinstance(request.error, NotAuthenticated) for request in requests[:2])
    assert requests[2].error is None
    watch.remove(requests[2])


async def test_a_request_that_has_ended_is_left_alone_and_the_watch_rests(keys):
    watch = KeyWatch()
    first, second = Running(), Running()
    watch.add(first, keys[0].pk)
    watch.add(second, keys[0].pk)
    watch.remove(first)
    watch.remove(first)
    await sync_to_async(api_key_revoke)(prefix=keys[0].prefix)
    await ended(second)
    assert first.error is None
    watch.remove(second)
    async with asyncio.timeout(60):
        while watch._task is not None:
            await asyncio.sleep(0.01)
    third = Running()
    watch.add(third, keys[0].pk)  # a new watch begins
    await ended(third)
    watch.remove(third)


async def test_all_requests_of_a_loop_cost_one_query_off_the_loop(keys, monkeypatch):
    looked_up: list[tuple[set[int], bool]] = []
    valid_keys = module._valid_keys

    def record(wanted: set[int]) -> set[int]:
        looked_up.append((wanted, threading.current_thread() is threading.main_thread()))
        return valid_keys(wanted)

    monkeypatch.setattr(module, "_valid_keys", record)
    watch = KeyWatch()
    requests = [Running() for _ in range(20)]
    for number, request in enumerate(requests):
        watch.add(request, keys[number % 2].pk)
    async with asyncio.timeout(60):
        while not looked_up:
            await asyncio.sleep(0.01)
    for request in requests:
        watch.remove(request)
    assert looked_up[0] == ({keys[0].pk, keys[1].pk}, False)


async def test_without_the_database_nothing_is_ended(keys, monkeypatch):
    num_calls = 0

    def away(wanted: set[int]) -> set[int]:
        nonlocal num_calls
        num_calls += 1
        raise DatabaseError("away")

    monkeypatch.setattr(module, "_valid_keys", away)
    watch, request = KeyWatch(), Running()
    watch.add(request, keys[0].pk)
    async with asyncio.timeout(60):
        while num_calls < 2:
            await asyncio.sleep(0.01)
    assert request.error is None
    watch.remove(request)
