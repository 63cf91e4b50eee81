"""Route URLs of the pages at the root, and of the registry's JSON API below ``registry/``.

There is no namespace, because LOGIN_URL is ``login``.
Names: login, logout, models, upload, register-path, compare, model (checkpoint_id), runs, run (run_id); registry-… for
the API.
"""

from __future__ import annotations

from django.urls import include, path

from models_registry import compare_page, model_list, model_page, path_page, run_pages, views

urlpatterns = [
    path("login/", views.SignInView.as_view(), name="login"),
    path("logout/", views.SignOutView.as_view(), name="logout"),
    path("models/", model_list.ModelsPage.as_view(), name="models"),
    path("models/upload/", views.UploadPage.as_view(), name="upload"),
    path("models/path/", path_page.PathPage.as_view(), name="register-path"),
    path("models/compare/", compare_page.ComparePage.as_view(), name="compare"),
    path("models/<uuid:checkpoint_id>/", model_page.ModelPage.as_view(), name="model"),
    path("runs/", run_pages.RunsPage.as_view(), name="runs"),
    path("runs/<uuid:run_id>/", run_pages.RunPage.as_view(), name="run"),
    path("registry/", include("models_registry.api.urls")),
]
