"""Run durable jobs on checkpoints: start, follow, cancel, and end them; each kind of job is a subclass.

    create      stores the row and starts a thread
    the thread  holds the lock of the row's directory and follows the job's child (``job_process``)
    cancel      ends the row; the thread sees that within a second, ends the child and removes its files
    sweep       ends the rows of processes that died

One job of a kind runs at a time. Rows change by conditional updates.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from django.db import DatabaseError, IntegrityError, OperationalError, close_old_connections, connection, transaction
from django.utils import timezone

from inference.errors import BlazrError, Conflict, EngineError, InvalidRequest, NotFound, QueueFull
from inference.models.readable_rows import readable_rows
from models_registry import storage
from models_registry.job_process import JobProcess
from models_registry.models import Checkpoint, CheckpointJob

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser
    from django.db.models import QuerySet

logger = logging.getLogger(__name__)

Row = TypeVar("Row", bound=CheckpointJob)
State = CheckpointJob.State

KEEP_ROWS = timedelta(days=7)
"""How long the row of an ended job is kept."""
START_LIMIT = timedelta(seconds=5)
"""A row without a process is dead after so long."""
TICK_S = 1.0
"""Seconds between updates of the row, each of which notices a cancellation."""
OUTAGE_PAUSES_S = (1.0, 5.0, 30.0, 60.0)
"""Pauses between attempts to store a result while the database is away."""
_MAX_STAGE_CHARS = 200


class Cancelled(Exception):
    """The row was ended while the job ran."""


class CheckpointJobs(ABC, Generic[Row]):
    """The jobs of one kind.

    Attributes:
        model: Their rows.
        noun: What a job is called in messages.
        verb: What the server did meanwhile, in messages.
    """

    model: ClassVar[type[CheckpointJob]]
    noun: ClassVar[str]
    verb: ClassVar[str]

    @abstractmethod
    def work(self, row: Row, report: Report) -> None:
        """Do what the row asks for, and ``finish`` it."""

    def discard(self, job_id: uuid.UUID) -> None:
        """Remove what a job that failed or was cancelled has left outside of its directory."""

    def rows(self) -> QuerySet[Row]:
        """All rows of the kind."""
        found: Any = self.model._default_manager.all()
        return found  # type: ignore[no-any-return]

    def get(self, job_id: uuid.UUID) -> Row:
        """Return a job.

        Raises:
            NotFound: There is no such job.
        """
        rows = readable_rows(self.rows().filter(pk=job_id), 1)
        if not rows:
            raise NotFound(f"there is no {self.noun} {job_id}.", param=self.noun.replace(" ", "_"))
        return rows[0]

    def of(self, checkpoint: Checkpoint) -> QuerySet[Row]:
        """Return the jobs on a checkpoint, newest first."""
        return self.rows().filter(source=checkpoint)

    def create(self, checkpoint: Checkpoint, owner: AbstractBaseUser | None, *, wait: bool, **fields: Any) -> Row:
        """Store a row and start its work.

        Args:
            checkpoint: What the job is on.
            owner: Who starts it.
            wait: Work in this call; otherwise in a thread, and the row's ``progress`` and ``stage`` show where it is.
            fields: Columns of the kind.

        Raises:
            QueueFull: Another job of the kind is running.
        """
        try:
            with transaction.atomic():
                row = self.rows().create(
                    owner_id=getattr(owner, "pk", None),
                    source=checkpoint,
                    source_name=checkpoint.served_model_name,
                    stage="starting",
                    active_at=timezone.now(),
                    **fields,
                )
        except IntegrityError:  # the constraint of one running job
            raise self._another_runs() from None
        if wait:
            self.run(row.pk)
        else:
            name = f"{self.noun}-{row.pk}"
            threading.Thread(target=self._run_in_thread, args=(row.pk,), name=name, daemon=True).start()
        return self.get(row.pk)

    def cancel(self, job_id: uuid.UUID, username: str = "") -> Row:
        """Cancel a running job; one that has ended stays as it is.

        Raises:
            NotFound: No such job.
        """
        self.end(self.get(job_id), State.CANCELLED, f"cancelled by {username}" if username else "cancelled")
        return self.get(job_id)

    def sweep(self) -> int:
        """End the rows of dead processes and delete old rows; returns the number of ended rows."""
        now, ended = timezone.now(), 0
        for row in self.rows().filter(state=State.RUNNING, active_at__lt=now - START_LIMIT):
            with storage.upload_lock(row.pk) as held:
                if held:
                    ended += self.end(row, State.FAILED, f"the server stopped while it {self.verb}; start it again")
                    storage.remove_upload_files(row.pk)
        self.old_rows().filter(active_at__lt=now - KEEP_ROWS).delete()
        return ended

    def old_rows(self) -> QuerySet[Row]:
        """The rows that are deleted some time after their end."""
        return self.rows().exclude(state=State.RUNNING)

    def end(self, row: Row, state: str, reason: str) -> int:
        """End a running job; returns 0 if it had ended before."""
        return (
            self.rows()
            .filter(pk=row.pk, state=State.RUNNING)
            .update(state=state, reason=reason, stage="", active_at=timezone.now())
        )

    def finish(self, row: Row, **fields: Any) -> None:
        """End a running job as done, with the columns of its result.

        Raises:
            Cancelled: It has ended before.
        """
        done = (
            self.rows()
            .filter(pk=row.pk, state=State.RUNNING)
            .update(state=State.DONE, progress=1.0, stage="", active_at=timezone.now(), **fields)
        )
        if not done:
            raise Cancelled

    def run(self, job_id: uuid.UUID) -> None:
        """Work under the row's lock, and end the row with a result or a reason."""
        with storage.upload_lock(job_id) as held:
            if not held:
                return
            row = self.rows().filter(pk=job_id, state=State.RUNNING).first()
            if row is None:  # cancelled before its start
                storage.remove_upload_files(job_id)
                return
            try:
                with storage.full_disk_as_error():
                    self.work(row, Report(self, row))
            except Cancelled:
                self.discard(row.pk)
            except BlazrError as error:
                self._fail(row, error.message)
            except Exception:
                logger.exception("%s %s failed", self.noun, row.pk)
                self._fail(row, f"the server failed while it {self.verb}; its log has details")
            finally:
                storage.remove_upload_files(row.pk)

    def _run_in_thread(self, job_id: uuid.UUID) -> None:
        close_old_connections()
        try:
            self.run(job_id)
        finally:
            connection.close()

    def _fail(self, row: Row, reason: str) -> None:
        self.end(row, State.FAILED, reason)
        self.discard(row.pk)

    def _another_runs(self) -> QueueFull:
        running = self.rows().filter(state=State.RUNNING).first()
        which = f" ({running.source_name}, {running.progress:.0%} done)" if running else ""
        return QueueFull(f"another {self.noun} is running{which}; wait for its end or cancel it.", retry_after_s=60)


def write_through_outages(write: Callable[[], None]) -> None:
    """Write a result; after an outage of the database again, as it must not cost hours of work."""
    for pause_s in OUTAGE_PAUSES_S:
        try:
            write()
            return
        except OperationalError as error:
            logger.warning("the result of a job can't be stored; again in %g s: %s", pause_s, error)
            close_old_connections()
            time.sleep(pause_s)
    write()


def check_available(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint whose files can't be served.

    Raises:
        Conflict: They can't.
    """
    if checkpoint.state != Checkpoint.State.AVAILABLE:
        raise Conflict(f"{checkpoint.served_model_name} is {checkpoint.state}: {checkpoint.state_reason}")


def source_of(row: CheckpointJob) -> Checkpoint:
    """Return the checkpoint of a job.

    Raises:
        NotFound: It was deleted.
    """
    if row.source is None:
        raise NotFound(f"{row.source_name} was deleted.")
    return row.source


class Report:
    """Writes progress to the row at intervals, and stops the work after a cancellation."""

    def __init__(self, jobs: CheckpointJobs[Any], row: CheckpointJob) -> None:
        self._jobs, self._row = jobs, row
        self._share, self._stage = 0.0, row.stage
        self._written_at = 0.0

    def __call__(self, share: float | None = None, stage: str | None = None) -> None:
        """Take a share of the work and a stage; None: as before.

        Raises:
            Cancelled: The row has ended.
        """
        self._share = self._share if share is None else share
        self._stage = self._stage if stage is None else stage[:_MAX_STAGE_CHARS]
        if time.monotonic() - self._written_at < TICK_S:
            return
        self._written_at = time.monotonic()
        try:
            alive = (
                self._jobs.rows()
                .filter(pk=self._row.pk, state=State.RUNNING)
                .update(progress=self._share, stage=self._stage, active_at=timezone.now())
            )
        except DatabaseError as error:  # an outage must not cost hours of work
            logger.warning("the progress of %s %s can't be stored: %s", self._jobs.noun, self._row.pk, error)
            close_old_connections()
            return
        if not alive:
            raise Cancelled


def follow(
    child: JobProcess,
    report: Callable[[float | None, str | None], None],
    *,
    share: float = 1.0,
    max_seconds: float = math.inf,
) -> dict[str, Any]:
    """Report the child's progress until its end, and return its result.

    Args:
        child: Just started.
        report: Where its progress goes.
        share: Share of the job's work that the child does.
        max_seconds: The child's time.

    Raises:
        BlazrError: As the child writes it.
        EngineError: The child broke.
        InvalidRequest: It has no result after ``max_seconds``.
        Cancelled: The row has ended.
    """
    deadline = time.monotonic() + max_seconds
    result: Mapping[str, Any] | None = None
    for message in child.messages(min(TICK_S, max_seconds)):
        if "error" in message:
            raise BlazrError.from_dict(message["error"])
        result = message.get("result", result)
        done = message.get("progress")
        report(None if done is None else share * done, message.get("stage"))
        if result is None and time.monotonic() > deadline:
            raise InvalidRequest(
                f"it took longer than {max_seconds:g} s and was ended; allow more time, or ask for less."
            )
    if result is None:
        raise EngineError("the job's process ended without a result; the server's log says why.")
    return dict(result)
