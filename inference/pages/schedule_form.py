"""The form of a schedule: what it shows, and what is sent of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inference.access.accounts import can_load
from inference.batches.line_requests import ENDPOINT_KINDS
from inference.batches.retries import RETRY_OF
from inference.batches.services import batch_get
from inference.errors import BlazrError, InvalidRequest
from inference.files.services import files_of
from inference.models import Schedule, ScheduleAction
from inference.models.readable_rows import DamagedRow, json_value, readable_rows
from inference.pages.batches import form_metadata, form_priority
from inference.schedules.cron import zone_names
from inference.schedules.definitions import batch_values
from inference.schedules.objects import preview_times
from inference.schedules.words import cron_words
from models_registry import selectors

if TYPE_CHECKING:
    from django.http import QueryDict

    from inference.models import Batch
    from inference.values.principal import Principal

MAX_FIELD_CHARS = 20_000
NUM_FILES = 100
"""Newest files that can be chosen."""
WINDOWS = ("1h", "6h", "24h", "3d", "7d", "14d")
EXAMPLES = (
    ("0 2 * * *", "every day at 02:00"),
    ("0 8 * * 1-5", "Monday to Friday at 08:00"),
    ("*/30 * * * *", "every 30 minutes"),
    ("0 6 1 * *", "on day 1 of the month at 06:00"),
)
NEW = {
    "name": "", "action": "batch", "cron": "0 2 * * *", "time_zone": "UTC", "file": "", "endpoint": "", "window": "24h",
    "priority": "0", "metadata": "", "model": "",
}  # fmt: skip
"""Fields of an empty form."""
_BATCH_FIELDS = ("file", "endpoint", "window", "priority", "metadata")


def form_of_row(row: Schedule) -> dict[str, str]:
    """Return the fields of a schedule's form."""
    form = {**NEW, "name": row.name, "action": row.action, "cron": row.cron, "time_zone": row.time_zone}
    if row.action != ScheduleAction.BATCH:
        return {**form, "model": row.model}
    try:
        batch = batch_values(row)
    except DamagedRow:
        batch = {"endpoint": "", "completion_window": "24h"}
    return form | {
        "file": row.input_file_id,
        "endpoint": batch["endpoint"],
        "window": batch["completion_window"],
        "priority": str(batch.get("priority", 0)),
        "metadata": _metadata_text(batch.get("metadata")),
    }


def form_of_batch(row: Batch) -> dict[str, str]:
    """Return the fields of a new schedule that runs a batch again."""
    try:
        metadata: dict[str, str] = dict(json_value(row, "metadata"))
    except DamagedRow:
        metadata = {}
    metadata.pop(RETRY_OF, None)
    return {
        **NEW,
        "name": str(metadata.get("label", ""))[:100],
        "file": row.input_file_id,
        "endpoint": row.endpoint,
        "window": row.completion_window,
        "priority": str(row.priority),
        "metadata": _metadata_text(metadata),
    }


def form_of_query(query: QueryDict, principal: Principal) -> dict[str, str]:
    """Return the fields of a new schedule, for the batch, the file or the model that an address names.

    Raises:
        NotFound: There is no such batch.
    """
    if batch_id := query.get("batch", ""):
        return form_of_batch(batch_get(batch_id=batch_id, principal=principal))
    given = {name: query.get(name, "")[:256] for name in ("file", "endpoint", "model") if name in query}
    return {**NEW, **given, "action": "load" if "model" in given else "batch"}


def form_sent(form: QueryDict) -> dict[str, str]:
    """Return the fields as they were sent, to be shown again."""
    return {name: form.get(name, "")[:MAX_FIELD_CHARS].replace("\r\n", "\n") for name in NEW}


def values_of(form: dict[str, str], before: Schedule | None = None) -> dict[str, Any]:
    """Return what a form says, as ``schedule_create`` and ``schedule_change`` take it.

    Args:
        before: The schedule that is changed; what its form doesn't show stays, and what is as it was is left out.

    Raises:
        InvalidRequest: A field is wrong.
    """
    shown = None if before is None else form_of_row(before)
    values: dict[str, Any] = {
        name: form[name] for name in ("name", "cron", "time_zone") if shown is None or form[name] != shown[name]
    }
    of_action = ("model",) if form["action"] != ScheduleAction.BATCH else _BATCH_FIELDS
    if shown is not None and all(form[name] == shown[name] for name in ("action", *of_action)):
        return values
    if form["action"] not in ScheduleAction.values:
        raise InvalidRequest(
            f"action is {form['action'][:40]!r}; it must be one of {', '.join(ScheduleAction.values)}.", param="action"
        )
    if form["action"] != ScheduleAction.BATCH:
        return {**values, "action": form["action"], "model": form["model"]}
    return {**values, "action": form["action"], "batch": _batch_of(form, before, shown)}


def _batch_of(form: dict[str, str], before: Schedule | None, shown: dict[str, str] | None) -> dict[str, Any]:
    if form["endpoint"] not in ENDPOINT_KINDS:
        raise InvalidRequest(
            f"endpoint is {form['endpoint'][:60]!r}; it must be one of {', '.join(ENDPOINT_KINDS)}.", param="endpoint"
        )
    batch: dict[str, Any] = {}
    if before is not None and before.action == ScheduleAction.BATCH:
        try:
            batch = batch_values(before)
        except DamagedRow:
            batch = {}
    batch |= {
        "input_file_id": form["file"],
        "endpoint": form["endpoint"],
        "completion_window": form["window"],
        "priority": form_priority(form["priority"]),
    }
    # A value with several lines, which clients may write, can't be read back from the field.
    if shown is None or form["metadata"] != shown["metadata"]:
        batch["metadata"] = form_metadata("", form["metadata"])
    if batch.get("metadata") is None:
        batch.pop("metadata", None)
    return batch


def form_context(form: dict[str, str], principal: Principal, *, error: str = "") -> dict[str, Any]:
    """Return what the form's template needs.

    Args:
        form: The fields.
        error: Why it was refused.
    """
    files = readable_rows(files_of(principal).filter(purpose="batch").order_by("-id"), NUM_FILES)
    if form["file"] and "\0" not in form["file"] and form["file"] not in {row.file_id for row in files}:
        files += readable_rows(files_of(principal).filter(file_id=form["file"][:40]), 1)
    is_loader = can_load(principal)
    return {
        "form": form,
        "form_error": error,
        "files": files,
        "file_is_gone": bool(form["file"]) and form["file"] not in {row.file_id for row in files},
        "endpoints": list(ENDPOINT_KINDS),
        "windows": [*WINDOWS, *([] if form["window"] in WINDOWS else [form["window"]])],
        "models": list(selectors.checkpoint_list().values_list("served_model_name", flat=True)) if is_loader else [],
        "actions": [
            (name, label)
            for name, label in ScheduleAction.choices
            if is_loader or name in (ScheduleAction.BATCH, form["action"])
        ],
        "zones": zone_names(),
        "examples": EXAMPLES,
        **preview_context(form["cron"], form["time_zone"]),
    }


def preview_context(cron: str, time_zone: str) -> dict[str, Any]:
    """Return the next times of an expression, or why it has none."""
    try:
        parsed, moments = preview_times(cron, time_zone)
    except BlazrError as error:
        return {"preview": None, "preview_error": error.message}
    clocks = [f"{at:%a} {at.day} {at:%b %Y, %H:%M} (UTC{at.isoformat()[-6:]})" for at in moments]
    return {"preview": {"words": cron_words(parsed, time_zone), "clocks": clocks}, "preview_error": ""}


def _metadata_text(metadata: dict[str, str] | None) -> str:
    return "\n".join(f"{name}={value}" for name, value in (metadata or {}).items())
