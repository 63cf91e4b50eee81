"""End a batch: write the files from the rows, charge the usage, queue the webhook message."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models import Count, Sum
from django.db.models.functions import Now
from django.utils import timezone

from inference.batches import webhooks
from inference.batches.batch_claims import BatchClaim
from inference.batches.unrun_lines import fail_queued
from inference.files.services import file_store_row
from inference.files.store import FileWriter, store_lock
from inference.host.fault_points import fault_point
from inference.models import Batch, BatchLine, BatchResult, BatchState
from inference.records.usage import Usage, usage_store

READ_BATCH = 500


def batch_finalise(claim: BatchClaim) -> None:
    """Write the files from the rows, then end the batch in one transaction."""
    batch = claim.row
    if batch.in_progress_at is None:
        # The batch ended during validation, so no line was ever due.
        BatchLine.objects.filter(batch=batch).delete()
    elif batch.state == BatchState.CANCELLING:
        fail_queued(batch)
        batch.refresh_from_db(fields=["num_completed", "num_failed"])
        if batch.num_open:
            claim.give_back()
            return
    if batch.state == BatchState.FINALIZING and batch.finalizing_at is None:
        claim.write(finalizing_at=Now())
    files: dict[str, FileWriter] = {}
    try:
        for kind, is_error in (("output", False), ("error", True)):
            writer = _render(claim, is_error=is_error)
            if writer is not None:
                files[kind] = writer
                writer.flush()  # before the locks: on SQLite nobody else writes during the transaction
        fault_point("batch.rendered")
        # Lock order: the file store first, then the database.
        with store_lock(), transaction.atomic():
            ids = {
                f"{kind}_file_id": file_store_row(
                    writer=writer,
                    filename=f"{batch.batch_id}_{kind}.jsonl",
                    purpose="batch_output",
                    tenant=batch.tenant,
                    expires_s=batch.output_expires_s,
                ).file_id
                for kind, writer in files.items()
            }
            batch_end(claim, BatchState(batch.ending or BatchState.COMPLETED), **ids)
        fault_point("batch.ended")
    finally:
        for writer in files.values():
            writer.discard()


def _render(claim: BatchClaim, *, is_error: bool) -> FileWriter | None:
    """Write the results of one kind, in the order of the input; None: there are none."""
    rows = BatchResult.objects.filter(batch=claim.row, is_error=is_error).order_by("line_id")
    writer: FileWriter | None = None
    last = 0
    try:
        while found := list(rows.filter(line_id__gt=last).values_list("line_id", "payload")[:READ_BATCH]):
            last = found[-1][0]
            writer = writer or FileWriter()
            writer.write("".join(f"{payload}\n" for _, payload in found).encode())
            claim.pause()
    except BaseException:
        if writer is not None:
            writer.discard()
        raise
    return writer


def batch_end(claim: BatchClaim, state: BatchState, **values: Any) -> None:
    """Store the final state, the usage and the webhook message in one transaction.

    Raises:
        FenceLost: Another worker holds the batch.
    """
    batch = claim.row
    with transaction.atomic():
        claim.give_back(state=state, ended_at=Now(), **values)
        batch.refresh_from_db()
        fault_point("batch.end")
        _charge(batch)
        webhooks.schedule(batch)


def _charge(batch: Batch) -> None:
    """Store one usage record per model, named after the batch, so that no usage is charged twice."""
    names = batch.checkpoint_names
    sums = (
        BatchResult.objects.filter(batch=batch)
        .order_by()
        .values("line__checkpoint_id")
        .annotate(
            prompt=Sum("prompt_tokens"),
            completion=Sum("completion_tokens"),
            cached=Sum("cached_tokens"),
            queue_s=Sum("queue_s"),
            engine_s=Sum("engine_s"),
            num=Count("pk"),
        )
    )
    now = timezone.now()
    started = batch.in_progress_at or now
    usage_store(
        records=[
            Usage(
                request_id=f"{batch.batch_id}-{item['line__checkpoint_id'].hex[:12]}",
                tenant=batch.tenant,
                endpoint="batch",
                model=names.get(str(item["line__checkpoint_id"]), "")[:128],
                outcome="completed",
                prompt_tokens=item["prompt"],
                completion_tokens=item["completion"],
                cached_tokens=item["cached"],
                ttft_s=None,
                duration_s=max(0.0, (now - started).total_seconds()),
                created_at=now,
                queue_s=item["queue_s"],
                engine_s=item["engine_s"],
                requests=item["num"],
            )
            for item in sums
            if item["prompt"] or item["completion"]
        ]
    )
