"""Pages of queued generations: the list with the batches, and one job with its prompt, its output or its error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from django.conf import settings
from django.http import QueryDict
from django.urls import reverse

from inference.access.accounts import principal_of_staff
from inference.batches.progress import batches_progress
from inference.batches.services import batch_list, batch_object, input_file_names
from inference.batches.validation import MAX_LINES
from inference.errors import Conflict
from inference.jobs.selectors import job_counts, job_error, job_get, job_list
from inference.jobs.services import JobRequest, jobs_submit
from inference.models import Batch, GenerationJob, JobState
from inference.values.plan import GenerationPlan
from inference.values.principal import Principal
from models_registry import selectors
from models_registry.views import StaffAction, StaffPage

BATCHES = "inference.scope_files"
"""The permission of jobs and batches."""
NUM_JOBS = 50
NUM_BATCHES = 20
MAX_SEARCH_CHARS = 100
MAX_SHOWN_CHARS = 200_000
_ENDED = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
_BATCH_MARKS = {
    "validating": "queued",
    "in_progress": "running",
    "finalizing": "running",
    "cancelling": "running",
    "completed": "succeeded",
    "expired": "failed",
}


class _JobsBase(StaffPage):
    section = "jobs"
    permission_required = BATCHES


class JobsPage(_JobsBase):
    """Jobs, newest first, and batches."""

    template_name = "registry/jobs.html"

    def page_context(self, **kwargs: Any) -> dict[str, Any]:
        """Return the jobs that match the filters of the address."""
        query, principal = self.request.GET, principal_of_staff(self.request.user)
        state, label, after = query.get("state", ""), query.get("label", "")[:100].strip(), query.get("after", "")
        before = job_get(job_id=after, principal=principal).pk if after else None
        rows = job_list(
            principal=principal, state=state or None, batch_label=label or None, before=before, limit=NUM_JOBS + 1
        )
        counts = job_counts(principal=principal, batch_label=label or None)
        shown = rows[:NUM_JOBS]
        return {
            **batches_context(query, principal),
            "models": list(selectors.checkpoint_list().values_list("served_model_name", flat=True)),
            "max_file_bytes": settings.BLAZR_MAX_FILE_BYTES,
            "max_lines": MAX_LINES,
            "states": JobState.values,
            "state": state,
            "label": label,
            "after": after,
            "jobs": [{"row": row, "is_open": row.state not in _ENDED, "took_s": took_s(row)} for row in shown],
            "newest": page_address(query, "after", None),
            "older": page_address(query, "after", str(shown[-1].job_id)) if len(rows) > NUM_JOBS else "",
            "counts": ", ".join(f"{counts[name]} {name}" for name in JobState.values if counts[name]),
        }


def batches_context(query: QueryDict, principal: Principal) -> dict[str, Any]:
    """Return the batches that an address asks for: ``batch`` is searched for, ``batch_after`` the last one before."""
    search, after = query.get("batch", "")[:MAX_SEARCH_CHARS].strip(), query.get("batch_after") or None
    rows = batch_list(principal=principal, after=after, limit=NUM_BATCHES + 1, search=search)
    shown = rows[:NUM_BATCHES]
    return {
        "batch_search": search,
        "batch_after": after,
        "batches": shown_batches(shown),
        "newest_batches": page_address(query, "batch_after", None) if after else "",
        "older_batches": page_address(query, "batch_after", shown[-1].batch_id) if len(rows) > NUM_BATCHES else "",
    }


def shown_batches(rows: Sequence[Batch]) -> list[dict[str, Any]]:
    """Return what lists show of batches, with the names of their files."""
    progress, names = batches_progress(rows), input_file_names(rows)
    found = [batch_words(batch_object(row, progress[row.pk])) for row in rows]
    return [{**batch, "file_name": names.get(batch["input_file_id"], "")} for batch in found]


class JobPage(_JobsBase):
    """One job."""

    template_name = "registry/job.html"

    def page_context(self, **kwargs: Any) -> dict[str, Any]:
        """Return the job with its request and what came of it."""
        row = job_get(job_id=kwargs["job_id"], principal=principal_of_staff(self.request.user), with_plan=True)
        plan: dict[str, Any] = orjson.loads(row.plan)
        error = job_error(row)
        result = orjson.loads(row.result) if row.state == JobState.SUCCEEDED and row.result else None
        return {
            "job": row,
            "is_open": row.state not in _ENDED,
            "took_s": took_s(row),
            "prompts": [prompt_text(prompt) for prompt in plan["prompts"]],
            "params": {name: value for name, value in plan["params"].items() if value not in (None, [], {}, "")},
            "error": None if error is None else error.to_openai()["error"],
            "outputs": [output_text(choice) for choice in (result or {}).get("choices", ())],
            "result_json": "" if result is None else orjson.dumps(result, option=orjson.OPT_INDENT_2).decode(),
        }


class JobRetry(StaffAction):
    """Queue the same request again, as a new job with the same label."""

    permission_required = BATCHES

    def act(self, **kwargs: Any) -> str:
        """Submit the job's plan; returns the address of the new job."""
        principal = principal_of_staff(self.request.user)
        row = job_get(job_id=kwargs["job_id"], principal=principal, with_plan=True)
        if row.state not in _ENDED:
            raise Conflict(f"the job is {row.state}; only a finished one can be queued again.", param="job_id")
        request = JobRequest(GenerationPlan.from_dict(orjson.loads(row.plan)))
        (new,) = jobs_submit(requests=[request], principal=principal, batch_label=row.batch_label)
        return reverse("job", args=[new.job_id])


def took_s(row: GenerationJob) -> float | None:
    """Return the seconds that a finished job ran."""
    if row.started_at is None or row.finished_at is None:
        return None
    return (row.finished_at - row.started_at).total_seconds()


def page_address(query: QueryDict, name: str, after: str | None) -> str:
    """Return the address of the page behind ``after``, with the same filters; None: of the first page.

    Args:
        name: The address's member for ``after``.
    """
    changed = query.copy()
    changed.pop(name, None)
    if after is not None:
        changed[name] = after
    return f"?{changed.urlencode()}"


def prompt_text(prompt: dict[str, Any]) -> str:
    """Return a prompt of a plan as text: itself, its token ids, or its messages one below the other."""
    if "text" in prompt:
        text = prompt["text"]
    elif "messages" in prompt:
        text = "\n\n".join(map(_message_text, prompt["messages"]))
    else:
        text = ", ".join(map(str, prompt.get("token_ids", ())))
    return str(text)[:MAX_SHOWN_CHARS]


def _message_text(item: dict[str, Any]) -> str:
    """Return an item of a conversation below its role; calls of tools are shown as they are."""
    rest = {name: value for name, value in item.items() if name not in ("role", "content")}
    content = content_text(item["content"]) if item.get("content") is not None else ""
    if rest and rest != {"type": "message"}:
        content = f"{content}\n{orjson.dumps(rest, option=orjson.OPT_INDENT_2).decode()}".strip()
    return f"[{item.get('role') or item.get('type', '')}]\n{content}"


def content_text(content: Any) -> str:
    """Return the text of a message's content."""
    return content if isinstance(content, str) else orjson.dumps(content, option=orjson.OPT_INDENT_2).decode()


def output_text(choice: dict[str, Any]) -> dict[str, Any]:
    """Return the text of a choice, and what ended it."""
    message = choice.get("message") or {}
    text = choice.get("text") if not message else message.get("content")
    return {"text": text or "", "ended_by": choice.get("finish_reason"), "tool_calls": message.get("tool_calls")}


def batch_words(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch's object with what the pages say of it."""
    counts, progress = batch["request_counts"], batch["progress"]
    errors = batch["errors"]["data"] if batch["errors"] else []
    return {
        **batch,
        "mark": "queued" if progress["is_paused"] else _BATCH_MARKS.get(batch["status"], batch["status"]),
        "words": "paused" if progress["is_paused"] else batch["status"].replace("_", " "),
        "short_id": batch["id"][6:14],
        "kind": batch["endpoint"].removeprefix("/v1/"),
        "num_done": counts["completed"] + counts["failed"],
        "is_open": batch["status"] in ("validating", "in_progress"),
        "has_ended": batch["status"] in ("completed", "failed", "expired", "cancelled"),
        "first_error": errors[0] if errors else None,
        "progress": progress,
    }
