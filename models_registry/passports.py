"""Make the passports of checkpoints as durable jobs: start by hand, or after a registration while the server is idle.

The child (``blazr_site.passport_child``) compares logits with transformers, takes texts through the tokenizer and back,
renders the chat template, and measures speeds and what int8 and int4 cost. The entries are stored in the row.
``passport_gaps`` decides whether a passport holds; ``checkpoint_jobs`` has what all jobs share.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING

from django.conf import settings
from django.utils import timezone

from inference.errors import BlazrError, InvalidRequest, QueueFull
from inference.host.machine import machine_memory_bytes
from inference.models.readable_rows import readable_rows
from models_registry import live
from models_registry.checkpoint_jobs import CheckpointJobs, Report, check_available, follow, source_of
from models_registry.job_process import JobProcess
from models_registry.models import Checkpoint, Passport, RunStep
from models_registry.passport_gaps import passport_identity
from models_registry.selectors import checkpoint_list, overrides_in_force
from models_registry.server_choices import server_choices
from models_registry.services import checkpoint_files_verify

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser
    from django.db.models import QuerySet

State = Passport.State

CHILD = "blazr_site.passport_child"
DEFAULT_SECONDS = 1800
MAX_KEPT = 5
"""Passports of a checkpoint that are kept, the newest."""
IDLE_S = 60.0
"""Seconds without a request on any worker before the server makes a passport by itself."""
REGISTERED_FOR = timedelta(seconds=20)
"""Age of a registration from which it counts: facts are often set right after it."""
MAX_INTERRUPTED = 3
"""Passports of a checkpoint that the server starts by itself, where its end interrupted the others."""
COPIES = 2.5
"""Float32 copies of the weights that a passport takes at most: two networks, and what a load needs."""
MEMORY_SHARE = 0.25
"""Of the machine's memory, what a passport may take that nobody has started."""


class Passports(CheckpointJobs[Passport]):
    """Jobs whose result is in the row, as long as the checkpoint is there."""

    model = Passport
    noun = "passport"
    verb = "made a passport"

    def work(self, row: Passport, report: Report) -> None:
        """Check and measure in a child, which is ended when its time is over."""
        source = source_of(row)
        checkpoint_files_verify(source)
        served = settings.BLAZR_LLM_OPTIONS
        request = {
            "path": source.path,
            "overrides": overrides_in_force(source),
            "device": settings.BLAZR_DEVICE,
            "served": {name: source.settings.get(name) or served[name] for name in ("dtype", "quant")},
        }
        with JobProcess(CHILD, request) as child:
            result = follow(child, report, max_seconds=DEFAULT_SECONDS)
        checkpoint_files_verify(source)
        if passport_identity(source) != row.identity:
            raise InvalidRequest("a fact was set by hand meanwhile; make another passport.", param="checkpoint")
        self.finish(row, entries=result["entries"])
        kept = self.of(source).values_list("pk", flat=True)[:MAX_KEPT]
        self.of(source).exclude(pk__in=list(kept)).exclude(state=State.RUNNING).delete()

    def old_rows(self) -> QuerySet[Passport]:
        """None: they are kept with their checkpoint."""
        return self.rows().none()

    def sweep(self) -> int:
        """Also delete the rows of deleted checkpoints, which no page shows any more."""
        ended = super().sweep()
        self.rows().filter(source=None).exclude(state=State.RUNNING).delete()
        return ended


PASSPORTS = Passports()


def passport_create(
    *,
    checkpoint: Checkpoint,
    owner: AbstractBaseUser | None = None,
    is_automatic: bool = False,
    wait: bool = False,
) -> Passport:
    """Start to make a passport.

    Args:
        is_automatic: Whether nobody asked for it.
        wait: Make it in this call; otherwise in a thread, and the row's ``progress`` and ``stage`` show where it is.

    Raises:
        Conflict: The checkpoint's files can't be served.
        QueueFull: Another passport is being made.
    """
    check_available(checkpoint)
    PASSPORTS.sweep()
    return PASSPORTS.create(
        checkpoint, owner, wait=wait, identity=passport_identity(checkpoint), is_automatic=is_automatic
    )


def passport_next(*, wait: bool = False) -> Passport | None:
    """Start the passport of a registered checkpoint that has none, if the server is idle and the checkpoint small.

    Returns:
        None: There is nothing to do now.
    """
    checkpoint = next_checkpoint()
    if checkpoint is None or not is_idle():
        return None
    try:
        return passport_create(checkpoint=checkpoint, is_automatic=True, wait=wait)
    except (QueueFull, BlazrError):  # another is being made, or the files have gone
        return None


def next_checkpoint() -> Checkpoint | None:
    """Return the first checkpoint that the server makes a passport of by itself; None: there is none.

    A model's setting may turn that off, and the server's choice for all models. Checkpoints of training runs get theirs
    by hand: there are many, and few are promoted.
    """
    if not server_choices().makes_passports:
        return None
    limit = MEMORY_SHARE * machine_memory_bytes() / (4 * COPIES)
    rows = (
        checkpoint_list()
        .filter(
            state=Checkpoint.State.AVAILABLE,
            created_at__lt=timezone.now() - REGISTERED_FOR,
            num_parameters__lte=int(limit),
        )
        .exclude(pk__in=RunStep.objects.exclude(checkpoint=None).values("checkpoint"))
        .exclude(pk__in=_tried().values("source"))
        .order_by("created_at")
    )
    for row in readable_rows(rows):
        if row.settings.get("passport") == "off":
            continue
        if PASSPORTS.rows().filter(source=row).count() < MAX_INTERRUPTED:
            return row
    return None


def _tried() -> QuerySet[Passport]:
    """Passports that don't have to be made again: those that the end of the server interrupted are left out."""
    return PASSPORTS.rows().exclude(source=None).exclude(state=State.FAILED, reason__startswith="the server stopped")


def is_idle() -> bool:
    """Whether no worker has had a request for a while; False where the workers can't be asked."""
    seen = live.look()
    if seen.notice or not seen.workers or any(worker.num_active for worker in seen.workers):
        return False
    return all(time.time() - state.last_used_at > IDLE_S for state in seen.models.values())
