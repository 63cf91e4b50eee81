"""Measure how far back a checkpoint's layers reach over a text, as durable jobs: check, start, cancel, delete.

The child (``blazr_site.span_child``) reads the text as ``blazr inspect`` does, and its result is stored in the row:
figures, a table of them, and a picture. ``checkpoint_jobs`` has what all jobs share.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

from django.conf import settings

from inference.errors import Conflict, InvalidRequest
from inference.values.memory_span import MAX_TOKENS
from models_registry.checkpoint_jobs import CheckpointJobs, Report, check_available, follow, source_of
from models_registry.default_text import DEFAULT_TEXT
from models_registry.detection.inspection import Inspection
from models_registry.job_process import JobProcess
from models_registry.models import Checkpoint, SpanMeasurement
from models_registry.selectors import checkpoint_inspection, overrides_in_force

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser
    from django.db.models import QuerySet

State = SpanMeasurement.State

CHILD = "blazr_site.span_child"
MAX_TEXT_BYTES = 32 << 10
"""Longest text in UTF-8. 4,096 tokens of English have about 18 KiB."""
MIN_TOKENS = 2
DEFAULT_TOKENS = 1024
MAX_SECONDS = 3600
DEFAULT_SECONDS = 300
MAX_KEPT = 20
"""Most measurements of a checkpoint."""


class SpanMeasurements(CheckpointJobs[SpanMeasurement]):
    """Jobs whose result is in the row, until somebody deletes it or the checkpoint."""

    model = SpanMeasurement
    noun = "measurement"
    verb = "measured"

    def work(self, row: SpanMeasurement, report: Report) -> None:
        """Read the text in a child, which is ended when its time is over."""
        source = source_of(row)
        request = {
            "path": source.path,
            "overrides": overrides_in_force(source),
            "model": row.source_name,
            "text": row.text,
            "max_tokens": row.max_tokens,
            "device": settings.BLAZR_DEVICE,
        }
        with JobProcess(CHILD, request) as child:
            result = follow(child, report, max_seconds=row.max_seconds)
        self.finish(
            row,
            num_tokens=result["figures"]["tokens"],
            figures=json.dumps(result["figures"]),
            table=result["table"],
            picture=result["picture"],
        )

    def old_rows(self) -> QuerySet[SpanMeasurement]:
        """Those without a result."""
        return super().old_rows().exclude(state=State.DONE)

    def sweep(self) -> int:
        """Also delete the rows of deleted checkpoints, which no page shows any more."""
        ended = super().sweep()
        self.rows().filter(source=None).exclude(state=State.RUNNING).delete()
        return ended


SPAN_MEASUREMENTS = SpanMeasurements()


def span_measurement_create(
    *,
    checkpoint: Checkpoint,
    owner: AbstractBaseUser | None = None,
    text: str | None = None,
    max_tokens: int = DEFAULT_TOKENS,
    max_seconds: int = DEFAULT_SECONDS,
    wait: bool = False,
) -> SpanMeasurement:
    """Start a measurement, after all checks that need no computing.

    Args:
        text: What is read; None: ``DEFAULT_TEXT``. A checkpoint without a tokenizer reads random tokens instead.
        max_tokens: Tokens of the text that are read, from its beginning.
        max_seconds: The child is ended after so long, the load of the weights included.
        wait: Run in this call; otherwise in a thread, and the row's ``progress`` and ``stage`` show where it is.

    Raises:
        InvalidRequest: A limit or the text is wrong.
        Conflict: The checkpoint's files can't be served, or it has ``MAX_KEPT`` measurements.
        QueueFull: Another measurement is running.
    """
    for name, value, least, most in (
        ("max_tokens", max_tokens, MIN_TOKENS, MAX_TOKENS),
        ("max_seconds", max_seconds, 1, MAX_SECONDS),
    ):
        if not least <= value <= most:
            raise InvalidRequest(f"{name} is {value}; it must be {least} to {most}.", param=name)
    check_available(checkpoint)
    text = _checked_text(checkpoint, text)
    SPAN_MEASUREMENTS.sweep()
    if SPAN_MEASUREMENTS.of(checkpoint).count() >= MAX_KEPT:
        raise Conflict(
            f"{checkpoint.served_model_name} has {MAX_KEPT} measurements, the most that are kept; delete one."
        )
    return SPAN_MEASUREMENTS.create(
        checkpoint, owner, wait=wait, text=text, max_tokens=max_tokens, max_seconds=max_seconds
    )


def span_measurement_delete(measurement_id: uuid.UUID) -> None:
    """Delete a measurement that has ended.

    Raises:
        NotFound: No such measurement.
        Conflict: It is running.
    """
    row = SPAN_MEASUREMENTS.get(measurement_id)
    deleted, _ = SPAN_MEASUREMENTS.rows().filter(pk=row.pk).exclude(state=State.RUNNING).delete()
    if not deleted:
        raise Conflict("the measurement is running; cancel it first.")


def reads_text(inspection: Inspection) -> bool:
    """Whether the tokenizer is known."""
    return inspection.tokenizer.kind != "none"


def _checked_text(checkpoint: Checkpoint, text: str | None) -> str:
    inspection = checkpoint_inspection(checkpoint)
    if not text and not reads_text(inspection):
        return ""
    if text is None:
        return DEFAULT_TEXT
    check_text_for(checkpoint, inspection, text)
    return text


def check_text_for(checkpoint: Checkpoint, inspection: Inspection, text: str) -> None:
    """Refuse a text that a checkpoint can't read, or that ``check_text`` refuses.

    Raises:
        InvalidRequest: It is one of these.
    """
    if not reads_text(inspection):
        raise InvalidRequest(
            f"{checkpoint.served_model_name} has no known tokenizer and reads random tokens; leave text out.",
            param="text",
        )
    check_text(text)


def check_text(text: str, name: str = "text") -> None:
    """Refuse a text that is empty, too long, or can't be stored.

    Args:
        name: The member of the request, for messages.

    Raises:
        InvalidRequest: It is one of these.
    """
    if not text.strip():
        raise InvalidRequest(f"{name} is empty; give some words, or leave it out for the default text.", param=name)
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name} has half of a surrogate pair; give whole characters.", param=name) from None
    if "\0" in text:
        raise InvalidRequest(f"{name} has a null character, which can't be stored; remove it.", param=name)
    if size > MAX_TEXT_BYTES:
        raise InvalidRequest(
            f"{name} has {size} bytes in UTF-8; at most {MAX_TEXT_BYTES} are read. Give a shorter one.", param=name
        )
