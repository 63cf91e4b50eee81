"""Pulls as pages show them."""

from __future__ import annotations

import pytest
from django.utils import timezone

from models_registry.models import PullJob
from models_registry.pull_rows import open_pulls, pull_rows, pulls_now

pytestmark = pytest.mark.django_db


def row(origin: str, **values) -> PullJob:
    return PullJob.objects.create(origin=origin, active_at=timezone.now(), **values)


def test_the_last_pull_of_each_origin_is_shown():
    row("org/a", state="failed", reason="no")
    running = row("org/a", fetched_bytes=40, size_bytes=100, bytes_per_s=20)
    row("org/b", state="failed")
    row("org/c", state="done")
    shown = {item["row"].origin: item for item in pull_rows()}
    assert list(shown) == ["org/c", "org/b", "org/a"]
    assert (shown["org/a"]["row"], shown["org/a"]["left_s"], shown["org/a"]["can_go_on"]) == (running, 3.0, False)
    assert (shown["org/b"]["mark"], shown["org/b"]["can_go_on"]) == ("refused", True)
    assert shown["org/c"]["left_s"] is None


def test_a_running_pull_is_in_the_bar_and_its_progress_is_a_change():
    running = row("org/a", fetched_bytes=40, size_bytes=100)
    row("org/b", state="done")
    before = pulls_now()
    assert open_pulls() == [{"id": str(running.pk), "name": "org/a", "received": 40, "size": 100, "stage": "fetching"}]
    PullJob.objects.filter(pk=running.pk).update(stage="inspecting")
    assert pulls_now() != before
