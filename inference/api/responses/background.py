"""Submit, read and cancel responses that run as queued jobs.

The row of the response has the object from before generation. The job and its stored events have the rest. Each reader
gets the same events under the same numbers, so that a client can resume a stream after any event. All functions are
synchronous and use the database.
"""

from __future__ import annotations

import logging
import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson
from django.db import transaction

from inference.access.line_limits import lines_check
from inference.dialects.chat_bridge import pieces, translate_error
from inference.dialects.openai.outputs.base import OutputFormatter
from inference.dialects.openai.outputs.formats import output_formatter
from inference.dialects.responses.events import Event, ResponseEvents
from inference.dialects.responses.serializers import CHAT_NAMES, ResponseRequest
from inference.errors import GenerationFailed, InvalidRequest
from inference.jobs.selectors import job_error, num_open
from inference.jobs.services import JobRequest, job_cancel, jobs_submit
from inference.models import GenerationJob, JobChunk, JobState, StoredResponse
from inference.models.readable_rows import readable_rows
from inference.records.stored_responses import response_bytes_check, response_finish, response_get, response_store
from inference.values.messages import GenerationEvent
from inference.values.output_builder import OutputBuilder
from inference.values.plan import GenerationPlan

if TYPE_CHECKING:
    from inference.values.principal import Principal
    from inference.values.request_key import RequestKey

logger = logging.getLogger(__name__)

OPEN_STATES = ("queued", "in_progress")
_AT_THE_START: dict[str, Any] = {
    "status": "queued",
    "output": [],
    "usage": None,
    "completed_at": None,
    "error": None,
    "incomplete_details": None,
}
"""Members of a response that change while it runs."""


def background_submit(
    *,
    request: ResponseRequest,
    plan: GenerationPlan,
    principal: Principal,
    request_key: RequestKey | None = None,
) -> StoredResponse:
    """Queue a response as a job; stores both rows or none. A request with a known key returns the first one's response.

    Raises:
        StorageFull: The stored responses have reached their limit.
        BlazrError: As ``jobs_submit`` raises.
    """
    response_bytes_check(principal)
    response_id = f"resp_{secrets.token_hex(16)}"
    name = None if request_key is None else _job_key(request_key)
    job = JobRequest(replace(plan, stream=False), idempotency_key=name, request_key=request_key, keep_events=True)
    with transaction.atomic():
        (row,) = jobs_submit(requests=[job], principal=principal, batch_label=response_id)
        earlier = StoredResponse.objects.filter(job=row).first()
        body = request.skeleton(plan, response_id=response_id, created=int(time.time()), model=row.model)
        return earlier or response_store(
            body=body | {"status": "queued"}, items=request.items, principal=principal, job=row
        )


def background_of_key(*, request_key: RequestKey, principal: Principal) -> StoredResponse | None:
    """Return the response that a request with this key made before, whatever the limits are by now.

    Raises:
        IdempotencyKeyReused: The key came with another request.
    """
    rows = StoredResponse.objects.select_related("job")
    row = rows.filter(job__tenant=principal.tenant, job__idempotency_key=_job_key(request_key)).first()
    if row is not None and row.job is not None:
        request_key.check_digest(row.job.digest)
    return row


def _job_key(request_key: RequestKey) -> str:
    return f"response-{request_key.name}"


def background_check(principal: Principal) -> None:
    """Refuse another response of a caller whose limit of lines is reached; ``background_submit`` checks it again.

    Raises:
        RateLimitExceeded, RequestTooLarge: As ``lines_check`` raises.
    """
    lines_check(principal=principal, lines=1, count=lambda: num_open(principal.tenant))


class BackgroundResponse:
    """Builds the events of a background response from the start, as far as the job has stored them.

    Args:
        row: The response's row, which has a job.
    """

    def __init__(self, row: StoredResponse) -> None:
        self.row = row
        self._events = ResponseEvents(orjson.loads(row.body) | _AT_THE_START)
        self._builder: OutputBuilder | None = None
        self._format: OutputFormatter | None = None
        self._is_queued = self._is_started = False
        self._next_chunk = 0

    @property
    def response(self) -> dict[str, Any]:
        """The response object after the last ``read``."""
        return self._events.response

    @property
    def is_over(self) -> bool:
        """Whether no more events follow."""
        return self._is_queued and self._events.is_over

    def read(self) -> list[Event]:
        """Return the events since the last call."""
        if self.is_over:
            return []
        events: list[Event] = []
        if not self._is_queued:
            self._is_queued = True
            events += self._events.queued()
        # The state is read first: once it is final, all chunks are stored.
        # Without its plan, which may have megabytes: readers of a stream come here four times a second.
        jobs = readable_rows(GenerationJob.objects.filter(pk=self.row.job_id or 0).defer("result", "plan"), 1)
        if not jobs:
            return events + self._events.failed(_gone())
        (job,) = jobs
        chunks = JobChunk.objects.filter(job=job, number__gte=self._next_chunk).order_by("number")
        try:
            background = [event for chunk in chunks for event in orjson.loads(chunk.events)]
        except (TypeError, ValueError):
            logger.warning("the stored events of the job %s are damaged: delete the response", job.pk)
            return events + self._events.failed(GenerationFailed("The stored events of this response are damaged."))
        self._next_chunk += len(chunks)
        if not self._is_started and (background or job.state not in (JobState.QUEUED, JobState.CANCELLED)):
            self._is_started = True
            events += self._events.started()
        if background and self._format is None:
            self._format = self._formatter()
            if self._format is None:
                return events + self._events.failed(_gone())
        for event in background:
            events += self._take(event)
        return events + self._end(job)

    def _formatter(self) -> OutputFormatter | None:
        """Return the format of the events, and make their builder; None: the job was deleted, or is damaged."""
        jobs = readable_rows(GenerationJob.objects.filter(pk=self.row.job_id or 0).defer("result"), 1)
        if not jobs:
            return None
        (job,) = jobs
        plan = GenerationPlan.from_dict(orjson.loads(job.plan))
        self._builder = OutputBuilder(plan, keep_text=False)
        created = int(job.created_at.timestamp())
        return output_formatter(plan, self._builder, request_id="", created=created, model=job.model)

    def _take(self, event: GenerationEvent) -> list[Event]:
        assert self._builder is not None and self._format is not None
        self._builder.add(0, event)
        return [
            made
            for chunk in self._format.chunks(0, event)
            for piece in pieces(chunk)
            for made in self._events.take(piece)
        ]

    def _end(self, job: GenerationJob) -> list[Event]:
        if job.state == JobState.SUCCEEDED and self._builder is not None and job.finished_at is not None:
            return self._events.finished(usage=self._builder.usage(), now=int(job.finished_at.timestamp()))
        if job.state == JobState.CANCELLED:
            return self._events.cancelled()
        if job.state in (JobState.FAILED, JobState.SUCCEEDED):
            error = job_error(job) or GenerationFailed("The response failed for an unknown reason.")
            return self._events.failed(translate_error(error, CHAT_NAMES))
        return []


def _gone() -> GenerationFailed:
    return GenerationFailed("The job of this response was deleted, or its stored row is damaged.")


def response_body(row: StoredResponse, background: BackgroundResponse | None = None) -> dict[str, Any]:
    """Return the current response object; with ``background``, read from the events behind its last read."""
    body: dict[str, Any] = orjson.loads(row.body)
    if row.job_id is None or body["status"] not in OPEN_STATES:
        return body
    background = background or BackgroundResponse(row)
    background.read()
    if background.is_over:
        response_finish(row, background.response)
    return background.response


def response_cancel(*, response_id: str, principal: Principal) -> StoredResponse:
    """Cancel a background response; a finished response is unchanged.

    Raises:
        NotFound: There is no such response, or it belongs to another tenant.
        InvalidRequest: The response doesn't run in the background.
    """
    row = response_get(response_id=response_id, principal=principal)
    if not orjson.loads(row.body)["background"]:
        raise InvalidRequest(
            "Only responses with background: true can be cancelled; close the connection of others.",
            param="response_id",
        )
    job = row.job
    if job is not None and not job.is_finished:
        job_cancel(job_id=job.job_id, principal=principal)
    return row
