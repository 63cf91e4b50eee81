"""Route URLs to the API, the pages, the admin and static files, and set the error handlers."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path, re_path

from blazr_site.docs_views import DocsView, SchemaView
from blazr_site.settings_page import EnergyPriceChoice, PassportsChoice, SettingsPage
from blazr_site.static_files import favicon, static_file

urlpatterns = [
    path("admin/", admin.site.urls),
    re_path(r"^static/(?P<path>.+)$", static_file),
    path("favicon.ico", favicon, name="favicon"),
    path("schema", SchemaView.as_view(), name="schema"),
    path("openapi.json", SchemaView.as_view(), name="openapi"),
    path("docs", DocsView.as_view(), name="docs"),
    path("settings/", SettingsPage.as_view(), name="settings"),
    path("settings/passports/", PassportsChoice.as_view(), name="settings-passports"),
    path("settings/energy-price/", EnergyPriceChoice.as_view(), name="settings-energy-price"),
    path("", include("inference.api.urls")),
    path("", include("models_registry.urls")),
    path("", include("inference.pages.urls")),
]
handler400 = "inference.api.exception_handler.bad_request"
handler403 = "inference.api.exception_handler.permission_denied"
handler404 = "inference.api.exception_handler.page_not_found"
handler500 = "inference.api.exception_handler.server_error"
