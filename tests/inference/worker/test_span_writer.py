"""The thread that stores spans: one writer, what it missed, and means of what the workers report."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from inference.errors import Unavailable
from inference.models import EnergyDay, UsageDay, UsageRecord, UsageSpan
from inference.records.usage_spans import DAY, HOUR, MINUTE, QUARTER
from inference.values.states import EnergyReading, ModelState, WorkerState
from inference.worker import span_writer
from inference.worker.span_writer import SpanWriter
from models_registry import services
from models_registry.models import Adapter, Checkpoint
from tests.models_registry.detection.builders import small_hybrid, write_checkpoint

pytestmark = pytest.mark.django_db
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(span_writer.timezone, "now", found)
    return found


@pytest.fixture
def row(tmp_path: Path) -> Checkpoint:
    return services.checkpoint_register(path=write_checkpoint(tmp_path / "tiny", *small_hybrid()))


def report(monkeypatch: pytest.MonkeyPatch, workers: tuple[str, ...] = ("w-0",)) -> None:
    """Let these workers be alive, without models."""
    monkeypatch.setattr(span_writer, "worker_states_sync", lambda: {name: WorkerState(name) for name in workers})
    monkeypatch.setattr(span_writer, "model_states_sync", dict)


def ended(number: int, at: datetime) -> None:
    UsageRecord.objects.create(
        request_id=f"r{number}", tenant="local", endpoint="chat", model="tiny", outcome="completed", duration_s=1.0,
        ttft_s=0.5, created_at=at,
    )  # fmt: skip


def stored(length_s: int, model: str = "tiny") -> list[tuple[datetime, int, float | None, float | None]]:
    rows = UsageSpan.objects.filter(length_s=length_s, model=model)
    return list(rows.values_list("begin", "requests", "tokens_per_s", "waiting"))


def test_reports_become_means_of_their_minute(monkeypatch, clock: Clock, row: Checkpoint) -> None:
    writer = SpanWriter(owner="w-0")
    state = ModelState(str(row.pk), "ready", tokens_per_s=30.0, num_waiting=1, num_queued=3)
    monkeypatch.setattr(span_writer, "worker_states_sync", lambda: {"w-0": WorkerState("w-0")})
    for second, states in ((0, {str(row.pk): state}), (5, {str(row.pk): state}), (10, {}), (15, {})):
        monkeypatch.setattr(span_writer, "model_states_sync", lambda states=states: states)
        clock.now = NOON + timedelta(seconds=second)
        writer.turn()
    ended(1, NOON + timedelta(seconds=50))
    assert stored(MINUTE, row.served_model_name) == []
    clock.now = NOON + timedelta(seconds=66)
    writer.turn()
    assert stored(MINUTE, row.served_model_name) == [(NOON, int(row.served_model_name == "tiny"), 15.0, 2.0)]
    assert stored(HOUR, "") == [(NOON - timedelta(minutes=59), 1, None, None)]


def test_the_first_live_worker_writes_and_the_next_one_goes_on_with_what_is_missing(monkeypatch, clock: Clock) -> None:
    first, second = SpanWriter(owner="w-0"), SpanWriter(owner="w-1")
    report(monkeypatch, ("w-1", "w-0"))
    ended(1, NOON)
    clock.now = NOON + timedelta(seconds=66)
    second.turn()
    assert not UsageSpan.objects.exists()
    first.turn()
    assert [begin for begin, *_ in stored(MINUTE)] == [NOON]
    report(monkeypatch, ("w-1",))  # the first one is gone, for five minutes of which nobody wrote
    ended(2, NOON + timedelta(minutes=2))
    clock.now = NOON + timedelta(minutes=6, seconds=6)
    second.turn()
    assert [(begin.minute, requests) for begin, requests, *_ in stored(MINUTE)] == [(0, 1), (2, 1)]


def test_a_restart_writes_the_last_hour_and_day_anew(monkeypatch, clock: Clock) -> None:
    for number, age in enumerate((timedelta(minutes=30), timedelta(hours=5), timedelta(hours=30))):
        ended(number, NOON - age)
    report(monkeypatch)
    clock.now = NOON + timedelta(seconds=6)
    SpanWriter(owner="w-0").turn()
    assert len(stored(MINUTE)) == 1 and len(stored(QUARTER)) == 2
    assert [requests for _, requests, *_ in stored(HOUR) + stored(DAY)] == [1, 2]
    queries = UsageSpan.objects.count()
    SpanWriter(owner="w-0").turn()
    assert UsageSpan.objects.count() == queries


def test_nothing_is_computed_twice(monkeypatch, clock: Clock) -> None:
    writer = SpanWriter(owner="w-0")
    report(monkeypatch)
    asked: list[tuple[int, datetime]] = []
    monkeypatch.setattr(span_writer, "spans_write", lambda *, begin, length_s, loads: asked.append((length_s, begin)))
    for second in range(0, 180, 5):
        clock.now = NOON + timedelta(seconds=second)
        writer.turn()
    assert len(asked) == len(set(asked))
    assert {begin for length_s, begin in asked if length_s == MINUTE and begin >= NOON} == {
        NOON, NOON + timedelta(minutes=1),
    }  # fmt: skip


def test_without_redis_the_last_known_writer_goes_on(monkeypatch, clock: Clock) -> None:
    def away() -> dict[str, WorkerState]:
        raise Unavailable("Redis is away.")

    writer, other = SpanWriter(owner="w-0"), SpanWriter(owner="w-1")
    report(monkeypatch)
    writer.turn()
    monkeypatch.setattr(span_writer, "worker_states_sync", away)
    ended(1, NOON + timedelta(seconds=1))
    clock.now = NOON + timedelta(seconds=66)
    other.turn()
    assert stored(MINUTE) == []
    writer.turn()
    assert stored(MINUTE) == [(NOON, 1, 0.0, 0.0)]


def energy(monkeypatch: pytest.MonkeyPatch, joules: float, work: dict[str, float], *workers: str) -> None:
    """Let these workers report so much of one counter, and the first of them that its models had work."""
    readings = (
        EnergyReading("boot/0", "box/package-0", "rapl", joules, work if name == workers[0] else {}) for name in workers
    )
    states = {name: WorkerState(name, energy=(reading,)) for name, reading in zip(workers, readings, strict=True)}
    monkeypatch.setattr(span_writer, "worker_states_sync", lambda: states)
    monkeypatch.setattr(span_writer, "model_states_sync", dict)


def energy_rows() -> dict[tuple[int, str], float]:
    return {(day.day, model): joules for day, model, joules in EnergyDay.objects.values_list("day", "model", "joules")}


def test_energy_is_stored_each_minute_by_one_worker_and_divided(monkeypatch, clock: Clock, row: Checkpoint) -> None:
    name = row.served_model_name
    for tenant, tokens in (("key:1", 300), ("key:2", 100)):
        UsageDay.objects.create(day=NOON.date(), tenant=tenant, model=name, prompt_tokens=tokens)
    writers = [SpanWriter(owner=owner) for owner in ("w-0", "w-1")]
    for second in range(0, 66, 5):
        clock.now = NOON + timedelta(seconds=second)
        energy(monkeypatch, 10.0 * second, {str(row.pk): 4.0 * second}, "w-0", "w-1")
        for writer in writers:
            writer.turn()
        if second < 60:
            assert energy_rows() == {}
    assert energy_rows() == {(2, name): pytest.approx(240), (2, ""): pytest.approx(360)}
    assert dict(UsageDay.objects.values_list("tenant", "joules")) == {
        "key:1": pytest.approx(180), "key:2": pytest.approx(60),
    }  # fmt: skip
    for writer in writers:
        writer._end()  # the last seconds
    assert energy_rows() == {(2, name): pytest.approx(260), (2, ""): pytest.approx(390)}


def test_a_checkpoint_with_a_tag_uses_no_energy_of_its_namesake(
    monkeypatch, clock: Clock, row: Checkpoint, tmp_path: Path
) -> None:
    """``llama:7b``, whose worker has no counter, got a part of what ``llama`` used, as if it were its adapter."""
    name = row.served_model_name
    path = write_checkpoint(tmp_path / "other", *small_hybrid())
    services.checkpoint_register(path=path, served_model_name=f"{name}:7b")
    Adapter.objects.create(base=row, name="sql", path="/sql", digest="", rank=1, num_values=0, size_bytes=0)
    for model in (name, f"{name}:7b", f"{name}:sql"):
        UsageDay.objects.create(day=NOON.date(), tenant="local", model=model, prompt_tokens=100)
    writer = SpanWriter(owner="w-0")
    for second in (0, 5, 70):
        clock.now = NOON + timedelta(seconds=second)
        energy(monkeypatch, 2.0 * second, {str(row.pk): 2.0 * second}, "w-0")
        writer.turn()
    found = dict(UsageDay.objects.values_list("model", "joules"))
    assert found[f"{name}:7b"] is None
    assert found[name] == found[f"{name}:sql"] == pytest.approx(EnergyDay.objects.get(model=name).joules / 2)


def test_usage_that_came_after_its_day_is_divided_when_energy_is_stored_next(monkeypatch, clock: Clock) -> None:
    writer = SpanWriter(owner="w-0")
    old = NOON.date() - timedelta(days=9)
    EnergyDay.objects.create(day=old, device="box/package-0", source="rapl", model="tiny", joules=7.0)
    UsageDay.objects.create(day=old, tenant="local", model="tiny", prompt_tokens=3)
    for second in (0, 5, 70):
        clock.now = NOON + timedelta(seconds=second)
        energy(monkeypatch, float(second), {}, "w-0")
        writer.turn()
    assert UsageDay.objects.get().joules == 7.0
    assert energy_rows() == {(24, "tiny"): 7.0, (2, ""): 5.0}


def test_without_counters_nothing_is_written_or_read(monkeypatch, clock: Clock, django_assert_num_queries) -> None:
    writer = SpanWriter(owner="w-0")
    report(monkeypatch)
    writer._sample(NOON)
    with django_assert_num_queries(0):
        writer._write_energy(NOON)
