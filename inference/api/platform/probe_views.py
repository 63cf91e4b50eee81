"""Serve health probes, which need no key, and Prometheus metrics; nothing is cached."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

from asgiref.sync import sync_to_async
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes

from inference.api.base import ApiView, json_response
from inference.api.schemas import HealthSerializer, ProbeSerializer, documented
from inference.errors import BlazrError
from inference.jobs.selectors import open_job_counts
from inference.records import metrics
from inference.records.energy_days import energy_by_device
from inference.transport.worker_states import model_states, worker_states
from inference.values.states import DeviceEnergy, ModelState, WorkerState
from models_registry.selectors import checkpoint_list

PROBE_TIMEOUT_S = 3.0

_NO_STORE = {"Cache-Control": "no-store"}

try:
    VERSION = version("blazr")
except PackageNotFoundError:
    VERSION = "unknown"


def _query_database() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        cursor.fetchone()


def _names(checkpoint_ids: Iterable[str]) -> dict[str, str]:
    rows = checkpoint_list().filter(pk__in=list(checkpoint_ids))
    return {str(key): name for key, name in rows.values_list("pk", "served_model_name")}


async def _bounded(work: object) -> object:
    async with asyncio.timeout(PROBE_TIMEOUT_S):
        return await work  # type: ignore[misc]


async def missing() -> list[str]:
    """Return the reasons why this server can't serve; empty: ready."""
    reasons: list[str] = []
    try:
        await _bounded(sync_to_async(_query_database)())
    except Exception as error:
        reasons.append(f"the database can't be reached ({type(error).__name__})")
    try:
        workers = await _bounded(worker_states())
    except (BlazrError, TimeoutError):
        return [*reasons, "Redis can't be reached"]
    assert isinstance(workers, dict)
    alive = [item for item in workers.values() if not item.draining]
    if not alive:
        reasons.append("no worker has a fresh heartbeat")
    elif all(item.is_late for item in alive):
        reasons.append("the engines of all workers hang")
    return reasons


class LivezView(ApiView):
    """GET /livez."""

    public = True

    @documented(
        operation_id="livez",
        summary="Whether this process answers",
        responses={200: ProbeSerializer},
        auth=[],
        tags=["probes"],
    )
    async def get(self, request: HttpRequest) -> HttpResponseBase:
        """Return 200 whenever the event loop runs."""
        return json_response({"status": "ok"}, headers=_NO_STORE)


class ReadyzView(ApiView):
    """GET /readyz."""

    public = True

    @documented(
        operation_id="readyz",
        summary="Whether requests can be served now",
        responses={200: ProbeSerializer, 503: ProbeSerializer},
        auth=[],
        tags=["probes"],
    )
    async def get(self, request: HttpRequest) -> HttpResponseBase:
        """Return 200 if the database replies and at least one worker is alive and stepping."""
        reasons = await missing()
        if reasons:
            payload = {"status": "unavailable", "reasons": reasons}
            return json_response(payload, status=503, headers={**_NO_STORE, "Retry-After": "5"})
        return json_response({"status": "ok"}, headers=_NO_STORE)


class HealthView(ApiView):
    """GET /health."""

    public = True

    @documented(
        operation_id="health",
        summary="Status, version, loaded models",
        responses={200: HealthSerializer},
        auth=[],
        tags=["probes"],
    )
    async def get(self, request: HttpRequest) -> HttpResponseBase:
        """Return 200 while the process runs; ``status`` says whether it can serve."""
        loaded: list[str] = []
        status = "degraded" if await missing() else "ok"
        if status == "ok":
            models = await _models()
            names = await sync_to_async(_names)(models)
            loaded = sorted(names[key] for key, state in models.items() if state.status == "ready" and key in names)
        return json_response({"status": status, "version": VERSION, "loaded_models": loaded}, headers=_NO_STORE)


async def _models() -> dict[str, ModelState]:
    found = await _bounded(model_states())
    assert isinstance(found, dict)
    return found


class MetricsView(ApiView):
    """GET /metrics."""

    @documented(
        operation_id="metrics",
        summary="Prometheus metrics of this process and of the workers",
        description="With the scope metrics. No key is needed where this machine's programs need none.",
        responses={(200, "text/plain"): OpenApiTypes.STR},
        errors=(401, 403),
        tags=["probes"],
    )
    async def get(self, request: HttpRequest) -> HttpResponseBase:
        """Return this process's counters, and the workers' gauges if Redis and the database are available."""
        models: dict[str, ModelState] = {}
        workers: dict[str, WorkerState] = {}
        names: dict[str, str] = {}
        jobs: dict[str, int] = {}
        energy: list[DeviceEnergy] = []
        try:
            found = await _bounded(worker_states())
            assert isinstance(found, dict)
            workers, models = found, await _models()
        except (BlazrError, TimeoutError):
            pass  # blazr_workers is 0 then, which alerts can watch
        try:
            held = {model.checkpoint_id for worker in workers.values() for model in worker.models}
            names = await sync_to_async(_names)(held | set(models))
            jobs = await sync_to_async(open_job_counts)()
            energy = await sync_to_async(energy_by_device)()
        except Exception:
            names, jobs = {}, {}
        body = metrics.exposition(models=models, workers=workers, names=names, jobs=jobs, energy=energy)
        return HttpResponse(body, content_type=metrics.CONTENT_TYPE, headers=_NO_STORE)
