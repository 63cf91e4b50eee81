"""Route URLs of the pages; names: dashboard, jobs, job and job-retry (job_id)."""

from __future__ import annotations

from django.urls import path

from inference.pages import jobs, overview

urlpatterns = [
    path("", overview.OverviewPage.as_view(), name="dashboard"),
    path("jobs/", jobs.JobsPage.as_view(), name="jobs"),
    path("jobs/<uuid:job_id>/", jobs.JobPage.as_view(), name="job"),
    path("jobs/<uuid:job_id>/retry/", jobs.JobRetry.as_view(), name="job-retry"),
]
