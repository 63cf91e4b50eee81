"""Metrics: what a scrape shows of the workers, and what a request adds."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from inference.records.metrics import KEY_REQUESTS, REGISTRY, child, count_for_key, exposition
from inference.values.states import DeviceEnergy, ResidentModel, WorkerState, merge_models

PREFIX_CACHE = {
    "num_hits": 4, "num_cached_tokens": 64, "num_disk_tokens": 16, "num_disk_writes": 2, "num_disk_removed": 1,
    "num_disk_corrupt": 0, "misses": {"new": 3}, "shortfalls": {"evicted": 2}, "num_idle_blocks": 7, "num_snapshots": 5,
    "num_snapshot_slots": 8, "host_bytes": 100, "disk_bytes": 200, "num_evicted_blocks": 9, "num_evicted_snapshots": 6,
}  # fmt: skip


class Scrape:
    """The values of one scrape."""

    def __init__(self, *workers: WorkerState, **values) -> None:
        values = {"names": {"id": "tiny"}, "jobs": {}} | values
        by_id = {worker.worker_id: worker for worker in workers}
        text = exposition(models=merge_models(workers), workers=by_id, **values).decode()
        self._values = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        return self._values.get((f"blazr_{name}", frozenset(labels.items())))


def worker(name: str, **stats) -> WorkerState:
    model = ResidentModel("id", "ready", memory_bytes=5, num_running=2, num_waiting=1, tokens_per_s=3.5, stats=stats)
    return WorkerState(name, num_active=3, max_active=8, memory_used_bytes=5, memory_budget_bytes=50, models=(model,))


def test_workers_and_models_are_shown_by_name():
    found = Scrape(replace(worker("a"), is_late=True), worker("b"), jobs={"queued": 4, "running": 0})
    assert found.value("workers") == 2
    assert found.value("worker_active", worker="a") == 3
    assert found.value("worker_late", worker="a") == 1
    assert found.value("worker_late", worker="b") == 0
    assert found.value("worker_free", worker="b") == 5
    assert found.value("model_ready", model="tiny") == 1
    assert found.value("model_memory_bytes", model="tiny") == 10
    assert found.value("queue_depth", model="tiny") == 2
    assert found.value("model_tokens_per_second", model="tiny") == 7
    assert (found.value("jobs", state="queued"), found.value("jobs", state="running")) == (4, 0)


def test_a_model_without_a_name_is_shown_by_its_id():
    found = Scrape(worker("a"), names={})
    assert (found.value("model_running", model="id"), found.value("model_running", model="tiny")) == (2, None)


def test_prefix_caches_are_counted_per_worker():
    found = Scrape(worker("a", prefix_cache=PREFIX_CACHE), worker("b"))
    here = {"model": "tiny", "worker": "a"}
    assert found.value("prefix_cache_hits_total", **here) == 4
    assert found.value("prefix_cache_misses_total", **here, reason="new") == 3
    assert found.value("prefix_cache_partial_hits_total", **here, reason="evicted") == 2
    assert found.value("prefix_cache_evictions_total", **here, kind="block") == 9
    assert found.value("prefix_cache_evictions_total", **here, kind="snapshot") == 6
    assert found.value("prefix_cache_snapshot_slots", **here) == 8
    assert found.value("prefix_cache_hits_total", model="tiny", worker="b") is None


def test_accepted_lengths_are_a_cumulative_histogram():
    found = Scrape(worker("a", speculation={"num_proposed": 12, "num_accepted": 7, "lengths": [1, 2, 0, 3]}))
    here = {"model": "tiny", "worker": "a"}
    assert found.value("speculation_proposed_tokens_total", **here) == 12
    assert found.value("speculation_accepted_tokens_total", **here) == 7
    name = "speculation_accepted_length"
    buckets = [found.value(f"{name}_bucket", **here, le=bound) for bound in ("0.0", "1.0", "2.0", "3.0", "+Inf")]
    assert buckets == [1, 3, 3, 6, 6]
    assert (found.value(f"{name}_count", **here), found.value(f"{name}_sum", **here)) == (6, 7)


def test_requests_are_counted_by_class_of_caller():
    def value(kind: str) -> float | None:
        labels = {"model": "counted", "key_class": "key", "kind": kind}
        return REGISTRY.get_sample_value("blazr_key_tokens_total", labels)

    count_for_key("counted", "key", "completed", {"prompt": 5, "generated": 2, "cached": 0})
    count_for_key("counted", "key", "completed", {"prompt": 1, "generated": 2, "cached": 0})
    assert (value("prompt"), value("generated"), value("cached")) == (6, 4, None)
    assert child(KEY_REQUESTS, "counted", "key", "completed")._value.get() == 2


def test_energy_is_counted_by_device():
    found = Scrape(energy=[DeviceEnergy("box/package-0", "rapl", 90.5, 40.0), DeviceEnergy("box/GPU-1", "nvml", 7, 7)])
    where = {"device": "box/package-0", "source": "rapl"}
    assert (found.value("energy_joules_total", **where), found.value("energy_work_joules_total", **where)) == (90.5, 40)
    assert found.value("energy_joules_total", device="box/GPU-1", source="nvml") == 7
