"""Quantise checkpoints as durable jobs: check, start, follow, cancel, and register the result.

The child (``blazr_site.quantise_child``) writes below the directory of uploads, and the result is published and
registered as an upload is. ``checkpoint_jobs`` has what all jobs share.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import transaction

from inference.errors import Conflict, InvalidRequest, StorageFull, UnsupportedFormat
from inference.host.units import format_bytes
from inference.modelling.encodings.blazr import METHOD
from models_registry import storage
from models_registry.checkpoint_jobs import (
    CheckpointJobs,
    Report,
    check_available,
    follow,
    source_of,
    write_through_outages,
)
from models_registry.detection.child import inspect_in_child
from models_registry.detection.facts import CHAT_TEMPLATE, TOKENIZER_FROM
from models_registry.detection.inspection import Inspection
from models_registry.job_process import JobProcess
from models_registry.models import MAX_NAME_CHARS, Checkpoint, Quantisation
from models_registry.names import check_name
from models_registry.selectors import checkpoint_inspection, overrides_in_force
from models_registry.services import checkpoint_register, free_name, name_taken
from models_registry.span_measurements import check_text_for
from models_registry.uploads import available_bytes

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser

MAX_KL = 100.0
"""Upper bound of ``max_kl`` in nats, as of ``blazr quantise``."""
SUFFIX = "-quantised"
CHILD = "blazr_site.quantise_child"
VOCABULARY = "vocabulary"
_QUANTISED, _HASHED = 0.9, 0.98
"""Shares of the work that are done after the child, and after its files were read back."""


class Quantisations(CheckpointJobs[Quantisation]):
    """Jobs whose result is a checkpoint with the job's id."""

    model = Quantisation
    noun = "quantisation"
    verb = "quantised"

    def work(self, row: Quantisation, report: Report) -> None:
        """Quantise in a child, publish its files, and register them."""
        source = source_of(row)
        overrides = overrides_in_force(source)
        target = storage.upload_path(row.pk) / "checkpoint"
        request = {
            "path": source.path,
            "overrides": overrides,
            "target": str(target),
            "max_bytes": row.max_bytes,
            "max_kl": row.max_kl,
            "text": row.text,
            "device": settings.BLAZR_DEVICE,
        }
        with JobProcess(CHILD, request) as child:
            follow(child, report, share=_QUANTISED)
        digests = _publish(row, target, report)
        report(_HASHED, "inspecting")
        place = storage.checkpoint_path(row.pk)
        overrides = _not_written(overrides)
        inspection = inspect_in_child(place, overrides=overrides)

        def register() -> None:
            with transaction.atomic():
                checkpoint = checkpoint_register(
                    path=place,
                    served_model_name=free_name(row.served_model_name),  # taken meanwhile: hours of work get a number
                    source=Checkpoint.Source.UPLOAD,
                    origin=f"quantised from {row.source_name}",
                    overrides=overrides,
                    author=row.owner,
                    checkpoint_id=row.pk,
                    sha256=digests,
                    inspect=lambda *_, **__: inspection,  # inspected outside of the transaction, because it is slow
                )
                self.finish(row, checkpoint=checkpoint, served_model_name=checkpoint.served_model_name)

        write_through_outages(register)

    def discard(self, job_id: uuid.UUID) -> None:
        """Remove published files that no checkpoint came of."""
        if not Checkpoint.objects.filter(pk=job_id).exists():
            storage.remove_checkpoint_files(job_id)


QUANTISATIONS = Quantisations()


def quantisation_create(
    *,
    checkpoint: Checkpoint,
    owner: AbstractBaseUser | None = None,
    served_model_name: str = "",
    max_bytes: int | None = None,
    max_kl: float | None = None,
    text: str | None = None,
    wait: bool = False,
) -> Quantisation:
    """Start the quantisation of a checkpoint, after all checks that need no computing.

    Args:
        served_model_name: Of the result; empty: the source's with a suffix.
        max_bytes: Limit of the weights' file.
        max_kl: Limit of the mean KL divergence in nats.
        text: What the divergence is measured on; None: Python's help pages.
        wait: Run in this call; otherwise in a thread, and the row's ``progress`` and ``stage`` show where it is.

    Raises:
        InvalidRequest: There is no limit or a wrong one, the name is not legal, or the text can't be read.
        UnsupportedFormat: The checkpoint was written by a quantisation.
        Conflict: The name is taken, or the checkpoint's files can't be served.
        QueueFull: Another quantisation is running.
        StorageFull: The disk has too little space for the result.
    """
    _check_limits(checkpoint, max_bytes, max_kl)
    name = check_name(served_model_name) if served_model_name else default_name(checkpoint)
    if free_name(name) != name:
        raise name_taken(name)
    check_available(checkpoint)
    inspection = checkpoint_inspection(checkpoint)
    if not is_quantisable(inspection):
        raise UnsupportedFormat(
            f"{checkpoint.served_model_name} was written by a quantisation; quantise the model that it was made from, "
            "so that nothing is rounded twice.",
            param="checkpoint",
        )
    if text is not None:
        check_text_for(checkpoint, inspection, text)
    QUANTISATIONS.sweep()
    _check_disk(checkpoint, max_bytes)
    return QUANTISATIONS.create(
        checkpoint, owner, wait=wait, served_model_name=name, max_bytes=max_bytes, max_kl=max_kl, text=text or ""
    )


def quantisation_cancel(*, quantisation_id: uuid.UUID, username: str = "") -> Quantisation:
    """Cancel a running quantisation; one that failed or was cancelled stays as it is.

    Raises:
        NotFound: No such quantisation.
        Conflict: It is done.
    """
    row = QUANTISATIONS.cancel(quantisation_id, username)
    if row.state == Quantisation.State.DONE:
        raise Conflict(f"the quantisation is done; delete the model {row.served_model_name} instead.")
    return row


def is_quantisable(inspection: Inspection) -> bool:
    """Whether no quantisation wrote the weights."""
    return all(item.coding != METHOD for item in inspection.spec.encoded)


def default_name(checkpoint: Checkpoint) -> str:
    """Return a free name for the result."""
    return free_name(checkpoint.served_model_name[: MAX_NAME_CHARS - len(SUFFIX)] + SUFFIX)


# --- checks ------------------------------------------------------------------------------------


def _check_limits(checkpoint: Checkpoint, max_bytes: int | None, max_kl: float | None) -> None:
    if max_bytes is None and max_kl is None:
        raise InvalidRequest("say how small or how close: max_bytes, max_kl, or both.", param="max_bytes")
    if max_bytes is not None and not 0 < max_bytes < checkpoint.size_bytes:
        raise InvalidRequest(
            f"max_bytes is {max_bytes}; it must be above 0 and below the {checkpoint.size_bytes} bytes "
            f"({format_bytes(checkpoint.size_bytes)}) that {checkpoint.served_model_name} has now.",
            param="max_bytes",
        )
    if max_kl is not None and not 0 < max_kl < MAX_KL:
        raise InvalidRequest(f"max_kl is {max_kl:g}; it must be above 0 and below {MAX_KL:g} nats.", param="max_kl")


def _not_written(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that the written files don't state: all but those of tokenizer and chat template."""
    written = {TOKENIZER_FROM, CHAT_TEMPLATE} | ({VOCABULARY} if overrides.get(VOCABULARY) != "none" else set())
    return {fact: value for fact, value in overrides.items() if fact not in written}


def _check_disk(checkpoint: Checkpoint, max_bytes: int | None) -> None:
    needed, available = max_bytes or checkpoint.size_bytes, available_bytes()
    if needed > available:
        raise StorageFull(
            f"the result may have {needed} bytes, the server's disk has {max(available, 0)} to give; free some space, "
            "or give a lower max_bytes.",
            param="max_bytes",
        )


def _publish(row: Quantisation, target: Path, report: Report) -> dict[str, str]:
    """Hash the written files, and link them into the checkpoint's directory; returns digests by name."""
    place = storage.checkpoint_path(row.pk)
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    digests: dict[str, str] = {}
    report(_QUANTISED, "reading back")
    for file in sorted(target.iterdir()):
        digests[file.name] = storage.sha256_file(file, lambda _: report())
        storage.publish_file(file, digests[file.name], place / file.name)
    return digests
