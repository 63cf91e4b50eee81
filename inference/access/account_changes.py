"""Change the accounts of the pages: add one, set its role, password and sign-in, delete it.

Owners (superusers) do, and nobody else. No account changes its own role or sign-in, or deletes itself, and the actor is
looked up again under a lock of all owners: so these functions always leave one active owner, unlike the admin and
``manage.py``. Each change is a ``LogEntry``, as those of Django's admin are.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from django.contrib.admin.models import ADDITION, CHANGE, DELETION, LogEntry
from django.contrib.auth import SESSION_KEY
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import Group, User
from django.contrib.auth.password_validation import validate_password
from django.contrib.contenttypes.models import ContentType
from django.contrib.sessions.models import Session
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone

from inference.access.accounts import can_sign_in
from inference.errors import Conflict, InvalidRequest, NotFound, PermissionRefused, shown
from inference.models import Batch, GenerationJob, SavedChat, Schedule, StoredFile, StoredResponse, StoredState
from models_registry.models import (
    CheckpointJob,
    Passport,
    PullJob,
    Quantisation,
    SpanMeasurement,
    StepMeasurement,
    TrainingRun,
    Upload,
)

if TYPE_CHECKING:
    from django.db.models import QuerySet

OWNER = "owner"
"""The role of superusers, which is no group."""
ROLES = {
    "viewer": "sees models and workers",
    "member": "also uses the playground, jobs and batches",
    "operator": "also uploads, loads, changes and deletes models, sees all jobs, usage and settings",
    OWNER: "also makes keys and accounts",
}
MAX_PASSWORD_CHARS = 1024
_DEPENDENTS: tuple[tuple[Any, str, str], ...] = (
    (Schedule, "schedule", "schedules"),
    (Batch, "batch", "batches"),
    (GenerationJob, "job", "jobs"),
    (StoredFile, "file", "files"),
    (StoredState, "saved state", "saved states"),
    (StoredResponse, "stored response", "stored responses"),
)
"""Rows with a tenant that are of no use to others, with their words. Usage isn't one: it stays, by the tenant."""
_RUNNING = (CheckpointJob.State.RUNNING,)
_OPEN_WORK: tuple[tuple[Any, tuple[str, ...], str, str], ...] = (
    (Upload, Upload.OPEN, "open upload", "open uploads"),
    (PullJob, (PullJob.State.RUNNING,), "running pull", "running pulls"),
    (Quantisation, _RUNNING, "running quantisation", "running quantisations"),
    (SpanMeasurement, _RUNNING, "running memory measurement", "running memory measurements"),
    (StepMeasurement, _RUNNING, "running measurement of a run", "running measurements of runs"),
    (Passport, _RUNNING, "running passport", "running passports"),
    (
        TrainingRun,
        (TrainingRun.State.WATCHING, TrainingRun.State.MISSING),
        "training run that isn't stopped",
        "training runs that aren't stopped",
    ),
)
"""Rows with an owner, who must stay while their state is one of these, with their words."""


def role_choices() -> dict[str, str]:
    """Return the roles that can be given, with what each is for: ours that exist, and the admin's other groups."""
    groups = set(Group.objects.values_list("name", flat=True))
    found = {name: words for name, words in ROLES.items() if name == OWNER or name in groups}
    return found | dict.fromkeys(sorted(groups - ROLES.keys()), "a group of the admin's tables")


def role_of(user: User) -> str:
    """Return the role of an account; one that was put together in the admin is described. Empty: it has none."""
    groups = sorted(group.name for group in user.groups.all())
    parts = [OWNER] if user.is_superuser else []
    parts += [f"group {name}" if name == OWNER else name for name in groups]
    if num_own := len(user.user_permissions.all()):
        parts.append("1 permission of its own" if num_own == 1 else f"{num_own} permissions of its own")
    return ", ".join(parts)


def account_get(account_id: int) -> User:
    """Return an account.

    Raises:
        NotFound: There is none with this number.
    """
    found = User.objects.filter(pk=account_id).first()
    if found is None:
        raise NotFound(f"There is no account {account_id}.")
    return found


def account_log(account_id: int | None = None, *, limit: int = 20) -> QuerySet[LogEntry]:
    """Return the newest changes of one account or of all, whoever made them here or in the admin."""
    entries = LogEntry.objects.filter(content_type=ContentType.objects.get_for_model(User)).select_related("user")
    if account_id is not None:
        entries = entries.filter(object_id=str(account_id))
    return entries.order_by("-action_time", "-pk")[:limit]


def dependents_of(user: User) -> list[str]:
    """Return what would be lost, or would belong to nobody, without the account: ``2 schedules``, ``1 kept chat``."""
    tenant = f"user:{user.pk}"
    counts = [(_rows_of(model, tenant).count(), one, many) for model, one, many in _DEPENDENTS]
    for model, states, one, many in _OPEN_WORK:
        counts.append((model.objects.filter(owner=user, state__in=states).count(), one, many))
    counts.append((SavedChat.objects.filter(owner=user).count(), "kept chat", "kept chats"))
    # Django deletes the history of what an account has changed with it.
    counts.append((LogEntry.objects.filter(user=user).count(), "logged change", "logged changes"))
    return [f"{count:,} {one if count == 1 else many}" for count, one, many in counts if count]


def _rows_of(model: Any, tenant: str) -> QuerySet[Any]:
    rows: QuerySet[Any] = model.objects.filter(tenant=tenant)
    return rows.filter(state=None) if model is StoredFile else rows  # a state's file is counted as the state


def generated_password() -> str:
    """Return a password that nobody has chosen."""
    return secrets.token_urlsafe(12)


def account_create(*, actor: User, name: str, role: str, password: str) -> User:
    """Add an account that can sign in.

    Raises:
        InvalidRequest: The name is empty, too long or taken, has other characters than names have, there is no such
            role, or Django's validators refuse the password.
        PermissionRefused: The actor isn't an owner.
    """
    user = User(username=User.normalize_username(name.strip()), is_staff=True)
    _check_name(user)
    user.password = _password_hash(password, user)
    try:
        with transaction.atomic():
            _lock(actor)
            _check_role(role)
            _check_is_free(user.username)
            user.save()
            _give_role(user, role)
            _log(actor, user, ADDITION, f"Added with the role {role}.")
    except IntegrityError:
        raise _taken(user.username) from None
    return user


def account_role_change(*, actor: User, account_id: int, role: str) -> None:
    """Give an account a role, in place of its groups and of its own permissions.

    Raises:
        InvalidRequest: There is no such role.
        NotFound: There is no such account.
        Conflict: It is the actor's own.
        PermissionRefused: The actor isn't an owner.
    """
    with transaction.atomic():
        user = _lock(actor, account_id)
        _check_role(role)
        _check_is_other(actor, user, "change your own role")
        if _has_role(user, role):
            return
        before = role_of(user)
        _give_role(user, role)
        _log(actor, user, CHANGE, f"Role: {before or 'none'} → {role}.")


def account_password_change(*, actor: User, account_id: int, password: str) -> User:
    """Set the password of an account, which ends its sessions: Django ties them to the password.

    Raises:
        InvalidRequest: Django's validators refuse the password.
        NotFound: There is no such account.
        PermissionRefused: The actor isn't an owner.
    """
    hashed = _password_hash(password, account_get(account_id))  # takes too long for a transaction
    with transaction.atomic():
        user = _lock(actor, account_id)
        user.password = hashed
        user.save(update_fields=["password"])
        _log(actor, user, CHANGE, "Password set.")
    return user


def account_sign_in_change(*, actor: User, account_id: int, is_allowed: bool) -> None:
    """Let an account sign in, or no longer. Its sessions end either way, as the admin takes sign-in away without that.

    Raises:
        NotFound: There is no such account.
        Conflict: It is the actor's own.
        PermissionRefused: The actor isn't an owner.
    """
    keys = _session_keys(account_id) if is_allowed else []  # reads all sessions, so not in the transaction
    with transaction.atomic():
        user = _lock(actor, account_id)
        _check_is_other(actor, user, "lock yourself out")
        if can_sign_in(user) is is_allowed:
            return
        user.is_active = is_allowed
        user.is_staff = user.is_staff or is_allowed
        user.save(update_fields=["is_active", "is_staff"])
        _end_sessions(keys)  # before they are valid again
        _log(actor, user, CHANGE, "May sign in." if is_allowed else "May no longer sign in.")
    if not is_allowed:
        _end_sessions(_session_keys(account_id))  # also that of a sign-in which was checked before the commit


def account_delete(*, actor: User, account_id: int) -> None:
    """Delete an account on which nothing depends. What it has used stays, under its tenant.

    Raises:
        NotFound: There is no such account.
        Conflict: It is the actor's own, or something depends on it.
        PermissionRefused: The actor isn't an owner.
    """
    with transaction.atomic():
        user = _lock(actor, account_id)
        _check_is_other(actor, user, "delete your own account")
        if found := dependents_of(user):
            raise Conflict(
                f"{user.username} can't be deleted: it has {', '.join(found)}. Stop it from signing in instead."
            )
        _log(actor, user, DELETION, f"Deleted; its usage stays as user:{user.pk}.")
        user.delete()


# --- checks and steps ----------------------------------------------------------------------------


def _lock(actor: User, account_id: int | None = None) -> User:
    """Return an account (None: the actor's), locked with all owners: no two take each other's role at the same time."""
    account_id = actor.pk if account_id is None else account_id
    rows = User.objects.select_for_update().filter(Q(pk=actor.pk) | Q(pk=account_id) | Q(is_superuser=True))
    by_id = {row.pk: row for row in rows.order_by("pk")}
    now = by_id.get(actor.pk)
    if now is None or not (now.is_superuser and can_sign_in(now)):
        raise PermissionRefused("Only owners change accounts.")
    if account_id not in by_id:
        raise NotFound(f"There is no account {account_id}.")
    return by_id[account_id]


def _check_is_other(actor: User, user: User, words: str) -> None:
    if user.pk == actor.pk:
        raise Conflict(f"You can't {words}; another account with the role {OWNER} can.")


def _check_role(role: str) -> None:
    if role not in (choices := role_choices()):
        raise InvalidRequest(f"role is {shown(role)}; it must be one of {', '.join(choices)}.", param="role")


def _check_name(user: User) -> None:
    if not user.username:
        raise InvalidRequest("An account needs a name.", param="name")
    try:
        user.clean_fields(exclude=["password"])
    except ValidationError as error:
        raise InvalidRequest(" ".join(error.messages), param="name") from None


def _check_is_free(name: str) -> None:
    """Check that no account has this name in other capitals; SQLite compares those of ASCII alone."""
    if name.casefold() in {taken.casefold() for taken in User.objects.values_list("username", flat=True)}:
        raise _taken(name)


def _taken(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"There is an account {shown(name)} already; capital letters make no difference.", param="name"
    )


def _password_hash(password: str, user: User) -> str:
    if len(password) > MAX_PASSWORD_CHARS:
        raise InvalidRequest(f"A password has at most {MAX_PASSWORD_CHARS:,} characters.", param="password")
    try:
        validate_password(password, user)
    except ValidationError as error:
        raise InvalidRequest(" ".join(error.messages), param="password") from None
    return make_password(password)


def _has_role(user: User, role: str) -> bool:
    """Whether an account has a role, and nothing else."""
    groups = set(user.groups.values_list("name", flat=True))
    is_owner = role == OWNER
    expected = set() if is_owner else {role}
    return user.is_superuser == is_owner and groups == expected and not user.user_permissions.exists()


def _give_role(user: User, role: str) -> None:
    user.is_superuser = role == OWNER
    user.save(update_fields=["is_superuser"])
    user.groups.set(Group.objects.none() if role == OWNER else Group.objects.filter(name=role))
    user.user_permissions.clear()


def _session_keys(account_id: int) -> list[str]:
    """Return the keys of an account's sessions, which would be valid again once it can sign in again."""
    sessions = Session.objects.filter(expire_date__gt=timezone.now()).iterator()
    return [row.session_key for row in sessions if row.get_decoded().get(SESSION_KEY) == str(account_id)]


def _end_sessions(keys: list[str]) -> None:
    Session.objects.filter(session_key__in=keys).delete()


def _log(actor: User, user: User, flag: int, message: str) -> None:
    LogEntry.objects.log_actions(actor.pk, [user], flag, message, single_object=True)
