"""Rows of saved states: owners, names, budgets, expiry, and what is left in the store."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connections
from django.utils import timezone

from inference.errors import Conflict, InvalidRequest, NotFound, QueueFull, RequestTooLarge
from inference.files.services import files_sweep
from inference.files.store import FileWriter
from inference.models import StoredFile, StoredState
from inference.states import services as states
from inference.values.limits import estimate_tokens
from inference.values.messages import StateOrder
from inference.values.plan import GenerationPlan
from inference.values.sampling_params import SamplingParams

pytestmark = pytest.mark.django_db(transaction=True)
FACTS = states.StateFacts("demo", "a" * 64, 7, has_conversation=False)


@pytest.fixture(autouse=True)
def store(settings, tmp_path, monkeypatch):
    settings.BLAZR_FILES_DIR = tmp_path / "files"
    monkeypatch.setattr(states, "MAX_BYTES_PER_TENANT", 100)
    return tmp_path / "files"


def create(name, content=b"x" * 40, *, tenant="a", pinned=False, replaces=False, request_id="", expires_s=None):
    writer = FileWriter()
    writer.write(content)
    order = StateOrder(name=name, tenant=tenant, model="demo", is_pinned=pinned, expires_s=expires_s, replaces=replaces)
    return states.state_create(writer=writer, facts=FACTS, order=order, request_id=request_id)


def contents(store: Path) -> list[bytes]:
    return sorted(path.read_bytes() for path in store.rglob("*") if path.is_file() and path.name != ".lock")


def test_a_state_belongs_to_its_tenant(store):
    create("one")
    assert states.state_get(name="one", tenant="a").num_tokens == 7
    for call in (states.state_get, states.state_delete):
        with pytest.raises(NotFound, match="There is no state 'one'"):
            call(name="one", tenant="b")
    create("one", tenant="b")
    assert [len(states.state_list(tenant=tenant, after=None, limit=9)) for tenant in ("a", "b", "c")] == [1, 1, 0]
    states.state_delete(name="one", tenant="a")
    assert contents(store) == [b"x" * 40], "the other tenant's row has the same bytes"
    states.state_delete(name="one", tenant="b")
    assert contents(store) == []


def test_a_name_is_taken_once(store):
    create("one", b"first", request_id="r1")
    with pytest.raises(Conflict, match="There is a state 'one' already"):
        create("one", b"second")
    with pytest.raises(Conflict):
        states.check_name_is_free(name="one", tenant="a")
    assert create("one", b"a second attempt", request_id="r1").file.size_bytes == 5
    create("one", b"third", replaces=True)
    assert contents(store) == [b"third"] and StoredFile.objects.count() == 1


@pytest.mark.parametrize("name", ["", ".", "-a", "a/b", "a b", "é", "x" * 65, "a\0"])
def test_names_that_are_refused(name):
    with pytest.raises(InvalidRequest, match="use 1 to 64 letters, digits"):
        states.check_state_name(name)
    with pytest.raises(NotFound):
        states.state_get(name=name, tenant="a")


def test_states_not_used_for_longest_make_room(store):
    for name, pinned in (("old", False), ("kept", True), ("new", False)):
        create(name, name.encode() * 10, pinned=pinned)
    StoredState.objects.filter(name="new").update(last_used_at=timezone.now() - timedelta(days=1))
    plan = GenerationPlan("completion", "demo", ({"text": ""},), SamplingParams(), state="new")
    assert states.plan_with_state(plan, "a").state_file == states.state_get(name="new", tenant="a").file.sha256
    create("big", b"y" * 30)
    assert {row.name for row in states.states_of("a")} == {"kept", "new", "big"}
    with pytest.raises(RequestTooLarge, match=r"your pinned states have 40 B; the limit is 100 B"):
        create("bigger", b"y" * 61)
    assert {row.name for row in states.states_of("a")} == {"kept", "new", "big"}, "a refused state takes nobody's room"
    assert len(contents(store)) == 3


def test_expired_states_are_gone_and_pinned_ones_stay(store, settings):
    create("short", b"1", expires_s=3600)
    create("kept", b"2", expires_s=3600, pinned=True)
    StoredFile.objects.filter(expires_at__isnull=False).update(expires_at=timezone.now())
    with pytest.raises(NotFound):
        states.state_get(name="short", tenant="a")
    assert create("short", b"3").file.size_bytes == 1, "the name of an expired state is free"
    settings.BLAZR_FILE_EXPIRE_DAYS = 1
    assert states.state_set_pinned(name="kept", tenant="a", is_pinned=False).file.expires_at is not None
    StoredFile.objects.update(expires_at=timezone.now())
    assert files_sweep() == 2 and contents(store) == [] and not StoredState.objects.exists()


def test_there_are_only_so_many(monkeypatch):
    monkeypatch.setattr(states, "MAX_STATES_PER_TENANT", 1)
    create("one", b"1")
    with pytest.raises(QueueFull, match="1 states are saved already; delete some first"):
        create("two", b"2")
    assert create("one", b"2", replaces=True).file.size_bytes == 1


def test_expired_states_make_room_first(store, monkeypatch):
    """They are in no list, so nobody could delete them."""
    create("used long ago", b"1" * 40)
    create("expired", b"2" * 40, expires_s=3600)
    StoredFile.objects.filter(state__name="expired").update(expires_at=timezone.now())
    create("new", b"3" * 60)
    assert [row.name for row in StoredState.objects.order_by("pk")] == ["used long ago", "new"]
    assert contents(store) == [b"1" * 40, b"3" * 60]
    StoredFile.objects.filter(state__name="new").update(expires_at=timezone.now())
    monkeypatch.setattr(states, "MAX_STATES_PER_TENANT", 2)
    create("newest", b"4")
    assert [row.name for row in StoredState.objects.order_by("pk")] == ["used long ago", "newest"]


def meanwhile(monkeypatch, name, act):
    """After ``states.NAME`` has returned, let another thread act for half a second; returns what it raised."""
    original, raised, threads = getattr(states, name), [], []

    def run():
        try:
            act()
        except Exception as error:
            raised.append(error)
        finally:
            connections.close_all()

    def call(*args, **kwargs):
        found = original(*args, **kwargs)
        monkeypatch.setattr(states, name, original)
        threads.append(threading.Thread(target=run))
        threads[0].start()
        threads[0].join(0.5)
        return found

    monkeypatch.setattr(states, name, call)
    return threads, raised


def test_a_state_that_is_deleted_while_it_is_pinned(store, monkeypatch):
    create("one")
    threads, raised = meanwhile(monkeypatch, "state_get", lambda: states.state_delete(name="one", tenant="a"))
    assert states.state_set_pinned(name="one", tenant="a", is_pinned=True).is_pinned
    threads[0].join()
    assert not raised and contents(store) == []


def test_a_state_that_is_pinned_while_it_makes_room(store, monkeypatch):
    create("old", b"1" * 60)

    def pin():
        states.state_set_pinned(name="old", tenant="a", is_pinned=True)

    threads, raised = meanwhile(monkeypatch, "_superfluous", pin)
    create("new", b"2" * 60)
    threads[0].join()
    is_pinned = [row.is_pinned for row in states.states_of("a") if row.name == "old"]
    assert is_pinned == [True] or isinstance(raised[0], NotFound), "a state that was pinned is deleted"


def test_a_save_that_ends_before_its_transaction_leaves_no_file_without_a_name(store, monkeypatch):
    create("one", b"1", pinned=True)

    def fail(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(states, "unnamed_bytes_remove", fail)
    with pytest.raises(KeyboardInterrupt):
        create("one", b"2", replaces=True)
    assert [row.file.size_bytes for row in states.states_of("a")] == [1] and StoredFile.objects.count() == 1


def test_larger_files_than_are_read_are_refused(store, monkeypatch):
    monkeypatch.setattr(states, "MAX_SERVED_FILE_BYTES", 9)
    with pytest.raises(RequestTooLarge, match="The state's file has 10 B, at most 9 B are taken"):
        create("one", b"x" * 10)
    assert contents(store) == []


def test_a_state_counts_in_a_request_s_estimate(store):
    create("one", b"1")
    plan = GenerationPlan("completion", "demo", ({"text": ""},) * 2, SamplingParams(max_tokens=1), state="one")
    assert estimate_tokens(states.plan_with_state(plan, "a")) - estimate_tokens(plan) == 2 * FACTS.num_tokens


def test_a_save_finds_its_own_state_only():
    create("one", request_id="r1")
    assert states.state_saved(name="one", tenant="a", request_id="r1").name == "one"
    create("one", request_id="r2", replaces=True)
    with pytest.raises(Conflict, match="was saved, and another request has deleted or replaced it since"):
        states.state_saved(name="one", tenant="a", request_id="r1")
