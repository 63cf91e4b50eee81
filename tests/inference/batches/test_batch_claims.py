"""Claims of batches: one owner at a time, fenced writes, an end that lets others go on."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from inference.batches.batch_claims import LEASE_S, FenceLost, batch_claim, batches_abandon
from inference.models import Batch
from tests.inference.batches.fakes import line, make_batch
from tests.inference.row_locks import assert_in_order, on_postgresql


def claimed(owner: str, stopping=lambda: False):
    return batch_claim(Batch.objects.all(), owner=owner, stopping=stopping)


def test_a_claimed_batch_is_one_owner_s_until_its_lease_lapses(model):
    make_batch([line("a")])
    first = claimed("one")
    assert first is not None and first.row.owner == "one"
    assert claimed("two") is None
    first.keep(priority=3)
    Batch.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
    second = claimed("two")
    assert second is not None and second.row.fence == first.row.fence + 1
    with pytest.raises(FenceLost):
        first.write(priority=4)
    assert Batch.objects.get().priority == 3


def test_a_lease_from_before_the_clock_was_set_back_lapses_in_time(model):
    make_batch([line("a")])
    claimed("one")
    Batch.objects.update(lease_until=timezone.now() + timedelta(hours=1))
    assert claimed("two") is None
    left = Batch.objects.get().lease_until - timezone.now()
    assert left <= timedelta(seconds=LEASE_S)


def test_a_batch_that_is_given_back_is_anybody_s(model):
    make_batch([line("a")])
    first = claimed("one")
    first.give_back()
    assert Batch.objects.get().owner == ""
    assert claimed("two") is not None


def test_a_process_that_stops_leaves_the_rest_to_others(model):
    make_batch([line("a")])
    first = claimed("one", stopping=lambda: True)
    with pytest.raises(FenceLost):
        first.pause()
    assert claimed("two") is not None
    claimed_again = Batch.objects.get()
    assert claimed_again.owner == "two"


def test_lower_priority_numbers_go_first(model):
    late, soon = make_batch([line("a")]), make_batch([line("b")])
    Batch.objects.filter(pk=late.pk).update(priority=5)
    Batch.objects.filter(pk=soon.pk).update(priority=-5)
    assert claimed("one").row.pk == soon.pk


def test_a_process_that_starts_again_frees_what_its_predecessor_held(model):
    make_batch([line("a")])
    first = claimed("one")
    assert batches_abandon(owner="two") == 0
    assert claimed("two") is None
    assert batches_abandon(owner="one") == 1
    assert claimed("two") is not None
    with pytest.raises(FenceLost):
        first.keep()


@on_postgresql
def test_leases_of_batches_are_ended_in_the_order_of_their_keys(model):
    first, second = (make_batch([line(name)]) for name in "ab")
    assert claimed("one") and claimed("one")
    assert_in_order(lambda: batches_abandon(owner="one"), first, second)
