"""Route URLs of the pages.

Names: dashboard, jobs, job and job-retry (job_id), playground, playground-chat (chat_id).
"""

from __future__ import annotations

from django.urls import path

from inference.pages import jobs, overview, playground

urlpatterns = [
    path("", overview.OverviewPage.as_view(), name="dashboard"),
    path("jobs/", jobs.JobsPage.as_view(), name="jobs"),
    path("jobs/<uuid:job_id>/", jobs.JobPage.as_view(), name="job"),
    path("jobs/<uuid:job_id>/retry/", jobs.JobRetry.as_view(), name="job-retry"),
    path("playground/", playground.PlaygroundPage.as_view(), name="playground"),
    path("playground/chats/<uuid:chat_id>", playground.ChatView.as_view(), name="playground-chat"),
]
