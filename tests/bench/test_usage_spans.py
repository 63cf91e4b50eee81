"""The records that the measurement fills the database with."""

from __future__ import annotations

import pytest
from django.utils import timezone

from bench.usage_spans import NUM_MODELS, insert
from inference.models import UsageRecord


@pytest.mark.django_db
def test_records_fit_the_table() -> None:
    insert(10, timezone.now())
    assert len(set(UsageRecord.objects.values_list("model", flat=True))) == NUM_MODELS
    assert UsageRecord.objects.filter(plan="", phases="").count() == 10
