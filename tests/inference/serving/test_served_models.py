"""Rows of served models: read once at a time, cached for a while, and never from before the cache was cleared."""

from __future__ import annotations

import asyncio
import threading

import pytest
from django.db import OperationalError

from inference.errors import UnknownModel
from inference.serving import served_models as selectors
from inference.serving.served_models import served_model_cache_clear, served_model_get
from inference.values.served_model import ServedModel
from inference.values.tokenizer_spec import TokenizerSpec
from tests.inference.rows import make_checkpoint

pytestmark = pytest.mark.django_db(transaction=True)  # connections of the thread are looked at


def served(version: str = "1") -> ServedModel:
    return ServedModel("id", "tiny", 0, 100, 100, TokenizerSpec("none", 100), version)


class Rows:
    """Stands for the database: notes each reading, and holds it up while ``may_answer`` isn't set."""

    def __init__(self) -> None:
        self.readings = 0
        self.found: ServedModel | Exception = served()
        self.may_answer = threading.Event()
        self.may_answer.set()

    def __call__(self, name: str, known: ServedModel | UnknownModel | None) -> ServedModel | UnknownModel:
        self.readings += 1
        found = self.found
        assert self.may_answer.wait(60)
        if isinstance(found, Exception) and not isinstance(found, UnknownModel):
            raise found
        return found

    async def until_read(self, readings: int) -> None:
        async with asyncio.timeout(60):
            while self.readings < readings:
                await asyncio.sleep(0.001)


@pytest.fixture
def rows(monkeypatch) -> Rows:
    found = Rows()
    monkeypatch.setattr(selectors, "_read", found)
    return found


async def test_a_row_is_read_once_however_many_ask(rows):
    found = await asyncio.gather(*(served_model_get(name="tiny") for _ in range(50)))
    assert set(found) == {served()}
    assert rows.readings == 1
    await served_model_get(name="tiny")
    assert rows.readings == 1


async def test_a_row_is_read_again_after_a_while(rows, monkeypatch):
    await served_model_get(name="tiny")
    monkeypatch.setattr(selectors, "CACHE_S", -1.0)
    rows.found = served("2")
    assert (await served_model_get(name="tiny")).version == "2"
    assert rows.readings == 2


async def test_names_that_nobody_serves_are_remembered_as_such(rows):
    rows.found = UnknownModel("The model 'tiny' does not exist.")
    for _ in range(3):
        with pytest.raises(UnknownModel, match="'tiny' does not exist"):
            await served_model_get(name="tiny")
    assert rows.readings == 1


async def test_a_client_that_leaves_does_not_fail_the_others(rows):
    rows.may_answer.clear()
    leaving, staying = (asyncio.ensure_future(served_model_get(name="tiny")) for _ in range(2))
    await rows.until_read(1)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    rows.may_answer.set()
    assert await staying == served()


async def test_what_was_read_before_the_cache_was_cleared_is_not_cached(rows):
    rows.may_answer.clear()
    early = asyncio.ensure_future(served_model_get(name="tiny"))
    await rows.until_read(1)
    rows.found = served("2")
    served_model_cache_clear()
    late = asyncio.ensure_future(served_model_get(name="tiny"))
    await asyncio.sleep(0.02)
    rows.may_answer.set()
    assert [(await early).version, (await late).version] == ["1", "2"]
    assert (await served_model_get(name="tiny")).version == "2"
    assert rows.readings == 2


async def test_a_database_that_is_away_is_asked_again_by_the_next_request(rows):
    rows.found = OperationalError("away")
    with pytest.raises(OperationalError):
        await served_model_get(name="tiny")
    rows.found = served()
    assert await served_model_get(name="tiny") == served()


@pytest.mark.django_db
def test_a_saved_checkpoint_is_served_as_it_is_at_once(monkeypatch, django_capture_on_commit_callbacks):
    monkeypatch.setattr(selectors, "_cache", {"tiny": (0.0, None)})
    with django_capture_on_commit_callbacks(execute=True):
        make_checkpoint()
        assert selectors._cache  # not before the new row can be read
    assert selectors._cache == {}
