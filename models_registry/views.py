"""Serve the pages of the site, for staff with a session and the permission that each page names.

Each page hands its first state to its script, which polls the API for the next ones. Both come from the same selectors
and serializers, so that they agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.contrib.auth.views import LoginView, LogoutView, redirect_to_login
from django.core.exceptions import PermissionDenied
from django.db.models import F
from django.http import Http404
from django.shortcuts import redirect, render
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import ensure_csrf_cookie

from inference.errors import BlazrError, NotFound
from inference.models.readable_rows import readable_rows
from models_registry import selectors, upload_rules
from models_registry.detection.facts import TOKENIZER_FROM, facts_to_set
from models_registry.hub import hub_host
from models_registry.models import Upload
from models_registry.package_index import SHORT_NAMES
from models_registry.path_registration import empty_form
from models_registry.pull_jobs import NOT_ALLOWED
from models_registry.pull_rows import pull_rows
from models_registry.sign_in import SignInForm, is_staff

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.http import HttpRequest, HttpResponse
    from django.http.response import HttpResponseBase

    from models_registry.models import Checkpoint


class SignInView(LoginView):
    """Signs staff in; the form refuses other accounts."""

    template_name = "registry/login.html"
    authentication_form = SignInForm
    redirect_authenticated_user = False  # would lead accounts that aren't staff round in a circle

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Lead staff that is signed in already to where it wanted to go."""
        if request.method == "GET" and is_staff(request.user):
            return redirect(self.get_success_url())
        return super().dispatch(request, *args, **kwargs)


class SignOutView(LogoutView):
    """Signs out; POST only."""


class StaffView(View):
    """Base of what signed-in staff with a permission may open or do.

    Attributes:
        section: The active entry of the navigation.
        permission_required: The permission that the account needs, or all of several.
    """

    section = ""
    permission_required: str | tuple[str, ...] = ""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Ask for a sign-in, or refuse accounts without the permission, or serve."""
        if not is_staff(request.user):
            return redirect_to_login(request.get_full_path() if request.method in ("GET", "HEAD") else "/")
        needed = self.permission_required
        if not request.user.has_perms((needed,) if isinstance(needed, str) else needed):
            raise PermissionDenied
        return super().dispatch(request, *args, **kwargs)

    def refused(self, error: BlazrError) -> HttpResponse:
        """Return a page that shows why something was refused."""
        words = {"section": self.section, "message": error.message}
        return render(self.request, "registry/refused.html", words, status=error.http_status)


@method_decorator(ensure_csrf_cookie, name="dispatch")
class StaffPage(StaffView):
    """Base of all pages for signed-in staff."""

    template_name = ""
    http_method_names: tuple[str, ...] = ("get", "head")

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        """Render the page; an error that names its reason becomes a page that shows the reason."""
        try:
            context = self.page_context(**kwargs)
        except NotFound as error:
            raise Http404(error.message) from None
        except BlazrError as error:
            return self.refused(error)
        return render(request, self.template_name, {"section": self.section, **context})

    def page_context(self, **kwargs: Any) -> dict[str, Any]:
        return {}

    def drawn(self, *regions: str) -> tuple[str, ...]:
        """Return the ids of those of these regions that are to be drawn: the one that htmx asks for alone, or all."""
        requested = self.request.headers.get("HX-Target", "")
        return (requested,) if requested in regions else regions


class StaffAction(StaffView):
    """Base of forms that do one thing and lead to a page; they work without scripts."""

    http_method_names = ("post",)

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        """Do it, and lead to the page that shows what came of it."""
        try:
            return redirect(self.act(**kwargs))
        except NotFound as error:
            raise Http404(error.message) from None
        except BlazrError as error:
            return self.refused(error)

    def act(self, **kwargs: Any) -> str:
        """Do what the form asks for; returns the address to go to."""
        raise NotImplementedError


def with_tokenizer_sources(rules: list[dict[str, Any]], besides: Checkpoint | None = None) -> list[dict[str, Any]]:
    """Return facts that can be set, with the models that have a tokenizer as the choices of ``tokenizer_from``.

    Args:
        besides: Leave out this checkpoint.
    """
    # The database reads the kinds out of the inspections, which are long.
    annotated = selectors.checkpoint_list().annotate(tokenizer_kind=F("inspection__tokenizer__kind"))
    found: list[Any] = readable_rows(annotated)
    rows = [row for row in found if row.tokenizer_kind != "none" and row != besides]
    for rule in rules:
        if rule["name"] == TOKENIZER_FROM:
            rule["choices"] = [row.served_model_name for row in rows]
    return rules


class UploadPage(StaffPage):
    """The upload of a checkpoint."""

    template_name = "registry/upload.html"
    section = "models"
    permission_required = "models_registry.add_upload"

    def page_context(self, **kwargs: Any) -> dict[str, Any]:
        """Return what the page shows, or the region that htmx asks for alone."""
        regions: dict[str, Callable[[], Any]] = {"unfinished": _unfinished_uploads, "pulls": pull_rows}
        drawn = self.drawn(*regions)
        context = {name: regions[name]() for name in drawn}
        context["not_allowed"] = "" if settings.BLAZR_MAX_PULLS else NOT_ALLOWED
        if len(drawn) < len(regions):
            return context
        return {
            **context,
            "rules": {
                "kinds": upload_rules.accepted_kinds(),
                "max_bytes": settings.BLAZR_MAX_UPLOAD_BYTES,
                "max_files": upload_rules.MAX_FILES,
                "facts": with_tokenizer_sources(facts_to_set()),
            },
            "pull_rules": {"short_names": list(SHORT_NAMES)},
            "hub": hub_host(),
            "pull": self.request.GET.get("pull", "")[:200],
            "by_path": empty_form(),
        }


def _unfinished_uploads() -> list[dict[str, Any]]:
    return [
        {
            "id": row.pk,
            "name": row.served_model_name,
            "state": row.state,
            "size": row.size_bytes,
            "active_at": row.active_at,
            "received": sum(file.received_bytes for file in row.files.all()),
            "stage": row.stage,
            "is_whole": all(file.received_bytes == file.size_bytes for file in row.files.all()),
            "files": ", ".join(file.name for file in list(row.files.all())[:8]),
        }
        for row in readable_rows(Upload.objects.filter(state__in=Upload.OPEN).prefetch_related("files"))
    ]
