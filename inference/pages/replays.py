"""Pages of replays: one request beside its replay, those of a day on a candidate, and the alias that follows."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from django.urls import reverse

from inference.access.accounts import principal_of_staff
from inference.batches.progress import batch_progress
from inference.batches.replays import (
    Replay,
    ReplayedRequest,
    replay_batch_create,
    replay_get,
    replay_submit,
    replayed_requests,
    texts_of_log,
    texts_of_response,
)
from inference.errors import BlazrError, Conflict, NotFound
from inference.jobs.selectors import job_error, job_get, job_result
from inference.models import TERMINAL_BATCH_STATES, GenerationJob, JobState, UsageRecord
from inference.models.readable_rows import readable_rows
from inference.pages.replay_targets import PROMOTE, REPLAY, VIEW
from inference.pages.requests import logged_request
from inference.pages.text_differences import Piece, compare
from inference.records.job_usage import job_usage_id
from inference.records.request_log import is_cut
from inference.serving.promotion import revision_means, served_promote
from inference.serving.served_models import served_model_read
from models_registry.aliases import alias_get, alias_names, alias_rollback, aliases_of
from models_registry.models import AliasRevision, ModelAlias
from models_registry.page_numbers import number_of
from models_registry.views import StaffAction, StaffPage

if TYPE_CHECKING:
    from django.http import HttpRequest

TABLE_WORDS = 300
"""Words of each text that the table of a batch compares."""
MAX_NAME = 256
_MARKS = {"completed": "succeeded", "failed": "failed", "expired": "failed", "cancelled": "cancelled"}


# --- one request ---------------------------------------------------------------------------------


class ReplayRequest(StaffAction):
    """Queue a request again on another model."""

    permission_required = (VIEW, REPLAY)

    def act(self, **kwargs: Any) -> str:
        """Submit the job; returns the address of the comparison."""
        row = logged_request(kwargs["request_id"])
        model = _name(self.request, "model")
        job = replay_submit(row=row, model=model, principal=principal_of_staff(self.request.user))
        return reverse("replay", args=[row.request_id, job.job_id])


class ReplayPage(StaffPage):
    """A request beside its replay."""

    template_name = "registry/replay.html"
    section = "requests"
    permission_required = (VIEW, REPLAY)

    def page_context(self, **kwargs: Any) -> dict[str, Any]:
        """Return both texts with their differences, and both times."""
        row = logged_request(kwargs["request_id"])
        job = job_get(job_id=kwargs["job_id"], principal=principal_of_staff(self.request.user))
        error = job_error(job)
        texts = texts_of_response(job_result(job)) if job.state == JobState.SUCCEEDED else ()
        return {
            "row": row,
            "job": job,
            "model": job.model,
            "mark": job.state,
            "words": job.state,
            "is_open": not job.is_finished,
            "error": "" if error is None else error.message,
            "pairs": _pairs(row, texts) if texts else [],
            "columns": [_times_of_row(row), _times_of_job(job)],
        }


def _replay_of(request: HttpRequest, batch_id: str) -> Replay:
    return replay_get(batch_id=batch_id, principal=principal_of_staff(request.user))


def _name(request: HttpRequest, field: str) -> str:
    """Return the name of a model out of a form; no name has U+0000, which PostgreSQL doesn't take."""
    return request.POST.get(field, "").replace("\0", "").strip()[:MAX_NAME]


def compared_texts(left: Sequence[str], right: Sequence[str]) -> list[dict[str, Any]]:
    """Return the texts of two outputs side by side, choice by choice."""
    pairs = []
    for number in range(max(len(left), len(right))):
        texts = [side[number] if number < len(side) else "" for side in (left, right)]
        found = compare(*texts)
        pairs.append({"left": found.left, "right": found.right, "percent": found.percent, "is_same": found.is_same})
    return pairs


def _pairs(row: UsageRecord, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return the texts of a request and of its replay side by side; an output that the log cut isn't compared."""
    if is_cut(row.output):
        sides = (row.output, "\n".join(texts))
        left, right = ((Piece("unread", text),) if text else () for text in sides)
        return [{"left": left, "right": right, "is_cut": True}]
    return compared_texts(texts_of_log(row), texts)


def _times_of_row(row: UsageRecord) -> dict[str, Any]:
    times = _times(row.model, "as it was answered", row.completion_tokens, row.engine_s)
    return {**times, "queue_s": row.queue_s}


def _times(title: str, what: str, tokens: int, engine_s: float) -> dict[str, Any]:
    rate = tokens / engine_s if engine_s else None
    return {"title": title, "what": what, "tokens": tokens, "engine_s": engine_s, "rate": rate}


def _times_of_job(job: GenerationJob) -> dict[str, Any]:
    rows = readable_rows(UsageRecord.objects.filter(request_id=job_usage_id(job.job_id)), 1)
    if not rows:
        return {"title": job.model, "what": "replayed", "tokens": job.completion_tokens}
    return {**_times_of_row(rows[0]), "title": job.model, "what": "replayed"}


# --- those of a day --------------------------------------------------------------------------------


class ReplayCreate(StaffAction):
    """Replay a model's requests of the last day on a candidate, as a batch."""

    permission_required = (VIEW, REPLAY)

    def act(self, **kwargs: Any) -> str:
        """Make the batch; returns the address of its comparison."""
        source, candidate = (_name(self.request, field) for field in ("source", "candidate"))
        candidate = served_model_read(candidate).name  # an alias may mean another model before the batch has run
        found = replay_batch_create(source=source, candidate=candidate, principal=principal_of_staff(self.request.user))
        return reverse("replays", args=[found.batch.batch_id])


class ReplaysPage(StaffPage):
    """A batch of replayed requests: how its answers differ, and what aliases mean."""

    template_name = "registry/replays.html"
    section = "requests"
    permission_required = (VIEW, REPLAY)

    def page_context(self, **kwargs: Any) -> dict[str, Any]:
        """Return a row per request, the most different first, sums, and the aliases that can follow."""
        replay = _replay_of(self.request, kwargs["batch_id"])
        rows = [_table_row(item) for item in replayed_requests(replay)]
        rows.sort(key=lambda item: (item["is_cut"], item["percent"]))
        batch = replay.batch
        return {
            "replay": replay,
            "batch": batch,
            "mark": _MARKS.get(batch.state, "running"),
            "words": batch.get_state_display(),
            "is_open": batch.state not in TERMINAL_BATCH_STATES,
            "progress": batch_progress(batch),
            "rows": rows,
            "sums": _sums(rows),
            **(_alias_context(replay) if self.request.user.has_perm(PROMOTE) else {}),
        }


class ReplayedPage(StaffPage):
    """One request of a batch beside its replay."""

    template_name = "registry/replay.html"
    section = "requests"
    permission_required = (VIEW, REPLAY)

    def page_context(self, **kwargs: Any) -> dict[str, Any]:
        """Return both texts with their differences, and both times."""
        replay = _replay_of(self.request, kwargs["batch_id"])
        found = next(iter(replayed_requests(replay, request_id=kwargs["request_id"])), None)
        if found is None or found.row is None:
            raise NotFound("This request has no result yet, or is no longer in the log.", param="request_id")
        return {
            "row": found.row,
            "replay": replay,
            "model": replay.candidate,
            "mark": "failed" if found.error else "succeeded",
            "words": "failed" if found.error else "succeeded",
            "is_open": False,
            "error": found.error,
            "pairs": _pairs(found.row, found.texts) if not found.error else [],
            "columns": [
                _times_of_row(found.row),
                _times(replay.candidate, "replayed", found.completion_tokens, found.engine_s),
            ],
        }


class ReplayPromote(StaffAction):
    """Let an alias mean the candidate."""

    permission_required = (VIEW, REPLAY, PROMOTE)

    def act(self, **kwargs: Any) -> str:
        """Store a new revision of the alias."""
        replay = _replay_of(self.request, kwargs["batch_id"])
        served_promote(
            name=self.request.POST.get("alias", "").strip(),
            served=served_model_read(replay.candidate),
            author_name=self.request.user.get_username(),
        )
        return reverse("replays", args=[replay.batch.batch_id])


class ReplayRollback(StaffAction):
    """Let an alias that means the candidate mean what it meant before."""

    permission_required = (VIEW, REPLAY, PROMOTE)

    def act(self, **kwargs: Any) -> str:
        """Make the revision that the button names the current one, unless somebody was faster."""
        replay = _replay_of(self.request, kwargs["batch_id"])
        alias = alias_get(self.request.POST.get("alias", ""))
        if not revision_means(alias.current, served_model_read(replay.candidate)):
            raise Conflict(f"{alias.name!r} no longer means {replay.candidate!r}.", param="alias")
        alias_rollback(name=alias.name, number=number_of(self.request.POST.get("number"), 0, 1, 1 << 31))
        return reverse("replays", args=[replay.batch.batch_id])


def _table_row(item: ReplayedRequest) -> dict[str, Any]:
    """Return a request with how much of its replay is the same; 0 where nothing can be compared."""
    row = item.row
    found: dict[str, Any] = {"item": item, "row": row, "percent": 0, "is_same": False, "is_cut": False}
    if item.error or row is None:
        return found
    if is_cut(row.output):
        return {**found, "is_cut": True}
    texts = ("\n".join(texts_of_log(row)), "\n".join(item.texts))
    comparison = compare(*texts, max_words=TABLE_WORDS)
    return {**found, "percent": comparison.percent, "is_same": comparison.is_same}


def _sums(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return how many texts are the same, and the medians of the times in the engine."""
    compared = [item for item in rows if item["row"] is not None and not item["item"].error and not item["is_cut"]]
    if not compared:
        return {}
    return {
        "num": len(compared),
        "num_same": sum(item["is_same"] for item in compared),
        "num_failed": sum(bool(item["item"].error) for item in rows),
        "percent": int(mean(item["percent"] for item in compared)),  # 100 only if all are the same
        "before_s": median(item["row"].engine_s for item in compared),
        "after_s": median(item["item"].engine_s for item in compared),
        "before_tokens": median(item["row"].completion_tokens for item in compared),
        "after_tokens": median(item["item"].completion_tokens for item in compared),
    }


def _alias_context(replay: Replay) -> dict[str, Any]:
    """Return the aliases that can mean the candidate, and those that can go back from it."""
    try:
        candidate = served_model_read(replay.candidate)
    except BlazrError as error:
        return {"alias_notice": error.message}
    found = aliases_of()
    means_it = [alias for alias in found if revision_means(alias.current, candidate)]
    source = [alias.name for alias in found if _current(alias).meaning == replay.source]
    others = [name for name in alias_names() if name not in {alias.name for alias in means_it}]
    return {
        "can_promote": True,
        "promotable": [*(name for name in source if name in others), *(name for name in others if name not in source)],
        "rollbacks": [earlier for alias in means_it if (earlier := _earlier(alias)) is not None],
    }


def _current(alias: ModelAlias) -> AliasRevision:
    assert alias.current is not None  # ``aliases_of`` leaves out the others
    return alias.current


def _earlier(alias: ModelAlias) -> AliasRevision | None:
    """Return the revision before the current one; None if there is none that can be served."""
    earlier = alias.revisions.filter(number=_current(alias).number - 1).first()
    return earlier if earlier is not None and earlier.is_available else None
