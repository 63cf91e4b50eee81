"""WebSocket ``/console/live``: tells the pages of signed-in staff what has changed, once a second at most.

The server sends JSON text frames and reads none:

    {"changed": ["models", "jobs"], "memory": {"used": …, "budget": …},
     "uploads": [{id, name, received, size, state}], "pulls": [{id, name, received, size, stage}]}

``changed`` names topics (``TOPICS``); a page draws the regions that depend on them again, from its own address. The
first frame of a page also has ``ages``: the seconds since each topic may have changed last, because a topic that has
changed between the drawing of the page and its connection is told to nobody else. One task per web process compares
the states while at least one page is open, and for some seconds longer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import orjson
from asgiref.sync import sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.db import DatabaseError
from django.db.models import Sum

from inference.access.accounts import account_now, can_sign_in
from inference.errors import Unavailable
from inference.host.coroutines import run_in_background
from inference.models import Batch, GenerationJob, JobState, Schedule, ScheduleRun, UsageRecord, UsageSpan
from inference.transport.queue_places import open_request_ids_sync
from models_registry import live
from models_registry.models import Checkpoint, Quantisation, SpanMeasurement, Upload
from models_registry.pull_rows import open_pulls, pulls_now

PERIOD_S = 1.0
RECHECK_S = 10.0
"""Seconds after which the account of an open page is looked up again: a role or a session may have ended."""
CLOSE_NOT_AUTHENTICATED = 4401
LINGER_S = 10.0
"""Seconds for which the states are compared without an open page: the next one knows then what it has missed."""
_NUM_ROWS = 50
_RUNNING_PERIOD_S = 2.0
"""Seconds after which a page of running requests is drawn anew."""
Transfers = dict[str, list[dict[str, Any]]]
"""Unfinished uploads and running pulls, as a frame names them."""
_VIEW, _UPLOAD = "models_registry.view_checkpoint", "models_registry.add_upload"


class ConsoleConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    """One open page."""

    channel_layer_alias = "none"
    _open: ClassVar[set[ConsoleConsumer]] = set()
    _watch: ClassVar[asyncio.Task[None] | None] = None
    _last: ClassVar[tuple[dict[str, int], Transfers] | None] = None
    _changed_at: ClassVar[dict[str, float]] = {}
    has_report = False
    """Whether the page has got a frame."""

    async def connect(self) -> None:
        """Admit active staff; what an account may not see isn't sent to it."""
        await self.accept()
        if not await self.check():
            return
        # First of all: what changes during an await below is reported to this page too, and the watch doesn't end.
        ConsoleConsumer._open.add(self)
        if ConsoleConsumer._watch is None or ConsoleConsumer._watch.done():
            ConsoleConsumer._last, ConsoleConsumer._changed_at = None, {}
            ConsoleConsumer._watch = run_in_background(_watch())
        elif ConsoleConsumer._last is not None:
            await self.report([], *ConsoleConsumer._last)

    async def check(self) -> bool:
        """Look up what the account may see now; close the connection, and return False, if it may see nothing."""
        self.checked_at = time.monotonic()
        found = await sync_to_async(_permissions)(self.scope)
        if found is None:
            ConsoleConsumer._open.discard(self)
            await self.close(code=CLOSE_NOT_AUTHENTICATED)
            return False
        self.sees_models, self.sees_uploads = found
        return True

    async def disconnect(self, code: int) -> None:
        """Forget the page."""
        ConsoleConsumer._open.discard(self)

    async def report(self, changed: list[str], memory: dict[str, int], transfers: Transfers) -> None:
        """Send what has changed; to a page that connects, also since when."""
        frame: dict[str, Any] = {"changed": changed}
        if not self.has_report:
            self.has_report = True
            now = time.monotonic()
            frame["ages"] = {topic: now - changed_at for topic, changed_at in ConsoleConsumer._changed_at.items()}
        if self.sees_models:
            frame["memory"] = memory
        if self.sees_uploads:
            frame |= transfers
        await self.send(text_data=orjson.dumps(frame).decode())


def _permissions(scope: Mapping[str, Any]) -> tuple[bool, bool] | None:
    user = account_now(scope)
    if not can_sign_in(user):
        return None
    return user.has_perm(_VIEW), user.has_perm(_UPLOAD)


async def _watch() -> None:
    """Compare the states of all topics while pages are open, and ``LINGER_S`` longer."""
    before: dict[str, Any] | None = None
    open_at = time.monotonic()
    while ConsoleConsumer._open or time.monotonic() < open_at + LINGER_S:
        if ConsoleConsumer._open:
            open_at = time.monotonic()
        try:
            oldest = time.monotonic() - RECHECK_S
            old = [page for page in ConsoleConsumer._open if page.checked_at < oldest]
            await asyncio.gather(*(page.check() for page in old), return_exceptions=True)
            now, memory, transfers = await sync_to_async(read_topics)()
        except DatabaseError:  # the pages say so themselves when they are asked for
            await asyncio.sleep(PERIOD_S)
            continue
        changed = [topic for topic in now if before is not None and now[topic] != before.get(topic)]
        # Before the first reading, everything may have changed.
        ConsoleConsumer._changed_at |= dict.fromkeys(now if before is None else changed, time.monotonic())
        ConsoleConsumer._last = (memory, transfers)
        if changed or before is None:
            pages = list(ConsoleConsumer._open)
            await asyncio.gather(*(page.report(changed, memory, transfers) for page in pages), return_exceptions=True)
        before = now
        await asyncio.sleep(PERIOD_S)


def read_topics() -> tuple[dict[str, Any], dict[str, int], Transfers]:
    """Return the state of each topic as a comparable value, the devices' memory, and what is on its way here."""
    seen = live.look()
    memory = {
        "used": sum(worker.memory_used_bytes for worker in seen.workers),
        "budget": sum(worker.memory_budget_bytes for worker in seen.workers),
    }
    transfers = {"uploads": open_uploads(), "pulls": open_pulls()}
    return {name: read(seen) for name, read in TOPICS.items()} | {"uploads": transfers["uploads"]}, memory, transfers


def open_uploads() -> list[dict[str, Any]]:
    """Return the uploads that are being received or checked, newest first."""
    rows = Upload.objects.filter(state__in=Upload.OPEN).annotate(received=Sum("files__received_bytes"))
    return [
        {
            "id": str(row["pk"]),
            "name": row["served_model_name"],
            "received": row["received"] or 0,
            "size": row["size_bytes"],
            "state": row["state"],
        }
        for row in rows.values("pk", "served_model_name", "received", "size_bytes", "state")
    ]


def _models(seen: live.Live) -> Any:
    rows = list(Checkpoint.objects.values_list("pk", "served_model_name", "state", "updated_at"))
    shown = []
    for key, state in sorted(seen.models.items()):
        item = state.shown()
        # Moments and averages change all the time and matter to nobody.
        shown.append((key, {**item, "tokens_per_s": round(item["tokens_per_s"], 1)}, state.adapters))
    workers = [
        (w.worker_id, w.memory_used_bytes, w.memory_budget_bytes, w.num_active, w.draining, w.is_late)
        for w in seen.workers
    ]
    return rows, shown, workers, seen.notice


def _jobs(seen: live.Live) -> Any:
    columns = ("pk", "state", "completion_tokens", "attempts", "cancel_requested")
    rows = GenerationJob.objects.values_list(*columns)
    # The oldest run first: of many jobs, none of the newest changes for long.
    running = rows.filter(state=JobState.RUNNING).order_by("pk")
    ended = rows.filter(finished_at__isnull=False).order_by("-finished_at").first()
    return list(rows[:_NUM_ROWS]), list(running[:_NUM_ROWS]), ended


def _batches(seen: live.Live) -> Any:
    columns = ("pk", "state", "num_completed", "num_failed", "completion_tokens", "paused_at")
    rows = Batch.objects.values_list(*columns)
    return list(rows[:_NUM_ROWS]), list(rows.filter(ended_at__isnull=True).order_by("pk")[:_NUM_ROWS])


def _schedules(seen: live.Live) -> Any:
    rows = Schedule.objects.values_list("pk", "name", "cron", "is_enabled", "next_run_at")[:_NUM_ROWS]
    return list(rows), list(ScheduleRun.objects.values_list("pk", "outcome")[:_NUM_ROWS])


def _checkpoint_jobs(seen: live.Live) -> Any:
    columns = ("pk", "state", "progress", "stage")
    return [list(model.objects.values_list(*columns)[:_NUM_ROWS]) for model in (Quantisation, SpanMeasurement)]


def _pulls(seen: live.Live) -> Any:
    return pulls_now()


def _usage(seen: live.Live) -> Any:
    """Return what changes with each span that is written or removed."""
    return UsageSpan.objects.order_by("-pk").values_list("pk", flat=True).first(), UsageSpan.objects.count()


def _request_log(seen: live.Live) -> Any:
    return UsageRecord.objects.order_by("-pk").values_list("pk", flat=True).first()


def _requests(seen: live.Live) -> Any:
    try:
        found = open_request_ids_sync()
    except Unavailable:
        found = []
    # While something runs, its tokens and its place in the queue change without another sign.
    return found, int(time.monotonic() / _RUNNING_PERIOD_S) if found else 0


TOPICS: dict[str, Callable[[live.Live], Any]] = {
    "models": _models,
    "jobs": _jobs,
    "batches": _batches,
    "schedules": _schedules,
    "checkpoint-jobs": _checkpoint_jobs,
    "pulls": _pulls,
    "usage": _usage,
    "requests": _requests,
    "request-log": _request_log,
}
"""What pages can depend on, beside ``uploads``; each is read once a second while a page is open."""
