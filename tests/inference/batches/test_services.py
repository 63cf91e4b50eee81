"""Batches are made once under a key, reordered and cancelled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inference.batches import services
from inference.errors import Conflict, IdempotencyKeyReused, NotFound, PermissionRefused
from inference.models import Batch
from inference.values.principal import LOCAL, UNAUTHENTICATED
from inference.values.request_key import RequestKey
from tests.inference.batches.fakes import line, store_file

KEY = RequestKey("a", "digest")


def create(key: RequestKey | None, **values) -> Batch:
    return services.batch_create(
        values={
            "input_file_id": store_file([line("a")]).file_id,
            "endpoint": "/v1/completions",
            "completion_window": "24h",
            **values,
        },
        principal=LOCAL,
        request_key=key,
    )


def test_a_key_makes_one_batch(model):
    assert create(KEY).pk == create(KEY).pk
    with pytest.raises(IdempotencyKeyReused):
        create(RequestKey("a", "other"))
    assert len({create(None).pk, create(None).pk, create(RequestKey("b", "digest")).pk}) == 3


def test_a_batch_that_another_process_stored_meanwhile_is_returned(model, monkeypatch):
    first = create(KEY)
    look, looks = services._batch_of_key, []

    def late(key: RequestKey, tenant: str) -> Batch | None:
        looks.append(key)
        return look(key, tenant) if len(looks) > 1 else None

    monkeypatch.setattr(services, "_batch_of_key", late)
    assert create(KEY).pk == first.pk
    assert len(looks) == 2
    assert Batch.objects.count() == 1


def test_the_priority_of_an_open_batch_is_changed_within_the_scope(model):
    first, second = create(None), create(None)
    change = services.batch_priority_set
    assert change(batch_id=first.batch_id, principal=LOCAL, priority=3).priority == 3
    assert list(services.open_batches()) == [second, first]
    with pytest.raises(PermissionRefused, match="priority is -1, which needs an API key with the scope 'priority'"):
        change(batch_id=first.batch_id, principal=UNAUTHENTICATED, priority=-1)
    assert change(batch_id=first.batch_id, principal=LOCAL, priority=-1).priority == -1
    assert list(services.open_batches()) == [first, second]
    with pytest.raises(NotFound):
        change(batch_id=first.batch_id, principal=replace(LOCAL, tenant="key:7"), priority=0)
    services.batch_cancel(batch_id=second.batch_id, principal=LOCAL)
    with pytest.raises(Conflict, match="can't be reordered any more"):
        change(batch_id=second.batch_id, principal=LOCAL, priority=0)
    assert Batch.objects.get(pk=second.pk).priority == 0


def test_what_ends_already_is_not_cancelled_and_says_how_it_ends(model):
    row = create(None)
    Batch.objects.filter(pk=row.pk).update(state="in_progress", ending="expired")
    with pytest.raises(Conflict, match="The batch is expired; it can't be cancelled any more"):
        services.batch_cancel(batch_id=row.batch_id, principal=LOCAL)
