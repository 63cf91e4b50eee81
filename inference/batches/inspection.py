"""Read the lines of a batch for people: pages of lines, one line, and the errors in groups."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import orjson
from django.db.models import F, QuerySet
from django.db.models.functions import Substr

from inference.batches.line_requests import line_number
from inference.files.store import open_file
from inference.models import Batch, BatchLine, BatchResult, LineState, StoredFile
from inference.models.readable_rows import readable_rows

MAX_LISTED_CHARS = 16_384
"""Longest body or result that a list of lines reads; a longer one is shown when its line is opened."""
MAX_GROUPED = 10_000
"""Errors that are grouped; the first ones in the order of the file."""
MAX_GROUPS = 50
READ_ROWS = 500
_VARYING = re.compile(r"'[^']*'|\"[^\"]*\"|\d[\d,.]*")


@dataclass(frozen=True, slots=True)
class ListedLine:
    """A line as a list shows it.

    Attributes:
        body, payload: The request, and the line of the output or error file; None: there is none, or it is too long.
        is_long: Whether one of them was left out because of its length.
    """

    number: int
    custom_id: str
    state: str
    attempts: int
    body: dict[str, Any] | None
    payload: dict[str, Any] | None
    is_long: bool
    completion_tokens: int
    engine_s: float


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Errors with the same code whose messages differ in numbers and quoted words only.

    Attributes:
        message: The message of the first one.
        custom_id, number: The first one's; 0: its number isn't known.
    """

    code: str
    message: str
    count: int
    custom_id: str
    number: int


def lines_page(batch: Batch, *, state: str, search: str, after: int, limit: int) -> list[ListedLine]:
    """Return lines in the order of the file, without reading long bodies.

    Args:
        state: Of ``LineState``; empty: of any.
        search: Part of the ``custom_id``; empty: any.
        after: Continue behind the line with this number.
        limit: Most lines.
    """
    rows = BatchLine.objects.filter(batch=batch)
    if state:
        rows = rows.filter(state=state)
    if search:
        rows = rows.filter(custom_id__contains=search.replace("\0", ""))
    if after:
        rows = rows.filter(number__gt=after)
    found = rows.order_by("id").values_list(
        "number", "custom_id", "state", "attempts",
        Substr("body", 1, MAX_LISTED_CHARS + 1), Substr("result__payload", 1, MAX_LISTED_CHARS + 1),
        F("result__completion_tokens"), F("result__engine_s"),
    )[:limit]  # fmt: skip
    return [
        ListedLine(
            number=number,
            custom_id=custom_id,
            state=line_state,
            attempts=attempts,
            body=_short_value(body),
            payload=_short_value(payload),
            is_long=max(len(body), len(payload or "")) > MAX_LISTED_CHARS,
            completion_tokens=tokens or 0,
            engine_s=engine_s or 0.0,
        )
        for number, custom_id, line_state, attempts, body, payload, tokens, engine_s in found
    ]


def line_get(batch: Batch, number: int) -> tuple[BatchLine, BatchResult | None] | None:
    """Return a line with its result, whatever their length; None: there is no such line, or it was removed."""
    rows = readable_rows(BatchLine.objects.filter(batch=batch, number=number), 1)
    return (rows[0], BatchResult.objects.filter(line=rows[0]).first()) if rows else None


def has_lines(batch: Batch) -> bool:
    """Whether all lines of a batch are still stored; a day after its end they go, and the files alone hold them."""
    return BatchLine.objects.filter(batch=batch).count() == batch.num_total


def num_running(batch: Batch) -> int:
    """Return the number of lines that workers hold."""
    return BatchLine.objects.filter(batch=batch, state=LineState.RUNNING).count()


def payload_of(result: BatchResult) -> dict[str, Any]:
    """Return the line of the output or error file; of a damaged row an empty one."""
    return json_object(result.payload)


def json_object(text: str | bytes) -> dict[str, Any]:
    """Return the object that a text has; an empty one for anything else."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def error_of(payload: dict[str, Any]) -> tuple[str, str]:
    """Return (code, message) of a line of an error file, whether it ran or not."""
    response = payload.get("response") or {}
    error = payload.get("error") or (response.get("body") or {}).get("error") or {}
    code = str(error.get("code") or error.get("type") or "error")
    return code, str(error.get("message") or "It failed without a message.")


def has_all_failed(rows: QuerySet[Any], batch: Batch) -> bool:
    """Whether these rows of the failed lines are all of them, or the only place that has any."""
    return not batch.error_file_id or rows.count() == batch.num_failed


def failed_payloads(batch: Batch) -> Iterator[dict[str, Any]]:
    """Yield the lines of the error file in their order: from the rows while all are stored, else from the file."""
    rows = BatchResult.objects.filter(batch=batch, is_error=True).order_by("line_id").values_list("payload", flat=True)
    if has_all_failed(rows, batch):
        yield from map(json_object, rows.iterator(chunk_size=READ_ROWS))
        return
    stored = StoredFile.objects.filter(file_id=batch.error_file_id).first()
    if stored is None:
        return
    try:
        file = open_file(stored.sha256)
    except FileNotFoundError:
        return
    with file:
        yield from map(json_object, file)


def error_groups(batch: Batch) -> list[ErrorGroup]:
    """Return the errors of up to ``MAX_GROUPED`` failed lines in groups, the most frequent ones first."""
    found: dict[tuple[str, str], ErrorGroup] = {}
    for payload in islice(failed_payloads(batch), MAX_GROUPED):
        code, message = error_of(payload)
        shape = (code, _VARYING.sub("…", message))
        first = found.get(shape)
        if first is None:
            number = line_number(str(payload.get("id", "")), batch.batch_id)
            found[shape] = ErrorGroup(code, message, 1, str(payload.get("custom_id", "")), number)
        else:
            found[shape] = replace(first, count=first.count + 1)
    return sorted(found.values(), key=lambda group: -group.count)[:MAX_GROUPS]


def _short_value(text: str | None) -> dict[str, Any] | None:
    return None if text is None or len(text) > MAX_LISTED_CHARS else json_object(text)
