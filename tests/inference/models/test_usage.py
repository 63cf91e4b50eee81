"""Rows of usage: one record of a request, one sum of a day."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from django.db import IntegrityError, transaction

from inference.models import UsageDay, UsageRecord

pytestmark = pytest.mark.django_db
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def record(request_id: str, at: datetime = NOON) -> UsageRecord:
    return UsageRecord.objects.create(
        request_id=request_id, tenant="local", endpoint="chat", model="tiny", outcome="completed", duration_s=1.5,
        prompt_tokens=3, completion_tokens=4, created_at=at,
    )  # fmt: skip


def test_a_request_is_recorded_once_and_the_newest_comes_first():
    record("old", NOON - timedelta(hours=1))
    assert str(record("new")) == "new: 3 + 4"
    assert [row.request_id for row in UsageRecord.objects.all()] == ["new", "old"]
    with pytest.raises(IntegrityError), transaction.atomic():
        record("new")


def test_contents_are_empty_unless_they_are_logged():
    found = record("r")
    assert (found.prompt, found.output, found.ttft_s) == ("", "", None)


def test_a_day_of_a_tenant_and_a_model_has_one_row():
    day = date(2026, 1, 2)
    UsageDay.objects.create(day=day, tenant="a", model="tiny")
    UsageDay.objects.create(day=day, tenant="b", model="tiny")
    UsageDay.objects.create(day=day + timedelta(days=1), tenant="b", model="tiny")
    with pytest.raises(IntegrityError), transaction.atomic():
        UsageDay.objects.create(day=day, tenant="a", model="tiny")
    assert [(row.day.day, row.tenant) for row in UsageDay.objects.all()] == [(3, "b"), (2, "a"), (2, "b")]
