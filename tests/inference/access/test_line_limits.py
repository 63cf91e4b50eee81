"""The limit of lines: exact while several submissions store theirs."""

from __future__ import annotations

import threading

import pytest
from django.db import connections
from django.utils import timezone

from inference.access.api_keys import api_key_create, principal_of_tenant
from inference.access.line_limits import lines_reserved
from inference.errors import RateLimitExceeded, RequestTooLarge
from inference.jobs.selectors import num_open
from inference.models import GenerationJob
from inference.values.limits import KeyLimits
from inference.values.principal import LOCAL, Principal


@pytest.fixture
def key(transactional_db) -> Principal:
    row, _ = api_key_create(name="test", limits=KeyLimits(lines=10))
    return principal_of_tenant(f"key:{row.pk}")


def store(principal: Principal, lines: int = 1) -> None:
    with lines_reserved(principal=principal, lines=lines, count=lambda: num_open(principal.tenant)):
        for _ in range(lines):
            GenerationJob.objects.create(
                tenant=principal.tenant, endpoint="chat", model="m", plan="{}", digest="", created_at=timezone.now(),
                checkpoint_id="00000000-0000-4000-8000-000000000000",
            )  # fmt: skip


def test_a_submission_over_the_limit_stores_nothing(key):
    store(key, 7)
    with pytest.raises(RateLimitExceeded, match="7 lines of this API key are queued or running and 4 more"):
        store(key, 4)
    store(key, 3)
    with pytest.raises(RequestTooLarge, match="11 lines"):
        store(key, 11)
    assert GenerationJob.objects.count() == 10


def test_of_fifty_at_once_exactly_ten_are_stored(key):
    refused = []

    def submit() -> None:
        try:
            store(key)
        except RateLimitExceeded:
            refused.append(1)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=submit) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (GenerationJob.objects.count(), len(refused)) == (10, 40)


def test_lines_without_a_limit_are_not_counted():
    with lines_reserved(principal=LOCAL, lines=10**6, count=lambda: 1 // 0):
        pass
