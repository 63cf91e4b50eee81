"""Route URLs of the pages; an id in an address is one of the object whose page it is.

Names of the parts that aren't pages themselves end in what they do: job-retry, batch-reorder, schedule-pause.
"""

from __future__ import annotations

from django.urls import include, path

from inference.pages import (
    batches,
    chats,
    jobs,
    keys,
    model_usage,
    overview,
    playground,
    replays,
    requests,
    schedules,
    tokenizer,
)

urlpatterns = [
    path("", overview.OverviewPage.as_view(), name="dashboard"),
    path("jobs/", jobs.JobsPage.as_view(), name="jobs"),
    path("jobs/<uuid:job_id>/", jobs.JobPage.as_view(), name="job"),
    path("jobs/<uuid:job_id>/retry/", jobs.JobRetry.as_view(), name="job-retry"),
    path("batches/new/", batches.BatchQueue.as_view(), name="batch-queue"),
    path("batches/<str:batch_id>/", batches.BatchPage.as_view(), name="batch"),
    path("batches/<str:batch_id>/priority/", batches.BatchPriority.as_view(), name="batch-reorder"),
    path("batches/<str:batch_id>/retry/", batches.BatchRetry.as_view(), name="batch-retry"),
    path("schedules/", schedules.SchedulesPage.as_view(), name="schedules"),
    path("schedules/new/", schedules.ScheduleCreate.as_view(), name="schedule-create"),
    path("schedules/preview/", schedules.SchedulePreview.as_view(), name="schedule-preview"),
    path("schedules/<str:schedule_id>/", schedules.SchedulePage.as_view(), name="schedule"),
    path("schedules/<str:schedule_id>/change/", schedules.ScheduleChange.as_view(), name="schedule-change"),
    path("schedules/<str:schedule_id>/pause/", schedules.SchedulePause.as_view(), name="schedule-pause"),
    path("schedules/<str:schedule_id>/resume/", schedules.ScheduleResume.as_view(), name="schedule-resume"),
    path("schedules/<str:schedule_id>/run/", schedules.ScheduleRunNow.as_view(), name="schedule-run"),
    path("schedules/<str:schedule_id>/delete/", schedules.ScheduleDelete.as_view(), name="schedule-delete"),
    path("playground/", playground.PlaygroundPage.as_view(), name="playground"),
    path("registry/chats/<uuid:chat_id>", chats.ChatView.as_view(), name="playground-chat"),
    path("keys/", keys.KeysPage.as_view(), name="keys"),
    path("keys/new/", keys.KeyCreate.as_view(), name="key-create"),
    path("keys/<slug:prefix>/revoke/", keys.KeyRevoke.as_view(), name="key-revoke"),
    path("settings/accounts/", include("inference.pages.account_urls")),
    path("requests/", requests.RequestsPage.as_view(), name="requests"),
    path("models/<uuid:checkpoint_id>/tokenizer/", tokenizer.TokenizerPage.as_view(), name="model-tokenizer"),
    path("models/<uuid:checkpoint_id>/usage/", model_usage.UsagePage.as_view(), name="model-usage"),
    path("requests/<str:request_id>/", requests.RequestPage.as_view(), name="request"),
    path("requests/<str:request_id>/cancel/", requests.RequestCancel.as_view(), name="request-cancel"),
    path("requests/<str:request_id>/replay/", replays.ReplayRequest.as_view(), name="request-replay"),
    path("requests/<str:request_id>/replays/<uuid:job_id>/", replays.ReplayPage.as_view(), name="replay"),
    path("replays/new/", replays.ReplayCreate.as_view(), name="replay-create"),
    path("replays/<str:batch_id>/", replays.ReplaysPage.as_view(), name="replays"),
    path("replays/<str:batch_id>/promote/", replays.ReplayPromote.as_view(), name="replay-promote"),
    path("replays/<str:batch_id>/rollback/", replays.ReplayRollback.as_view(), name="replay-rollback"),
    path("replays/<str:batch_id>/<str:request_id>/", replays.ReplayedPage.as_view(), name="replayed"),
]
