"""Route URLs of the registry's JSON API, below ``registry/``."""

from __future__ import annotations

from django.urls import path

from models_registry.api import (
    adapter_views,
    passport_views,
    pull_views,
    quantisation_views,
    run_views,
    span_views,
    template_views,
    views,
)

_ONE = "checkpoints/<uuid:checkpoint_id>"
_ADAPTER = f"{_ONE}/adapters/<uuid:adapter_id>"
_PASSPORT = "passports/<uuid:passport_id>"
_RUN = "runs/<uuid:run_id>"
_SPAN = "span-measurements/<uuid:measurement_id>"

urlpatterns = [
    path("overview", views.OverviewView.as_view(), name="registry-overview"),
    path("checkpoints", views.CheckpointListView.as_view(), name="registry-checkpoints"),
    path(_ONE, views.CheckpointView.as_view(), name="registry-checkpoint"),
    path(f"{_ONE}/refresh", views.CheckpointRefreshView.as_view(), name="registry-refresh"),
    path(f"{_ONE}/tensors", views.CheckpointTensorsView.as_view(), name="registry-tensors"),
    path(f"{_ONE}/overrides", views.OverrideListView.as_view(), name="registry-overrides"),
    path(f"{_ONE}/overrides/<str:fact>", views.OverrideView.as_view(), name="registry-override"),
    path(
        f"{_ONE}/chat-template/preview",
        template_views.TemplatePreviewView.as_view(),
        name="registry-template-preview",
    ),
    path(f"{_ONE}/settings", views.SettingsView.as_view(), name="registry-settings"),
    path(f"{_ONE}/adapters", adapter_views.AdapterListView.as_view(), name="registry-adapters"),
    path(_ADAPTER, adapter_views.AdapterView.as_view(), name="registry-adapter"),
    path(f"{_ADAPTER}/load", adapter_views.AdapterLoadView.as_view(), name="registry-adapter-load"),
    path(f"{_ADAPTER}/unload", adapter_views.AdapterUnloadView.as_view(), name="registry-adapter-unload"),
    path(f"{_ONE}/fit", views.FitView.as_view(), name="registry-fit"),
    path(f"{_ONE}/load", views.LoadView.as_view(), name="registry-load"),
    path(f"{_ONE}/unload", views.UnloadView.as_view(), name="registry-unload"),
    path(f"{_ONE}/quantisations", quantisation_views.QuantisationListView.as_view(), name="registry-quantisations"),
    path(
        "quantisations/<uuid:quantisation_id>",
        quantisation_views.QuantisationView.as_view(),
        name="registry-quantisation",
    ),
    path(f"{_ONE}/span-measurements", span_views.SpanMeasurementListView.as_view(), name="registry-spans"),
    path(_SPAN, span_views.SpanMeasurementView.as_view(), name="registry-span"),
    path(f"{_SPAN}/cancel", span_views.SpanMeasurementCancelView.as_view(), name="registry-span-cancel"),
    path(f"{_SPAN}/figures", span_views.SpanFiguresView.as_view(), name="registry-span-figures"),
    path(f"{_SPAN}/picture", span_views.SpanPictureView.as_view(), name="registry-span-picture"),
    path(f"{_ONE}/passports", passport_views.PassportListView.as_view(), name="registry-passports"),
    path(_PASSPORT, passport_views.PassportView.as_view(), name="registry-passport"),
    path(f"{_PASSPORT}/cancel", passport_views.PassportCancelView.as_view(), name="registry-passport-cancel"),
    path("aliases/<str:alias>", passport_views.AliasView.as_view(), name="registry-alias"),
    path(f"{_ONE}/promote", run_views.PromoteView.as_view(), name="registry-promote"),
    path("runs", run_views.RunListView.as_view(), name="registry-runs"),
    path(_RUN, run_views.RunView.as_view(), name="registry-run"),
    path(f"{_RUN}/state", run_views.RunStateView.as_view(), name="registry-run-state"),
    path(f"{_RUN}/stop", run_views.RunStopView.as_view(), name="registry-run-stop"),
    path(f"{_RUN}/resume", run_views.RunResumeView.as_view(), name="registry-run-resume"),
    path("pulls", pull_views.PullListView.as_view(), name="registry-pulls"),
    path("pulls/preview", pull_views.PullPreviewView.as_view(), name="registry-pull-preview"),
    path("pulls/search", pull_views.PullSearchView.as_view(), name="registry-pull-search"),
    path("pulls/<uuid:pull_id>", pull_views.PullView.as_view(), name="registry-pull"),
    path("uploads", views.UploadListView.as_view(), name="registry-uploads"),
    path("uploads/<uuid:upload_id>", views.UploadView.as_view(), name="registry-upload"),
    path("uploads/<uuid:upload_id>/files/<int:number>", views.UploadPieceView.as_view(), name="registry-upload-piece"),
    path("uploads/<uuid:upload_id>/preview", views.UploadPreviewView.as_view(), name="registry-upload-preview"),
    path("uploads/<uuid:upload_id>/finish", views.UploadFinishView.as_view(), name="registry-upload-finish"),
]
