"""Pages of batches: one with its progress, lines and errors; queueing a file; a retry of the failed lines."""

from __future__ import annotations

import re
import secrets
from itertools import islice
from typing import Any

import orjson
from django.db import transaction
from django.http import QueryDict
from django.urls import reverse

from inference.access.accounts import principal_of_staff
from inference.batches.inspection import (
    MAX_GROUPED,
    ListedLine,
    error_groups,
    has_lines,
    line_get,
    lines_page,
    num_running,
    payload_of,
)
from inference.batches.line_requests import ENDPOINT_KINDS
from inference.batches.progress import batch_progress
from inference.batches.retries import RETRY_OF, failed_lines_retry, retries_of
from inference.batches.services import batch_create, batch_get, batch_object, batch_priority_set
from inference.dialects.openai.sampling_fields import MAX_PRIORITY
from inference.errors import InvalidRequest
from inference.files.services import file_delete, file_expiry_renew, files_of
from inference.models import Batch, BatchState, LineState
from inference.models.readable_rows import DamagedRow, json_value
from inference.pages.batch_lines import (
    num_prompts,
    output_of_payload,
    params_of_body,
    preview,
    prompt_preview,
    prompts_of_body,
)
from inference.pages.callers import caller_of
from inference.pages.jobs import BATCHES, batch_words
from inference.schedules.services import schedules_of
from inference.values.request_key import RequestKey
from models_registry.page_numbers import number_of
from models_registry.views import StaffAction, StaffPage

NUM_LINES = 50
MAX_SEARCH = 512
MAX_NUMBER = (1 << 31) - 1
"""Largest number that a column of lines takes."""
MAX_JSON_CHARS = 200_000
MAX_SHOWN = 20
"""Prompts and members of a line's body that are shown: a client may have put 500,000 there."""
HEAD_REGION, LINES_REGION = "batch-head", "batch-lines"
"""Elements that are drawn anew alone (``templates/registry/batch.html``)."""
_BATCH_ID = re.compile("batch_[0-9a-f]{1,34}")
_LINE_MARKS = {LineState.COMPLETED: "succeeded"}
_FILES = (("input_file_id", "input"), ("output_file_id", "output"), ("error_file_id", "errors"))


class BatchPage(StaffPage):
    """One batch."""

    template_name = "registry/batch.html"
    section = "jobs"
    permission_required = BATCHES

    def page_context(self, **kwargs: Any) -> dict[str, Any]:
        """Return the batch with a page of its lines; a region that is drawn anew needs its own part only."""
        batch = batch_get(batch_id=kwargs["batch_id"], principal=principal_of_staff(self.request.user))
        drawn = self.drawn(HEAD_REGION, LINES_REGION)
        context: dict[str, Any] = {"batch": batch, "drawn": drawn}
        if HEAD_REGION in drawn:
            context |= self._head(batch)
        if LINES_REGION in drawn:
            context |= self._lines(batch)
        return context

    def _head(self, batch: Batch) -> dict[str, Any]:
        """Return the state, the files, the errors in groups, and what has been made of the batch."""
        principal = principal_of_staff(self.request.user)
        shown = batch_words(batch_object(batch, batch_progress(batch)))
        shown["is_open"] = shown["is_open"] and not batch.ending
        metadata = dict(shown["metadata"] or {})
        earlier = str(metadata.get(RETRY_OF, ""))
        if _BATCH_ID.fullmatch(earlier):  # clients may write anything there
            del metadata[RETRY_OF]
        else:
            earlier = ""
        ids = {name: getattr(batch, column) for column, name in _FILES}
        schedule = schedules_of(principal).filter(schedule_id=batch.schedule_id).first() if batch.schedule_id else None
        stored = {row.file_id: row for row in files_of(principal).filter(file_id__in=list(ids.values()))}
        running = num_running(batch) if batch.in_progress_at is not None and not batch.is_finished else 0
        return {
            "shown": shown,
            "owner": caller_of(batch.tenant),
            "models": sorted({str(name) for name in batch.checkpoint_names.values()}),
            "sentence": _sentence(batch, running),
            "files": [{"name": name, "id": key, "row": stored.get(key)} for name, key in ids.items() if key],
            "file_errors": shown["errors"]["data"] if shown["errors"] else [],
            "groups": error_groups(batch) if batch.num_failed else [],
            "max_grouped": MAX_GROUPED,
            "metadata": list(metadata.items()),  # a name may be "items", which templates would take for the method
            "schedule": schedule,
            "retry_of": earlier,
            "retries": retries_of(batch, principal=principal),
            "retry_token": secrets.token_hex(8),
            "can_retry": batch.is_finished and batch.num_failed > 0,
            "lowest_priority": -MAX_PRIORITY if principal.has_scope("priority") else 0,
            "highest_priority": MAX_PRIORITY,
        }

    def _lines(self, batch: Batch) -> dict[str, Any]:
        """Return the lines that match the address."""
        query = self.request.GET
        state, search = query.get("state", ""), query.get("q", "")[:MAX_SEARCH].replace("\0", "").strip()
        if state and state not in LineState.values:
            raise InvalidRequest(
                f"state is {state[:40]!r}; it must be one of {', '.join(LineState.values)}.", param="state"
            )
        after, opened = (number_of(query.get(name), 0, 0, MAX_NUMBER) for name in ("after", "line"))
        found = lines_page(batch, state=state, search=search, after=after, limit=NUM_LINES + 1)
        lines = [_line_row(line, query, is_open=line.number == opened) for line in found[:NUM_LINES]]
        line = _opened_line(batch, opened) if opened else None
        return {
            "states": LineState.values,
            "state": state,
            "q": search,
            "after": after,
            "lines": lines,
            "later": _address(query, after=lines[-1]["number"], line=None) if len(found) > NUM_LINES else "",
            "opened": line,
            "missing": opened if line is None and batch.is_finished else 0,
            "is_listed": any(line["is_open"] for line in lines),
            "are_gone": batch.is_finished and batch.num_total > 0 and not has_lines(batch),
        }


class BatchRetry(StaffAction):
    """Run the failed lines of a batch again, as a new batch."""

    permission_required = BATCHES

    def act(self, **kwargs: Any) -> str:
        """Make the batch; returns the address of its page."""
        token = self.request.POST.get("token", "")
        new = failed_lines_retry(
            batch_id=kwargs["batch_id"], principal=principal_of_staff(self.request.user), token=token
        )
        return reverse("batch", args=[new.batch_id])


class BatchPriority(StaffAction):
    """Change the priority of an open batch."""

    permission_required = BATCHES

    def act(self, **kwargs: Any) -> str:
        """Set it; returns the address of the batch's page."""
        priority = form_priority(self.request.POST.get("priority", ""))
        principal = principal_of_staff(self.request.user)
        batch = batch_priority_set(batch_id=kwargs["batch_id"], principal=principal, priority=priority)
        return reverse("batch", args=[batch.batch_id])


class BatchQueue(StaffAction):
    """Queue a file that was checked, or discard it."""

    permission_required = BATCHES

    def act(self, **kwargs: Any) -> str:
        """Make the batch; returns the address of its page."""
        form, principal = self.request.POST, principal_of_staff(self.request.user)
        file_id = form.get("file", "")
        if "discard" in form:
            file_delete(file_id=file_id, principal=principal)
            return reverse("jobs")
        values = {
            "input_file_id": file_id,
            "endpoint": form.get("endpoint", ""),
            "completion_window": form.get("window", ""),
            "priority": form_priority(form.get("priority", "")),
            "metadata": form_metadata(form.get("label", ""), form.get("metadata", "")),
        }
        if values["endpoint"] not in ENDPOINT_KINDS:
            raise InvalidRequest(
                f"endpoint is {str(values['endpoint'])[:60]!r}; it must be one of {', '.join(ENDPOINT_KINDS)}.",
                param="endpoint",
            )
        # A form that is sent twice makes one batch.
        key = RequestKey(f"queue-{file_id[:40]}", "")
        with transaction.atomic():  # a batch whose process dies keeps its input, or isn't made
            row = batch_create(values=values, principal=principal, request_key=key)
            file_expiry_renew(file_id=file_id, principal=principal)
        return reverse("batch", args=[row.batch_id])


def form_metadata(label: str, text: str) -> dict[str, str] | None:
    """Return the metadata of a form: a label, and ``name=value`` in each line of ``text``; None: there is none.

    Raises:
        InvalidRequest: A line has no name.
    """
    found = {"label": label.strip()} if label.strip() else {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, separator, value = line.partition("=")
        if not separator or not name.strip():
            raise InvalidRequest(f"{line[:60]!r} is no metadata; write name=value in each line.", param="metadata")
        found[name.strip()] = value.strip()
    return found or None


def form_priority(text: str) -> int:
    """Return the priority of a form; empty: 0.

    Raises:
        InvalidRequest: It is no whole number in range.
    """
    if not re.fullmatch("-?[0-9]{1,3}", text or "0") or abs(int(text or "0")) > MAX_PRIORITY:
        raise InvalidRequest(
            f"priority is {text[:20]!r}; it must be a whole number from {-MAX_PRIORITY} to {MAX_PRIORITY}.",
            param="priority",
        )
    return int(text or "0")


def _sentence(batch: Batch, running: int) -> str:
    """Return what is happening to a batch."""
    waiting = max(0, batch.num_open - running)
    if batch.state == BatchState.VALIDATING:
        paused = " It is paused: no line starts after that. Its window goes on." if batch.is_paused else ""
        return f"Its file waits for being checked, or is being checked.{paused}"
    if batch.is_paused:
        return f"It is paused: no line starts. {running:,} still run, {waiting:,} wait. Its window goes on."
    if batch.state == BatchState.IN_PROGRESS and not batch.ending:
        return f"{running:,} of its lines run, {waiting:,} wait. They run when interactive requests leave room."
    if batch.state == BatchState.CANCELLING or (batch.ending and running):
        return "Running lines are being stopped; finished ones are kept."
    if not batch.is_finished:
        return "Its files are being written."
    unrun = {
        BatchState.EXPIRED: "Its window ended before all lines had run; the rest is in the error file.",
        BatchState.CANCELLED: "It was cancelled; finished lines are kept.",
        BatchState.FAILED: "It couldn't go on." if batch.in_progress_at else "Its file was refused; no line has run.",
    }
    return unrun.get(BatchState(batch.state), "All lines have run.")


def _line_row(line: ListedLine, query: QueryDict, *, is_open: bool) -> dict[str, Any]:
    output = None
    if line.payload is not None:
        output = output_of_payload(line.payload, is_error=line.state == LineState.FAILED)
    return {
        "number": line.number,
        "custom_id": line.custom_id,
        "state": line.state,
        "mark": _LINE_MARKS.get(LineState(line.state), line.state),
        "attempts": line.attempts,
        "tokens": line.completion_tokens,
        "engine_s": line.engine_s,
        "prompt": "" if line.body is None else prompt_preview(line.body),
        "answer": "" if output is None else preview(output.texts),
        "error": "" if output is None or output.error is None else output.error[1],
        "is_long": line.is_long,
        "is_open": is_open,
        "address": f"{_address(query, line=None if is_open else line.number)}#line-{line.number}",
    }


def _opened_line(batch: Batch, number: int) -> dict[str, Any] | None:
    """Return a line with its request and what came of it in full; None: it isn't there any more."""
    found = line_get(batch, number)
    if found is None:
        return None
    line, result = found
    try:
        body = json_value(line, "body")
    except DamagedRow:
        body = {}
    payload = {} if result is None else payload_of(result)
    output = None if result is None else output_of_payload(payload, is_error=result.is_error)
    whole = orjson.dumps(payload, option=orjson.OPT_INDENT_2).decode() if payload else ""
    return {
        "number": line.number,
        "custom_id": line.custom_id,
        "state": line.state,
        "model": str(body.get("model", ""))[:200],
        "prompts": prompts_of_body(body, MAX_SHOWN),
        "num_prompts": num_prompts(body),
        "params": list(islice(params_of_body(body).items(), MAX_SHOWN)),
        "answer": output,
        "usage": [] if output is None else list((output.usage or {}).items()),
        "result": result,
        "json": whole[:MAX_JSON_CHARS],
        "is_json_cut": len(whole) > MAX_JSON_CHARS,
    }


def _address(query: QueryDict, **changes: int | None) -> str:
    """Return the address of the same list with other members; None removes one."""
    changed = query.copy()
    for name, value in changes.items():
        changed.pop(name, None)
        if value is not None:
            changed[name] = str(value)
    return f"?{changed.urlencode()}"
