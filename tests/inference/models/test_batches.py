"""Rows of batches: states, open lines, and what the database itself refuses."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from inference.models import Batch, BatchLine, BatchResult
from inference.models.batches import BatchState

CHECKPOINT = "0b5b6f1e-0d9a-4f5e-9b57-9b4f5b3f6d11"


def batch(**columns: Any) -> Batch:
    now = timezone.now()
    values = {"batch_id": "batch_1", "tenant": "local", "endpoint": "/v1/completions", "input_file_id": "file-1"}
    return Batch(**values | {"created_at": now, "expires_at": now, "completion_window": "24h"} | columns)


@pytest.mark.parametrize("state", BatchState.values)
def test_the_last_four_states_are_final(state):
    assert batch(state=state).is_finished is (state in ("completed", "failed", "expired", "cancelled"))


def test_open_lines_are_those_without_a_result():
    assert batch(num_total=9, num_completed=3, num_failed=2).num_open == 4
    # A batch that was cancelled while it was read has results of lines that were never counted.
    assert batch(num_total=1, num_completed=1, num_failed=1).num_open == 0


@pytest.mark.django_db
def test_lines_of_a_batch_have_ids_of_their_own_and_one_result():
    first, second = batch(), batch(batch_id="batch_2")
    first.save()
    second.save()
    line = BatchLine.objects.create(batch=first, number=1, custom_id="a", checkpoint_id=CHECKPOINT, body="{}")
    BatchLine.objects.create(batch=second, number=1, custom_id="a", checkpoint_id=CHECKPOINT, body="{}")
    with pytest.raises(IntegrityError), transaction.atomic():
        BatchLine.objects.create(batch=first, number=2, custom_id="a", checkpoint_id=CHECKPOINT, body="{}")
    result = {"line": line, "batch": first, "is_error": False, "payload": "{}", "finished_at": timezone.now()}
    BatchResult.objects.create(**result)
    with pytest.raises(IntegrityError), transaction.atomic():
        BatchResult.objects.create(**result)
    first.delete()
    assert [row.batch_id for row in BatchLine.objects.all()] == [second.pk]
    assert not BatchResult.objects.exists()


@pytest.mark.django_db
def test_the_newest_batch_comes_first():
    for name in ("batch_1", "batch_2", "batch_3"):
        batch(batch_id=name).save()
    assert [row.batch_id for row in Batch.objects.all()] == ["batch_3", "batch_2", "batch_1"]
