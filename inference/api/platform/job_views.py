"""Submit, list, retrieve and cancel queued generations over HTTP, and fetch their results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from drf_spectacular.utils import OpenApiParameter, PolymorphicProxySerializer

from inference.api.base import ApiView, json_body, json_response
from inference.api.idempotent import HEADER
from inference.api.platform.job_serializers import JobItemSerializer, JobSubmissionSerializer
from inference.api.schemas import (
    ChatCompletionSerializer,
    CompletionSerializer,
    JobListSerializer,
    JobSerializer,
    JobSubmittedSerializer,
    documented,
)
from inference.dialects.openai.requests import plan_from_body
from inference.errors import InvalidRequest
from inference.jobs.selectors import job_counts, job_error, job_get, job_list, job_result
from inference.jobs.services import JobRequest, job_cancel, jobs_submit
from inference.models import GenerationJob
from inference.values.request_key import RequestKey

MAX_PAGE = 500


def job_object(row: GenerationJob) -> dict[str, Any]:
    """Return the API's object of a job, without the prompt and the output."""
    error = job_error(row)
    return {
        "id": str(row.job_id),
        "object": "job",
        "state": row.state,
        "endpoint": row.endpoint,
        "model": row.model,
        "batch_label": row.batch_label,
        "idempotency_key": row.idempotency_key,
        "priority": row.priority,
        "attempts": row.attempts,
        "cancel_requested": row.cancel_requested,
        "prompt_tokens": row.prompt_tokens,
        "completion_tokens": row.completion_tokens,
        "error": None if error is None else error.to_openai()["error"],
        "created_at": row.created_at,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
    }


class JobsView(ApiView):
    """/api/jobs."""

    session_allowed = True
    rows_keep_key = True

    @documented(
        operation_id="jobs_submit",
        summary="Queue generations",
        description=(
            "One job ({endpoint, body, idempotency_key}) or several under jobs, stored in one transaction: once "
            "answered, none is lost. Jobs run when interactive requests leave room."
        ),
        request=JobSubmissionSerializer,
        responses={202: JobSubmittedSerializer},
        errors=(400, 401, 403, 404, 409, 413, 415, 503),
        tags=["jobs"],
    )
    async def post(self, request: HttpRequest) -> HttpResponseBase:
        """Store one or several jobs."""
        values = await json_body(request, JobSubmissionSerializer.shared().parse)

        # All work is in threads, because checking 50,000 bodies takes seconds.
        def store() -> dict[str, Any]:
            requests = with_keys(job_requests(values), self.request_key)
            rows = jobs_submit(requests=requests, principal=self.principal, batch_label=values.get("batch_label", ""))
            return {"object": "list", "data": [job_object(row) for row in rows]}

        return json_response(await sync_to_async(store)(), status=202)

    @documented(
        operation_id="jobs_list",
        summary="List jobs, newest first",
        parameters=[
            OpenApiParameter("state", str, enum=["queued", "running", "succeeded", "failed", "cancelled"]),
            OpenApiParameter("batch_label", str),
            OpenApiParameter("after", str, description="Continue after the job with this id (the last one seen)."),
            OpenApiParameter("limit", int, description=f"1 to {MAX_PAGE}, default 50."),
        ],
        responses={200: JobListSerializer},
        errors=(400, 401, 404, 503),
        tags=["jobs"],
    )
    async def get(self, request: HttpRequest) -> HttpResponseBase:
        """Return a page of the caller's jobs."""
        for name in request.GET:
            if name not in ("state", "batch_label", "after", "limit"):
                raise InvalidRequest(f"{name[:80]!r} is not a parameter of this endpoint; remove it.", param=name[:80])
        limit = _page_size(request.GET.get("limit", "50"))
        label, after = request.GET.get("batch_label"), request.GET.get("after")

        def read() -> dict[str, Any]:
            before = None if after is None else job_get(job_id=after, principal=self.principal).pk
            rows = job_list(
                principal=self.principal,
                state=request.GET.get("state"),
                batch_label=label,
                before=before,
                limit=limit + 1,
            )
            return {
                "object": "list",
                "data": [job_object(row) for row in rows[:limit]],
                "has_more": len(rows) > limit,
                "counts": job_counts(principal=self.principal, batch_label=label),
            }

        return json_response(await sync_to_async(read)())


class JobView(ApiView):
    """/api/jobs/{id}."""

    session_allowed = True

    @documented(
        operation_id="jobs_retrieve",
        summary="One job",
        responses={200: JobSerializer},
        errors=(401, 404, 503),
        tags=["jobs"],
    )
    async def get(self, request: HttpRequest, job_id: str) -> HttpResponseBase:
        """Return the state and progress of a job."""
        row = await sync_to_async(job_get)(job_id=job_id, principal=self.principal)
        return json_response(job_object(row))


class JobCancelView(ApiView):
    """/api/jobs/{id}/cancel."""

    admits_itself = True
    session_allowed = True

    @documented(
        operation_id="jobs_cancel",
        summary="Stop a job",
        description="At once if it waits, within seconds if it runs; a finished job stays as it is.",
        responses={200: JobSerializer},
        errors=(401, 403, 404, 503),
        tags=["jobs"],
    )
    async def post(self, request: HttpRequest, job_id: str) -> HttpResponseBase:
        """Cancel a job."""
        row = await sync_to_async(job_cancel)(job_id=job_id, principal=self.principal)
        return json_response(job_object(row))


class JobResultView(ApiView):
    """/api/jobs/{id}/result."""

    session_allowed = True

    @documented(
        operation_id="jobs_result",
        summary="The output of a job",
        description="What the job's endpoint would have answered; 409 until the job has succeeded, "
        "the job's own error if it failed.",
        responses={
            200: PolymorphicProxySerializer(
                "JobResult", [CompletionSerializer, ChatCompletionSerializer], resource_type_field_name=None
            )
        },
        errors=(400, 401, 404, 409, 422, 429, 500, 503),
        tags=["jobs"],
    )
    async def get(self, request: HttpRequest, job_id: str) -> HttpResponseBase:
        """Return the stored output of a job."""
        row = await sync_to_async(job_get)(job_id=job_id, principal=self.principal)
        return json_response(job_result(row))


def job_requests(values: dict[str, Any]) -> list[JobRequest]:
    """Return the jobs of a validated submission: one job in the body itself, or several under ``jobs``.

    Raises:
        InvalidRequest: The body has both forms or neither, or an item is wrong; the message names the item.
    """
    own = {name: values[name] for name in ("endpoint", "body", "idempotency_key") if name in values}
    items = values.get("jobs")
    if items is None:
        return [_job_request(own)]
    if own:
        name = next(iter(own))
        raise InvalidRequest(f"{name} doesn't go with jobs; put it into each of them.", param=name)
    requests: list[JobRequest] = []
    for number, item in enumerate(items):
        try:
            requests.append(_job_request(item))
        except InvalidRequest as error:
            raise type(error)(f"job {number}: {error.message}", param=f"jobs.{number}.{error.param or ''}") from None
    return requests


def with_keys(requests: list[JobRequest], request_key: RequestKey | None) -> list[JobRequest]:
    """Give jobs without a key of their own one of the submission's key."""
    if request_key is None:
        return requests
    return [
        job
        if job.idempotency_key is not None
        else replace(job, idempotency_key=f"{HEADER}-{request_key.name}-{number}", request_key=request_key)
        for number, job in enumerate(requests)
    ]


def _job_request(item: Any) -> JobRequest:
    values = JobItemSerializer.shared().parse(item)
    return JobRequest(plan_from_body(values["endpoint"], values["body"]), values.get("idempotency_key"))


def _page_size(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= MAX_PAGE or len(text) > 9:
        raise InvalidRequest(f"limit is {text[:40]!r}, it must be from 1 to {MAX_PAGE}.", param="limit")
    return int(text)
