"""Accounts of the pages: who can sign in with which role; owners change them. Every step is a form that posts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from django.contrib.admin.models import ADDITION, DELETION
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.debug import sensitive_variables

from inference.access.account_changes import (
    account_create,
    account_delete,
    account_get,
    account_log,
    account_password_change,
    account_role_change,
    account_sign_in_change,
    dependents_of,
    generated_password,
    role_choices,
    role_of,
)
from inference.access.accounts import can_sign_in
from inference.errors import BlazrError, InvalidRequest, NotFound, PermissionRefused, shown
from models_registry.views import StaffAction, StaffPage, StaffView

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.contrib.admin.models import LogEntry
    from django.http import HttpRequest, QueryDict
    from django.http.response import HttpResponseBase

NEW = {"name": "", "role": "member"}
"""Fields of an empty form."""
MAX_FIELD_CHARS = 200
NUM_ACCOUNTS = 200
"""Accounts that the list shows; a search finds the others."""
_LOG_WORDS = {ADDITION: "Added.", DELETION: "Deleted."}


class OwnersOnly(StaffView):
    """A page or step that changes accounts.

    Django's permission alone doesn't open it: an account that may set passwords and roles can become an owner.
    """

    section = "settings"
    permission_required = "auth.change_user"

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Refuse staff that isn't an owner."""
        if can_sign_in(request.user) and not request.user.is_superuser:
            raise PermissionDenied
        return super().dispatch(request, *args, **kwargs)

    @property
    def actor(self) -> User:
        """The account that asks."""
        return cast("User", self.request.user)


class AccountsPage(StaffPage):
    """All accounts, and for owners the form of a new one."""

    template_name = "registry/accounts.html"
    section = "settings"
    permission_required = "auth.view_user"

    def page_context(self, **kwargs: Any) -> dict[str, Any]:
        """Return the accounts with their last changes."""
        query = self.request.GET
        return {**list_context(self.request.user, query.get("q", "")), "is_open": "new" in query}


class AccountPage(OwnersOnly, StaffPage):
    """One account."""

    template_name = "registry/account.html"

    def page_context(self, **kwargs: Any) -> dict[str, Any]:
        """Return the account with what can be done about it."""
        return account_context(account_get(kwargs["account_id"]), self.request.user)


class AccountCreate(OwnersOnly):
    """Add an account; a form with a mistake is shown again."""

    permission_required = "auth.add_user"
    http_method_names = ("post",)

    @sensitive_variables("password", "typed")
    def post(self, request: HttpRequest) -> HttpResponse:
        """Add what the form describes; a password that the server has made is shown once."""
        form = {name: request.POST.get(name, "")[:MAX_FIELD_CHARS] for name in NEW}
        try:
            typed = _typed_password(request.POST)
            password = typed or generated_password()
            user = account_create(actor=self.actor, password=password, **form)
        except PermissionRefused:
            raise PermissionDenied from None
        except BlazrError as error:
            context = {
                **list_context(request.user, form=form, error=error.message),
                "section": self.section,
                "is_open": True,
            }
            return render(request, "registry/accounts.html", context, status=error.http_status)
        if typed:
            return redirect("account", user.pk)
        return _shown_once(request, user, password, status=201)


class _AccountAction(OwnersOnly, StaffAction):
    """A step on an account; the page shows why it was refused."""

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        """Take the step, and lead to the page that shows what came of it."""
        try:
            return self.response(kwargs["account_id"])
        except PermissionRefused:
            raise PermissionDenied from None
        except NotFound as error:
            raise Http404(error.message) from None
        except BlazrError as error:
            try:
                context = account_context(account_get(kwargs["account_id"]), request.user, error=error.message)
            except NotFound as gone:
                raise Http404(gone.message) from None
            return render(
                request, "registry/account.html", {**context, "section": self.section}, status=error.http_status
            )

    def response(self, account_id: int) -> HttpResponse:
        """Take the step; returns what the browser gets."""
        raise NotImplementedError


class AccountRole(_AccountAction):
    """Give an account another role: ``role`` of the form."""

    def response(self, account_id: int) -> HttpResponse:
        """Give it."""
        role = self.request.POST.get("role", "")
        account_role_change(actor=self.actor, account_id=account_id, role=role)
        return redirect("account", account_id)


class AccountPassword(_AccountAction):
    """Set a password: ``password`` and ``again`` of the form; one that the server makes is shown once.

    For the owner's own account it makes none: an answer that doesn't arrive would lock the owner out.
    """

    @sensitive_variables("password", "typed")
    def response(self, account_id: int) -> HttpResponse:
        """Set it. An owner's own other sessions end, this one stays."""
        typed = _typed_password(self.request.POST)
        if not typed and account_id == self.request.user.pk:
            raise InvalidRequest("Your own password is one that you choose: fill in both fields.", param="password")
        password = typed or generated_password()
        user = account_password_change(actor=self.actor, account_id=account_id, password=password)
        if user.pk == self.request.user.pk:
            update_session_auth_hash(self.request, user)
        if typed:
            return redirect("account", account_id)
        return _shown_once(self.request, user, password, status=200)


class AccountSignIn(_AccountAction):
    """Let an account sign in, or no longer: ``allowed`` of the form is yes or no."""

    def response(self, account_id: int) -> HttpResponse:
        """Set it."""
        chosen = self.request.POST.get("allowed", "")
        if chosen not in ("yes", "no"):
            raise InvalidRequest(f"allowed is {shown(chosen)}; it must be yes or no.", param="allowed")
        account_sign_in_change(actor=self.actor, account_id=account_id, is_allowed=chosen == "yes")
        return redirect("account", account_id)


class AccountDelete(_AccountAction):
    """Delete an account on which nothing depends."""

    permission_required = "auth.delete_user"

    def response(self, account_id: int) -> HttpResponse:
        """Delete it."""
        account_delete(actor=self.actor, account_id=account_id)
        return redirect(reverse("accounts"))


def list_context(
    reader: Any, search: str = "", *, form: dict[str, str] | None = None, error: str = ""
) -> dict[str, Any]:
    """Return the first accounts by name, and the form of a new one.

    Args:
        reader: The account that is signed in.
        search: A part of the names; empty: all.
        form: The fields as they were sent; None: an empty form.
        error: Why they were refused.
    """
    search = search[:MAX_FIELD_CHARS].replace("\0", "").strip()
    users = User.objects.order_by("username").prefetch_related("groups", "user_permissions")
    found = list(users.filter(username__icontains=search)[: NUM_ACCOUNTS + 1])
    return {
        "accounts": [_account_words(user, reader) for user in found[:NUM_ACCOUNTS]],
        "has_more": len(found) > NUM_ACCOUNTS,
        "q": search,
        "log": log_rows(account_log()),
        "roles": role_choices().items(),
        "form": form or NEW,
        "form_error": error,
    }


def account_context(user: User, reader: Any, *, error: str = "") -> dict[str, Any]:
    """Return one account, and what can be done about it.

    Args:
        reader: The account that is signed in.
        error: Why a step was refused.
    """
    return {
        "account": _account_words(user, reader),
        "roles": role_choices().items(),
        "dependents": dependents_of(user),
        "log": log_rows(account_log(user.pk)),
        "error": error,
    }


def log_rows(entries: Iterable[LogEntry]) -> list[dict[str, Any]]:
    """Return changes in words: when, who, which account, what."""
    return [
        {
            "at": entry.action_time,
            "author": entry.user.get_username(),
            "name": entry.object_repr,
            "words": entry.get_change_message() or _LOG_WORDS.get(entry.action_flag, "Changed."),
        }
        for entry in entries
    ]


def _account_words(user: User, reader: Any) -> dict[str, Any]:
    return {
        "pk": user.pk,
        "name": user.get_username(),
        "role": role_of(user),
        "can_sign_in": can_sign_in(user),
        "last_login": user.last_login,
        "is_own": user.pk == reader.pk,
    }


@sensitive_variables("password")
def _typed_password(form: QueryDict) -> str:
    """Return the password of a form; empty: the server is to make one.

    Raises:
        InvalidRequest: The two fields differ.
    """
    password = form.get("password", "")
    if password != form.get("again", ""):
        raise InvalidRequest("The two passwords differ.", param="again")
    return password


@sensitive_variables("password", "context")
def _shown_once(request: HttpRequest, user: User, password: str, *, status: int) -> HttpResponse:
    context = {**account_context(user, request.user), "section": "settings", "password": password}
    response = render(request, "registry/account.html", context, status=status)
    response["Cache-Control"] = "no-store"
    return response
