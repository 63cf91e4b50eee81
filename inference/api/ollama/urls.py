"""Routes of Ollama's API."""

from __future__ import annotations

from django.urls import path

from inference.api.ollama.creating import BlobView, CreateView
from inference.api.ollama.model_views import CopyView, DeleteView, RunningView, ShowView, TagsView, VersionView
from inference.api.ollama.pulling import PullView
from inference.api.ollama.views import ChatView, EmbedView, GenerateView, LegacyEmbeddingsView

urlpatterns = [
    path("api/generate", GenerateView.as_view(), name="ollama-generate"),
    path("api/chat", ChatView.as_view(), name="ollama-chat"),
    path("api/embed", EmbedView.as_view(), name="ollama-embed"),
    path("api/embeddings", LegacyEmbeddingsView.as_view(), name="ollama-embeddings"),
    path("api/tags", TagsView.as_view(), name="ollama-tags"),
    path("api/ps", RunningView.as_view(), name="ollama-ps"),
    path("api/show", ShowView.as_view(), name="ollama-show"),
    path("api/pull", PullView.as_view(), name="ollama-pull"),
    path("api/create", CreateView.as_view(), name="ollama-create"),
    path("api/blobs/<str:digest>", BlobView.as_view(), name="ollama-blob"),
    path("api/copy", CopyView.as_view(), name="ollama-copy"),
    path("api/delete", DeleteView.as_view(), name="ollama-delete"),
    path("api/version", VersionView.as_view(), name="ollama-version"),
]
