"""URLs: the API, the pages, the admin, static files. Paths that nothing knows are answered by the API's handlers."""

from __future__ import annotations

from importlib.util import find_spec

from django.contrib import admin
from django.urls import include, path, re_path

from blazr_site.static_files import static_file

urlpatterns = [
    path("admin/", admin.site.urls),
    re_path(r"^static/(?P<path>.+)$", static_file),
]
for _module in ("inference.api.urls", "models_registry.urls"):
    if find_spec(_module) is not None:
        urlpatterns.append(path("", include(_module)))
