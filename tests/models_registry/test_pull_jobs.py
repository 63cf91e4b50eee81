"""Pulls as rows, against a hub on loopback: done, refused, cancelled, and gone on with after a restart."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from django.db import OperationalError
from django.db.models import QuerySet
from django.utils import timezone

from inference.errors import InvalidRequest, NotFound, PermissionRefused, QueueFull
from models_registry import pull_jobs
from models_registry.detection.child import inspect_in_child
from models_registry.hub_child import PIECE_BYTES
from models_registry.models import Checkpoint, PullJob
from models_registry.pull_jobs import pull_cancel, pull_create, pull_get, pulls_resume
from tests.live.conftest import ROOT, wait_until
from tests.models_registry.detection.builders import LLAMA_CONFIG, gqa_mlp, model, write_checkpoint
from tests.models_registry.gguf_content import llama_gguf
from tests.models_registry.tiny_hub import tiny_hub

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("storage_dirs")]


@pytest.fixture
def hub(hybrid, tmp_path, monkeypatch, settings):
    with tiny_hub(hybrid) as (endpoint, handler):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
        monkeypatch.setattr(pull_jobs, "TICK_S", 0.05)
        settings.BLAZR_MAX_PULLS = 1
        yield handler
        handler.gate.set()
        wait_until(lambda: not PullJob.objects.filter(state="running").exists())


def ended(row: PullJob) -> PullJob:
    return wait_until(lambda: next((found for found in [pull_get(row.pk)] if found.state != "running"), None))


def test_a_pull_registers_its_model(hub):
    row = pull_create(origin="org/tiny", served_model_name="mine", wait=True)
    assert (row.state, row.reason, row.checkpoint.served_model_name) == ("done", "", "mine")
    assert (row.checkpoint.source, row.checkpoint.origin) == ("hub", "org/tiny")
    assert row.fetched_bytes == row.size_bytes == len(hub.files["config.json"] + hub.files["model.safetensors"])


def test_progress_is_in_the_row_and_a_second_request_follows_the_first(hub):
    hub.gate.clear()
    row = pull_create(origin="org/tiny")
    size = len(hub.files["model.safetensors"])
    seen = wait_until(lambda: next((r for r in [pull_get(row.pk)] if r.total_bytes == size), None))
    assert (seen.file, seen.stage) == ("model.safetensors", "fetching")
    assert seen.size_bytes == size + len(hub.files["config.json"])
    assert seen.fetched_bytes >= len(hub.files["config.json"])
    assert pull_create(origin="org/tiny").pk == row.pk
    with pytest.raises(QueueFull):
        pull_create(origin="org/other")
    assert pulls_resume() == 1  # its thread ends at once: the lock is held
    hub.gate.set()
    assert ended(row).state == "done"
    assert Checkpoint.objects.count() == 1


def test_a_pull_of_a_dead_process_goes_on_where_it_was(hub, tmp_path):
    rows = 40_000  # more than two of the pieces in which the hub's library writes
    shapes = model(16, rows, *(gqa_mlp(n, 16, heads=4, kv=2, f=24) for n in range(2)))
    shapes = {name if name.startswith("lm_head") else f"model.{name}": shape for name, shape in shapes.items()}
    place = write_checkpoint(tmp_path / "large", shapes, LLAMA_CONFIG | {"vocab_size": rows})
    hub.files |= {file.name: file.read_bytes() for file in place.iterdir()}
    hub.gate.clear()
    request = json.dumps({"model": "org/tiny", "max_bytes": 1 << 40})
    command = [sys.executable, "-m", "models_registry.hub_child", request]
    dead = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    parts = (tmp_path / "cache").rglob
    wait_until(lambda: any(part.stat().st_size >= PIECE_BYTES for part in parts("*.blazr-part")))
    dead.send_signal(signal.SIGKILL)
    dead.wait()
    (part,) = parts("*.blazr-part")
    size = part.stat().st_size
    row = PullJob.objects.create(origin="org/tiny", active_at="2026-01-01T00:00:00Z")
    hub.gate.set()
    assert pulls_resume() == 1
    assert ended(row).state == "done", pull_get(row.pk).reason
    assert set(hub.resumed) == {size}
    assert Checkpoint.objects.get().origin == "org/tiny"


def test_an_outage_of_the_database_ends_no_download(hub, monkeypatch):
    outages, update = [], QuerySet.update

    def fail_at_first(rows, **values):
        if "fetched_bytes" in values and not outages:
            outages.append(values)
            raise OperationalError("the server closed the connection unexpectedly")
        return update(rows, **values)

    monkeypatch.setattr(QuerySet, "update", fail_at_first)
    row = pull_create(origin="org/tiny", wait=True)
    assert (row.state, row.reason, len(outages)) == ("done", "", 1)


def test_a_pull_whose_end_can_not_be_stored_goes_on_later(hub, monkeypatch):
    """Its thread died, and the row ran until the next pull was started."""
    outages, update = [], QuerySet.update

    def fail_at_first(rows, **values):
        if values.get("state") in ("done", "failed") and len(outages) < 4:
            outages.append(values["state"])
            raise OperationalError("the server closed the connection unexpectedly")
        return update(rows, **values)

    monkeypatch.setattr(QuerySet, "update", fail_at_first)
    monkeypatch.setattr(pull_jobs, "RETRY_S", 0.05)
    row = ended(pull_create(origin="org/tiny"))
    assert (row.state, row.reason, outages) == ("done", "", ["done", "failed"] * 2)
    assert Checkpoint.objects.get().origin == "org/tiny"


def test_a_pull_that_no_process_goes_on_with_is_gone_on_with_by_the_next_one(hub):
    row = PullJob.objects.create(origin="org/tiny", active_at=timezone.now())
    hub.gate.clear()
    assert pull_create(origin="org/tiny").pk == row.pk
    hub.gate.set()
    assert ended(row).state == "done"


def test_a_gguf_model_is_pulled_by_its_tag_and_goes_on_where_it_was(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    content = llama_gguf(40_000)
    hub.files = {"T-Q4_K_M.gguf": content, "T-Q2_K.gguf": llama_gguf(architecture="unheard-of")}
    hub.gate.clear()
    row = pull_create(origin="hf.co/org/tiny:q4_k_m")
    (part,) = wait_until(lambda: [p for p in (tmp_path / "cache").rglob("*.blazr-part") if p.stat().st_size])
    pull_cancel(row.pk)
    wait_until(lambda: not _children())
    hub.gate.set()
    size = part.stat().st_size
    row = pull_create(origin="org/tiny:Q4_K_M", wait=True)
    assert (row.state, row.reason, row.checkpoint.served_model_name) == ("done", "", "tiny-Q4_K_M")
    assert (row.checkpoint.origin, row.size_bytes, hub.resumed) == ("org/tiny:Q4_K_M", len(content), [size])
    assert "'unheard-of', which is not read" in pull_create(origin="org/tiny:Q2_K", wait=True).reason
    assert "T-Q2_K.gguf" not in hub.asked


def test_a_cancelled_pull_ends_its_child(hub):
    hub.gate.clear()
    row = pull_create(origin="org/tiny")
    wait_until(lambda: pull_get(row.pk).file)
    assert pull_cancel(row.pk).state == "cancelled"
    wait_until(lambda: not _children())
    hub.gate.set()
    assert not Checkpoint.objects.exists()
    with pytest.raises(NotFound):
        pull_get(row.owner_id or row.pk.__class__(int=0))


@pytest.mark.parametrize("known", [False, True])
def test_a_pull_that_is_cancelled_while_it_is_inspected_registers_nothing(hub, monkeypatch, known):
    if known:  # the files of an earlier pull, whose model must stay as it is
        pull_create(origin="org/tiny", served_model_name="before", wait=True)
    seen = []

    def inspect(place, **options):
        found = inspect_in_child(place, **options)
        (row,) = PullJob.objects.filter(state="running")
        seen.append((row.stage, pull_cancel(row.pk).state))
        return found

    monkeypatch.setattr(pull_jobs, "inspect_in_child", inspect)
    row = pull_create(origin="org/tiny", served_model_name="after", wait=True)
    assert seen == [("inspecting", "cancelled")]
    assert (row.state, row.checkpoint) == ("cancelled", None)
    assert [found.served_model_name for found in Checkpoint.objects.all()] == ["before"] * known


def test_a_pull_that_is_cancelled_right_before_its_model_is_stored_registers_nothing(hub, monkeypatch):
    set_stage = pull_jobs._set_stage

    def cancel_last(pull_id, stage):
        set_stage(pull_id, stage)
        if stage == "registering":
            pull_cancel(pull_id)

    monkeypatch.setattr(pull_jobs, "_set_stage", cancel_last)
    row = pull_create(origin="org/tiny", wait=True)
    assert (row.state, row.checkpoint) == ("cancelled", None)
    assert not Checkpoint.objects.exists()


def test_pulls_of_a_dead_process_end_where_none_are_allowed_any_more(hub, settings):
    row = PullJob.objects.create(origin="org/tiny", active_at="2026-01-01T00:00:00Z")
    settings.BLAZR_MAX_PULLS = 0
    assert pulls_resume() == 0
    row = pull_get(row.pk)
    assert row.state == "failed" and "BLAZR_MAX_PULLS" in row.reason
    assert hub.asked == []


def test_the_rate_is_a_mean_of_what_came_lately(monkeypatch):
    now = time.monotonic()
    monkeypatch.setattr(pull_jobs.time, "monotonic", lambda: now)
    rate = pull_jobs._Rate()
    assert rate.add(0, now) == 0
    assert rate.add(100, now + 1) == 100
    assert 100 < rate.add(300, now + 2) < 200
    assert rate.add(300, now + 100) == 0


def test_a_child_ends_with_its_input(hub):
    hub.gate.clear()
    child = subprocess.Popen([sys.executable, "-m", "models_registry.hub_child"], cwd=ROOT, stdin=subprocess.PIPE)
    child.stdin.write(json.dumps({"model": "org/tiny", "max_bytes": 1 << 40}).encode() + b"\n")
    child.stdin.close()
    assert child.wait(60) == -signal.SIGTERM


def test_what_cannot_be_pulled_is_said(hub, settings):
    assert "no model org/none" in pull_create(origin="org/none", wait=True).reason
    for origin, name in (("nothing", ""), ("org/tiny", "a b")):
        with pytest.raises(InvalidRequest):
            pull_create(origin=origin, served_model_name=name)
    settings.BLAZR_MAX_PULLS = 0
    with pytest.raises(PermissionRefused, match="BLAZR_MAX_PULLS"):
        pull_create(origin="org/tiny")


def _children() -> list[str]:
    found = subprocess.run(
        ["ps", "-o", "args", "--ppid", str(os.getpid())], capture_output=True, text=True, check=False
    )
    return [line for line in found.stdout.splitlines() if "hub_child" in line]
