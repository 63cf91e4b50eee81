"""Pages of schedules: the list with the form of a new one, and one with its runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.http import Http404
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone

from inference.access.accounts import principal_of_staff
from inference.errors import BlazrError, NotFound
from inference.files.services import files_of
from inference.models import Batch, RunOutcome, Schedule, ScheduleAction, ScheduleRun
from inference.pages.callers import Caller, caller_of, callers_of
from inference.pages.jobs import BATCHES
from inference.pages.schedule_form import (
    form_context,
    form_of_query,
    form_of_row,
    form_sent,
    preview_context,
    values_of,
)
from inference.schedules.cron import zone_of
from inference.schedules.objects import words_of
from inference.schedules.runs import schedule_run_now
from inference.schedules.services import (
    last_runs,
    schedule_change,
    schedule_create,
    schedule_delete,
    schedule_get,
    schedule_list,
    schedule_runs,
    schedule_take_over,
)
from models_registry.views import StaffAction, StaffPage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from django.http import HttpRequest, HttpResponse

    from inference.values.principal import Principal

_MARKS = {
    RunOutcome.STARTING: "running",
    RunOutcome.STARTED: "succeeded",
    RunOutcome.SKIPPED: "queued",
    RunOutcome.MISSED: "failed",
    RunOutcome.REFUSED: "failed",
}


class SchedulesPage(StaffPage):
    """All schedules that the account may see, and the form of a new one."""

    template_name = "registry/schedules.html"
    section = "jobs"
    permission_required = BATCHES

    def page_context(self, **kwargs: Any) -> dict[str, Any]:
        """Return the schedules, and the fields of a new one that the address names."""
        query, principal = self.request.GET, principal_of_staff(self.request.user)
        is_begun = any(name in query for name in ("batch", "file", "model"))
        return {
            **list_context(principal),
            **form_context(form_of_query(query, principal), principal),
            "is_open": is_begun,
        }


class SchedulePage(StaffPage):
    """One schedule."""

    template_name = "registry/schedule.html"
    section = "jobs"
    permission_required = BATCHES

    def page_context(self, **kwargs: Any) -> dict[str, Any]:
        """Return the schedule with its last runs and its form."""
        principal = principal_of_staff(self.request.user)
        row = schedule_get(schedule_id=kwargs["schedule_id"], principal=principal)
        return {**schedule_context(row, principal), **form_context(form_of_row(row), principal)}


class SchedulePreview(StaffPage):
    """The next times of an expression, for the form while it is filled in."""

    template_name = "registry/_schedule_preview.html"
    permission_required = BATCHES

    def page_context(self, **kwargs: Any) -> dict[str, Any]:
        """Return the times, or why there are none."""
        query = self.request.GET
        return preview_context(query.get("cron", ""), query.get("time_zone", ""))


class ScheduleCreate(StaffAction):
    """Make a schedule; a form with a mistake is shown again."""

    section = "jobs"
    permission_required = BATCHES

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        """Create what the form describes."""
        form, principal = form_sent(request.POST), principal_of_staff(request.user)
        try:
            row = schedule_create(values=values_of(form), principal=principal)
        except BlazrError as error:
            context = {**list_context(principal), **form_context(form, principal, error=error.message)}
            context |= {"section": self.section, "is_open": True}
            return render(request, "registry/schedules.html", context, status=error.http_status)
        return redirect("schedule", row.schedule_id)


class ScheduleChange(StaffAction):
    """Change a schedule, or take over one whose owner is none any more; a form with a mistake is shown again."""

    section = "jobs"
    permission_required = BATCHES

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        """Change what differs from the schedule as it is."""
        if "take_over" in request.POST:
            return super().post(request, **kwargs)
        form, principal = form_sent(request.POST), principal_of_staff(request.user)
        schedule_id = kwargs["schedule_id"]
        try:
            row = schedule_get(schedule_id=schedule_id, principal=principal)
        except NotFound as error:
            raise Http404(error.message) from None
        try:
            schedule_change(schedule_id=schedule_id, values=values_of(form, row), principal=principal)
        except BlazrError as error:
            context = {**schedule_context(row, principal), **form_context(form, principal, error=error.message)}
            context |= {"section": self.section, "is_open": True}
            return render(request, "registry/schedule.html", context, status=error.http_status)
        return redirect("schedule", schedule_id)

    def act(self, **kwargs: Any) -> str:
        """Take the schedule over; returns its address."""
        schedule_id = kwargs["schedule_id"]
        schedule_take_over(schedule_id=schedule_id, principal=principal_of_staff(self.request.user))
        return reverse("schedule", args=[schedule_id])


class _ScheduleStep(StaffAction):
    section = "jobs"
    permission_required = BATCHES
    changes: ClassVar[dict[str, Any]] = {}

    def act(self, **kwargs: Any) -> str:
        """Take the step; returns the page that it was asked for on."""
        schedule_id = kwargs["schedule_id"]
        self.take(schedule_id, principal_of_staff(self.request.user))
        is_listed = self.request.POST.get("from") == "list"
        return reverse("schedules") if is_listed else reverse("schedule", args=[schedule_id])

    def take(self, schedule_id: str, principal: Principal) -> None:
        """Take the step."""
        schedule_change(schedule_id=schedule_id, values=self.changes, principal=principal)


class SchedulePause(_ScheduleStep):
    """Pause a schedule."""

    changes: ClassVar[dict[str, Any]] = {"paused": True}


class ScheduleResume(_ScheduleStep):
    """Let a schedule run again."""

    changes: ClassVar[dict[str, Any]] = {"paused": False}


class ScheduleRunNow(_ScheduleStep):
    """Run a schedule now."""

    def take(self, schedule_id: str, principal: Principal) -> None:
        """Run it as its owner."""
        schedule_run_now(schedule_id=schedule_id, principal=principal)


class ScheduleDelete(StaffAction):
    """Delete a schedule."""

    section = "jobs"
    permission_required = BATCHES

    def act(self, **kwargs: Any) -> str:
        """Delete it; returns the address of the list."""
        schedule_delete(schedule_id=kwargs["schedule_id"], principal=principal_of_staff(self.request.user))
        return reverse("schedules")


def list_context(principal: Principal) -> dict[str, Any]:
    """Return the schedules with what the list says of them."""
    rows = schedule_list(principal=principal)
    last = {key: runs[:1] for key, runs in last_runs(rows).items()}
    batches = _batches_of([run for runs in last.values() for run in runs])
    owners = callers_of(row.tenant for row in rows)
    return {
        "schedules": [
            {
                **_row_words(row, owners[row.tenant]),
                "run": next(iter(_run_words(last[row.pk], row, batches)), None),
            }
            for row in rows
        ],
        "sees_all": principal.sees_everything,
    }


def schedule_context(row: Schedule, principal: Principal) -> dict[str, Any]:
    """Return a schedule with its last runs."""
    runs = schedule_runs(row)
    file = files_of(principal).filter(file_id=row.input_file_id).first() if row.input_file_id else None
    return {
        "schedule": _row_words(row, caller_of(row.tenant)),
        "runs": _run_words(runs, row, _batches_of(runs)),
        "file": file,
        "saved": form_of_row(row),
    }


def _row_words(row: Schedule, owner: Caller) -> dict[str, Any]:
    is_batch = row.action == ScheduleAction.BATCH
    what = f"{row.get_action_display()}" if is_batch else f"{row.get_action_display().split(' ')[0]} {row.model}"
    return {
        "row": row,
        "title": row.name or what,
        "what": what,
        "words": words_of(row) or f"{row.cron} {row.time_zone}",
        "next": clock_words(row.next_run_at, row) if row.is_enabled else "",
        "owner": owner,
    }


def _batches_of(runs: Sequence[ScheduleRun]) -> dict[str, Batch]:
    ids = [run.batch_id for run in runs if run.batch_id]
    return {batch.batch_id: batch for batch in Batch.objects.filter(batch_id__in=ids)} if ids else {}


def _run_words(runs: Sequence[ScheduleRun], row: Schedule, batches: Mapping[str, Batch]) -> list[dict[str, Any]]:
    return [
        {
            "row": run,
            "at": clock_words(run.due_at, row),
            "mark": _MARKS[RunOutcome(run.outcome)],
            "batch": batches.get(run.batch_id),
            "words": _outcome_words(run, row),
        }
        for run in runs
    ]


def _outcome_words(run: ScheduleRun, row: Schedule) -> str:
    if run.message:
        return run.message
    if run.outcome != RunOutcome.STARTED or run.batch_id:
        return ""
    if row.action == ScheduleAction.LOAD:
        return "A worker was asked to load it."
    return "The workers that hold it were asked to unload it."


def clock_words(moment: datetime, row: Schedule) -> str:
    """Return a moment by the clock of a schedule's time zone: "Mon 30 Nov, 02:00"."""
    try:
        local = moment.astimezone(zone_of(row.time_zone))
    except BlazrError:
        local = moment
    year = "" if local.year == timezone.now().year else f" {local.year}"
    return f"{local:%a} {local.day} {local:%b}{year}, {local:%H:%M}"
