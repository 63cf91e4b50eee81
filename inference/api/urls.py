"""Routes of the API, included at the root; routes of ``/api`` for other parts may follow."""

from __future__ import annotations

from django.urls import path, re_path

from inference.api.anthropic.views import CountTokensView, MessagesView
from inference.api.ollama import urls as ollama
from inference.api.openai.batch_check import BatchFileCheckOfPages
from inference.api.openai.batch_schedule_views import BatchSchedulesView, BatchScheduleView
from inference.api.openai.batch_views import (
    BatchCancelOfPages,
    BatchCancelView,
    BatchesOfPages,
    BatchesView,
    BatchPauseOfPages,
    BatchPauseView,
    BatchPriorityView,
    BatchResumeOfPages,
    BatchResumeView,
    BatchView,
)
from inference.api.openai.embeddings import EmbeddingsView
from inference.api.openai.file_views import FileContentOfPages, FileContentView, FilesView, FileView
from inference.api.openai.rerank import RerankView
from inference.api.openai.views import ChatCompletionsView, CompletionsView, ModelsView, ModelView, UnknownEndpointView
from inference.api.platform.alias_views import AliasRevisionsView, PromoteView, RollbackView
from inference.api.platform.infill import InfillView
from inference.api.platform.job_views import JobCancelView, JobResultView, JobsView, JobView
from inference.api.platform.key_views import KeysView, KeyView
from inference.api.platform.lifecycle_views import (
    ModelFitView,
    ModelLoadView,
    ModelPinView,
    ModelStatusView,
    ModelUnloadView,
    RequestCancelView,
    RequestsView,
)
from inference.api.platform.lora_views import LoadLoraView, UnloadLoraView
from inference.api.platform.probe_views import HealthView, LivezView, MetricsView, ReadyzView
from inference.api.platform.schedule_views import (
    SchedulePreviewView,
    ScheduleRunView,
    SchedulesView,
    ScheduleView,
)
from inference.api.platform.state_views import StateContentView, StatesView, StateView
from inference.api.platform.tokenize_views import ApplyTemplateView, DetokenizeView, TokenizerInfoView, TokenizeView
from inference.api.platform.usage_views import UsageView
from inference.api.responses.views import (
    InputTokensView,
    ResponseCancelView,
    ResponseInputItemsView,
    ResponsesView,
    ResponseView,
)

app_name = "api"
urlpatterns = [
    path("livez", LivezView.as_view(), name="livez"),
    path("readyz", ReadyzView.as_view(), name="readyz"),
    path("health", HealthView.as_view(), name="health"),
    path("metrics", MetricsView.as_view(), name="metrics"),
    path("tokenize", TokenizeView.as_view(), name="tokenize"),
    path("detokenize", DetokenizeView.as_view(), name="detokenize"),
    path("tokenizer_info", TokenizerInfoView.as_view(), name="tokenizer-info"),
    path("apply-template", ApplyTemplateView.as_view(), name="apply-template"),
    path("infill", InfillView.as_view(), name="infill"),
    path("v1/models", ModelsView.as_view(), name="models"),
    path("v1/models/<str:model_id>/status", ModelStatusView.as_view(), name="model-status"),
    path("v1/models/<str:model_id>/fit", ModelFitView.as_view(), name="model-fit"),
    path("v1/models/<str:model_id>/load", ModelLoadView.as_view(), name="model-load"),
    path("v1/models/<str:model_id>/unload", ModelUnloadView.as_view(), name="model-unload"),
    path("v1/models/<str:model_id>/pin", ModelPinView.as_view(), name="model-pin"),
    path("v1/models/<str:model_id>/revisions", AliasRevisionsView.as_view(), name="alias-revisions"),
    path("v1/models/<str:model_id>/promote", PromoteView.as_view(), name="alias-promote"),
    path("v1/models/<str:model_id>/rollback", RollbackView.as_view(), name="alias-rollback"),
    path("v1/load_lora_adapter", LoadLoraView.as_view(), name="load-lora-adapter"),
    path("v1/unload_lora_adapter", UnloadLoraView.as_view(), name="unload-lora-adapter"),
    path("v1/requests", RequestsView.as_view(), name="requests"),
    path("v1/requests/<str:request_id>/cancel", RequestCancelView.as_view(), name="request-cancel"),
    path("v1/models/<path:model_id>", ModelView.as_view(), name="model"),
    path("v1/completions", CompletionsView.as_view(), name="completions"),
    path("v1/chat/completions", ChatCompletionsView.as_view(), name="chat-completions"),
    path("v1/rerank", RerankView.as_view(), name="rerank"),
    path("v1/embeddings", EmbeddingsView.as_view(), name="embeddings"),
    path("v1/responses", ResponsesView.as_view(), name="responses"),
    path("v1/responses/input_tokens", InputTokensView.as_view(), name="responses-input-tokens"),
    path("v1/responses/<str:response_id>", ResponseView.as_view(), name="response"),
    path("v1/responses/<str:response_id>/cancel", ResponseCancelView.as_view(), name="response-cancel"),
    path("v1/responses/<str:response_id>/input_items", ResponseInputItemsView.as_view(), name="response-input-items"),
    path("v1/keys", KeysView.as_view(), name="keys"),
    path("v1/keys/<str:key_id>", KeyView.as_view(), name="key"),
    path("v1/usage", UsageView.as_view(), name="usage"),
    path("v1/messages", MessagesView.as_view(), name="messages"),
    path("v1/messages/count_tokens", CountTokensView.as_view(), name="messages-count-tokens"),
    path("v1/files", FilesView.as_view(), name="files"),
    path("v1/files/<str:file_id>", FileView.as_view(), name="file"),
    path("v1/files/<str:file_id>/content", FileContentView.as_view(), name="file-content"),
    path("v1/states", StatesView.as_view(), name="states"),
    path("v1/states/<str:name>", StateView.as_view(), name="state"),
    path("v1/states/<str:name>/content", StateContentView.as_view(), name="state-content"),
    path("v1/batches", BatchesView.as_view(), name="batches"),
    path("v1/batches/schedules", BatchSchedulesView.as_view(), name="batch-schedules"),
    path("v1/batches/schedules/<str:schedule_id>", BatchScheduleView.as_view(), name="batch-schedule"),
    path("v1/batches/<str:batch_id>", BatchView.as_view(), name="batch"),
    path("v1/batches/<str:batch_id>/cancel", BatchCancelView.as_view(), name="batch-cancel"),
    path("v1/batches/<str:batch_id>/pause", BatchPauseView.as_view(), name="batch-pause"),
    path("v1/batches/<str:batch_id>/priority", BatchPriorityView.as_view(), name="batch-priority"),
    path("v1/batches/<str:batch_id>/resume", BatchResumeView.as_view(), name="batch-resume"),
    path("api/batches", BatchesOfPages.as_view(), name="page-batches"),
    path("api/batches/check", BatchFileCheckOfPages.as_view(), name="page-batch-check"),
    path("api/batches/<str:batch_id>/cancel", BatchCancelOfPages.as_view(), name="page-batch-cancel"),
    path("api/batches/<str:batch_id>/pause", BatchPauseOfPages.as_view(), name="page-batch-pause"),
    path("api/batches/<str:batch_id>/resume", BatchResumeOfPages.as_view(), name="page-batch-resume"),
    path("api/files/<str:file_id>/content", FileContentOfPages.as_view(), name="page-file-content"),
    path("api/jobs", JobsView.as_view(), name="jobs"),
    path("api/jobs/<str:job_id>", JobView.as_view(), name="job"),
    path("api/jobs/<str:job_id>/cancel", JobCancelView.as_view(), name="job-cancel"),
    path("api/jobs/<str:job_id>/result", JobResultView.as_view(), name="job-result"),
    path("api/schedules", SchedulesView.as_view(), name="schedules"),
    path("api/schedules/preview", SchedulePreviewView.as_view(), name="schedule-preview"),
    path("api/schedules/<str:schedule_id>", ScheduleView.as_view(), name="schedule"),
    path("api/schedules/<str:schedule_id>/run", ScheduleRunView.as_view(), name="schedule-run"),
    *ollama.urlpatterns,
    re_path(r"^v1/(?P<rest>.*)$", UnknownEndpointView.as_view()),
]
