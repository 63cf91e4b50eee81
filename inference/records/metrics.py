"""Prometheus metrics of a web process; the workers' metrics are read from their heartbeats at scrape time.

Names begin with ``blazr_`` and contain their unit. ``model`` is the served name. Unknown model names are never used as
a label, so that a client can't fill the memory with them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from inference.values.states import DeviceEnergy, ModelState, WorkerState

REGISTRY = CollectorRegistry()
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_TOKEN_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

REQUESTS = Counter(
    "blazr_requests",
    "Generation requests that ended, by outcome: completed, cancelled, or an error's code.",
    ["model", "endpoint", "outcome"],
    registry=REGISTRY,
)
ACTIVE = Gauge("blazr_requests_active", "Generation requests that run in this process.", ["model"], registry=REGISTRY)
PROMPT_TOKENS = Counter("blazr_prompt_tokens", "Tokens of accepted prompts.", ["model"], registry=REGISTRY)
CACHED_TOKENS = Counter(
    "blazr_prompt_tokens_cached", "Prompt tokens found in the prefix cache.", ["model"], registry=REGISTRY
)
GENERATED_TOKENS = Counter("blazr_generated_tokens", "Tokens delivered to clients.", ["model"], registry=REGISTRY)
TTFT = Histogram(
    "blazr_time_to_first_token_seconds",
    "Time from the request's arrival to its first token.",
    ["model"],
    buckets=_SECONDS,
    registry=REGISTRY,
)
ITL = Histogram(
    "blazr_inter_token_seconds",
    "Time between tokens of a request, measured in this process.",
    ["model"],
    buckets=_TOKEN_SECONDS,
    registry=REGISTRY,
)
DURATION = Histogram(
    "blazr_request_duration_seconds",
    "Time from the request's arrival to its end.",
    ["model", "endpoint"],
    buckets=_SECONDS,
    registry=REGISTRY,
)
KEY_REQUESTS = Counter(
    "blazr_key_requests",
    "Generation requests that ended, by class of caller: local (no key), key, user (a session).",
    ["model", "key_class", "outcome"],
    registry=REGISTRY,
)
KEY_TOKENS = Counter(
    "blazr_key_tokens",
    "Tokens by class of caller and kind: prompt, cached (of the prompt), generated.",
    ["model", "key_class", "kind"],
    registry=REGISTRY,
)
RATE_LIMITED = Counter(
    "blazr_rate_limited",
    "Requests that a limit of their key refused: requests, tokens, concurrent, lines.",
    ["key_class", "limit"],
    registry=REGISTRY,
)
LOOP_BLOCKED = Histogram(
    "blazr_event_loop_blocked_seconds",
    "Times for which something blocked this process's event loop.",
    buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0),
    registry=REGISTRY,
)
USAGE_DROPPED = Counter(
    "blazr_usage_records_dropped", "Usage records dropped while the database could not be reached.", registry=REGISTRY
)


@functools.cache
def child(metric: Any, *labels: str) -> Any:
    """Return ``metric.labels(*labels)``, cached because ``labels`` takes a lock and checks every value."""
    return metric.labels(*labels)


def count_for_key(model: str, key_class: str, outcome: str, tokens: Mapping[str, int]) -> None:
    """Count a request that has ended, by class of caller.

    Args:
        model: Served name.
        key_class: ``Principal.kind``.
        outcome: ``completed``, ``cancelled``, or an error's code.
        tokens: Number of tokens by kind.
    """
    child(KEY_REQUESTS, model, key_class, outcome).inc()
    for kind, number in tokens.items():
        if number:
            child(KEY_TOKENS, model, key_class, kind).inc(number)


def _is_late(worker: WorkerState) -> float:
    return float(worker.is_late)


def _families(
    models: Mapping[str, ModelState],
    workers: Mapping[str, WorkerState],
    names: Mapping[str, str],
    jobs: Mapping[str, int],
    energy: Sequence[DeviceEnergy],
) -> Iterable[Metric]:
    """Yield gauges and counters from the workers' last heartbeats.

    Args:
        models: States by checkpoint id.
        workers: States by worker id.
        names: Served names by checkpoint id.
        jobs: Number of jobs by state.
        energy: What devices have used.
    """
    yield GaugeMetricFamily("blazr_workers", "Workers with a fresh heartbeat.", value=len(workers))
    of_workers: Mapping[str, tuple[str, Callable[[WorkerState], float]]] = {
        "step_age_seconds": ("Time since the last step of the worker's slowest busy engine.", lambda w: w.step_age_s),
        "late": ("1 while a step takes longer than it may; /readyz is 503 when all workers are late.", _is_late),
        "active": ("Requests that the worker holds.", lambda w: w.num_active),
        "free": ("Requests that the worker can still take.", lambda w: w.num_free),
        "memory_used_bytes": ("Memory of resident models.", lambda w: w.memory_used_bytes),
        "memory_budget_bytes": ("Memory budget for resident models.", lambda w: w.memory_budget_bytes),
    }
    for name, (text, read_worker) in of_workers.items():
        family = GaugeMetricFamily(f"blazr_worker_{name}", text, labels=["worker"])
        for worker_id, worker in workers.items():
            family.add_metric([worker_id], read_worker(worker))
        yield family
    of_models: Mapping[str, tuple[str, Callable[[ModelState], float]]] = {
        "model_ready": ("1 for models that a worker holds ready.", lambda m: float(m.status == "ready")),
        "model_memory_bytes": ("Weights and states of the model.", lambda m: m.memory_bytes),
        "model_running": ("Requests in the model's engines, or on their way into them.", lambda m: m.num_running),
        "model_tokens_per_second": ("Tokens generated per second, over the last seconds.", lambda m: m.tokens_per_s),
        "queue_depth": ("Requests that wait for the model.", lambda m: m.num_waiting + m.num_queued),
    }
    for name, (text, read_model) in of_models.items():
        family = GaugeMetricFamily(f"blazr_{name}", text, labels=["model"])
        for checkpoint_id, state in models.items():
            family.add_metric([names.get(checkpoint_id, checkpoint_id)], read_model(state))
        yield family
    yield _preparations_family(workers, names)
    yield from _prefix_cache_families(workers, names)
    yield from _speculation_families(workers, names)
    jobs_family = GaugeMetricFamily("blazr_jobs", "Queued generations, by state.", labels=["state"])
    for job_state, number in jobs.items():
        jobs_family.add_metric([job_state], number)
    yield jobs_family
    yield from _energy_families(energy)


_PREFIX_COUNTERS: Mapping[str, tuple[str, str]] = {
    "hits": ("num_hits", "Requests with a part of their prompt in the cache."),
    "cached_tokens": ("num_cached_tokens", "Prompt tokens found in the cache."),
    "disk_tokens": ("num_disk_tokens", "Prompt tokens read from the cache directory."),
    "disk_writes": ("num_disk_writes", "Files written to the cache directory."),
    "disk_removed": ("num_disk_removed", "Files removed from the cache directory to free space."),
    "disk_corrupt": ("num_disk_corrupt", "Corrupt files removed from the cache directory."),
}
_PREFIX_REASONS: Mapping[str, tuple[str, str]] = {
    "misses": ("misses", "Requests without any part of their prompt in the cache, by reason."),
    "partial_hits": ("shortfalls", "Requests that could not use all matching state of the cache, by reason."),
}
_PREFIX_GAUGES: Mapping[str, tuple[str, str]] = {
    "blocks": ("num_idle_blocks", "Blocks of paged state kept for later requests."),
    "snapshots": ("num_snapshots", "Snapshots of recurrent state kept for later requests."),
    "snapshot_slots": ("num_snapshot_slots", "Snapshots that fit into the reserved memory."),
    "host_bytes": ("host_bytes", "Size of the snapshots in host memory."),
    "disk_bytes": ("disk_bytes", "Size of the cache directory, over all models."),
}
_PREFIX_EVICTIONS: Mapping[str, str] = {"block": "num_evicted_blocks", "snapshot": "num_evicted_snapshots"}


def _prefix_cache_families(workers: Mapping[str, WorkerState], names: Mapping[str, str]) -> Iterable[Metric]:
    """Yield the counters and gauges of the workers' prefix caches; each load of a model starts at 0."""
    found = [
        ((names.get(model.checkpoint_id, model.checkpoint_id), worker_id), model.stats["prefix_cache"])
        for worker_id, worker in workers.items()
        for model in worker.models
        if "prefix_cache" in model.stats
    ]
    labels = ["model", "worker"]
    for name, (member, text) in _PREFIX_COUNTERS.items():
        counter = CounterMetricFamily(f"blazr_prefix_cache_{name}", text, labels=labels)
        for where, stats in found:
            counter.add_metric(where, stats[member])
        yield counter
    for name, (member, text) in _PREFIX_REASONS.items():
        counter = CounterMetricFamily(f"blazr_prefix_cache_{name}", text, labels=[*labels, "reason"])
        for where, stats in found:
            for reason, number in stats[member].items():
                counter.add_metric([*where, reason], number)
        yield counter
    counter = CounterMetricFamily(
        "blazr_prefix_cache_evictions", "Blocks and snapshots that were evicted.", labels=[*labels, "kind"]
    )
    for where, stats in found:
        for kind, member in _PREFIX_EVICTIONS.items():
            counter.add_metric([*where, kind], stats[member])
    yield counter
    for name, (member, text) in _PREFIX_GAUGES.items():
        gauge = GaugeMetricFamily(f"blazr_prefix_cache_{name}", text, labels=labels)
        for where, stats in found:
            gauge.add_metric(where, stats[member])
        yield gauge


def _speculation_families(workers: Mapping[str, WorkerState], names: Mapping[str, str]) -> Iterable[Metric]:
    """Yield the counters of speculative decoding; each load of a model starts at 0."""
    labels = ["model", "worker"]
    proposed = CounterMetricFamily(
        "blazr_speculation_proposed_tokens", "Draft tokens verified by the model.", labels=labels
    )
    accepted = CounterMetricFamily(
        "blazr_speculation_accepted_tokens", "Draft tokens accepted by the model.", labels=labels
    )
    lengths = HistogramMetricFamily(
        "blazr_speculation_accepted_length",
        "Accepted draft tokens of one verification.",
        labels=labels,
    )
    for worker_id, worker in workers.items():
        for model in worker.models:
            stats = model.stats.get("speculation")
            if stats is None:
                continue
            where = (names.get(model.checkpoint_id, model.checkpoint_id), worker_id)
            proposed.add_metric(where, stats["num_proposed"])
            accepted.add_metric(where, stats["num_accepted"])
            totals = list(accumulate(stats["lengths"]))
            buckets = [(str(float(length)), total) for length, total in enumerate(totals)]
            lengths.add_metric(where, [*buckets, ("+Inf", totals[-1])], sum_value=stats["num_accepted"])
    yield from (proposed, accepted, lengths)


def _preparations_family(workers: Mapping[str, WorkerState], names: Mapping[str, str]) -> Metric:
    """Return the gauge of requests on their way into an engine."""
    family = GaugeMetricFamily(
        "blazr_preparations",
        "Requests before their start in an engine: waiting for a place or a thread, or running (tokenised now).",
        labels=["model", "worker", "state"],
    )
    for worker_id, worker in workers.items():
        for model in worker.models:
            where = names.get(model.checkpoint_id, model.checkpoint_id), worker_id
            family.add_metric([*where, "waiting"], model.num_unprepared)
            family.add_metric([*where, "running"], model.num_preparing)
    return family


def _energy_families(energy: Sequence[DeviceEnergy]) -> Iterable[Metric]:
    """Yield the counters of energy, which go on after a restart."""
    labels = ["device", "source"]
    total = CounterMetricFamily("blazr_energy_joules", "Energy that the device has used.", labels=labels)
    work = CounterMetricFamily("blazr_energy_work_joules", "Of it, while models had work.", labels=labels)
    for item in energy:
        total.add_metric([item.device, item.source], item.joules)
        work.add_metric([item.device, item.source], item.work_joules)
    yield from (total, work)


class _Snapshot:
    """Prometheus collector of the metric families of one scrape."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def exposition(
    *,
    models: Mapping[str, ModelState],
    workers: Mapping[str, WorkerState],
    names: Mapping[str, str],
    jobs: Mapping[str, int],
    energy: Sequence[DeviceEnergy] = (),
) -> bytes:
    """Return all metrics in Prometheus' text format; see ``_families`` for the arguments."""
    snapshot = CollectorRegistry()
    snapshot.register(_Snapshot(list(_families(models, workers, names, jobs, energy))))
    return generate_latest(REGISTRY) + generate_latest(snapshot)
