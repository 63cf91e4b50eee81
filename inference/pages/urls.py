"""Route URLs of the pages.

Names: dashboard, jobs, job and job-retry (job_id), playground, playground-chat (chat_id), keys, key-create,
key-revoke (prefix), requests, request (request_id), model-tokenizer (checkpoint_id).
"""

from __future__ import annotations

from django.urls import path

from inference.pages import chats, jobs, keys, overview, playground, requests, tokenizer

urlpatterns = [
    path("", overview.OverviewPage.as_view(), name="dashboard"),
    path("jobs/", jobs.JobsPage.as_view(), name="jobs"),
    path("jobs/<uuid:job_id>/", jobs.JobPage.as_view(), name="job"),
    path("jobs/<uuid:job_id>/retry/", jobs.JobRetry.as_view(), name="job-retry"),
    path("playground/", playground.PlaygroundPage.as_view(), name="playground"),
    path("registry/chats/<uuid:chat_id>", chats.ChatView.as_view(), name="playground-chat"),
    path("keys/", keys.KeysPage.as_view(), name="keys"),
    path("keys/new/", keys.KeyCreate.as_view(), name="key-create"),
    path("keys/<slug:prefix>/revoke/", keys.KeyRevoke.as_view(), name="key-revoke"),
    path("requests/", requests.RequestsPage.as_view(), name="requests"),
    path("models/<uuid:checkpoint_id>/tokenizer/", tokenizer.TokenizerPage.as_view(), name="model-tokenizer"),
    path("requests/<str:request_id>/", requests.RequestPage.as_view(), name="request"),
]
