"""Changes of accounts: what each does, what it leaves alone, what is refused, and that it is logged."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.apps import apps
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, Permission, User
from django.contrib.sessions.models import Session
from django.db import connection, connections
from django.db.models import CASCADE, SET_NULL
from django.test import Client
from django.utils import timezone

from inference.access import account_changes
from inference.access.account_changes import (
    _DEPENDENTS,
    _OPEN_WORK,
    account_create,
    account_delete,
    account_log,
    account_password_change,
    account_role_change,
    account_sign_in_change,
    dependents_of,
    generated_password,
    role_choices,
    role_of,
)
from inference.access.accounts import account_now, principal_of_staff
from inference.errors import Conflict, InvalidRequest, NotFound, PermissionRefused
from inference.models import SavedChat, StoredFile, UsageDay
from models_registry.models import Adapter, CheckpointOverride, PullJob, SpanMeasurement, TrainingRun, Upload
from tests.accounts import account, make_roles
from tests.inference.schedules.fakes import make_schedule

pytestmark = pytest.mark.django_db

PASSWORD = "a-long-enough-pass"


@pytest.fixture
def owner() -> User:
    return account("olga", "superuser")


def logged(user: User) -> list[str]:
    return [entry.change_message for entry in account_log(user.pk)]


def test_an_account_is_added_with_its_role_and_logged(owner: User) -> None:
    made = account_create(actor=owner, name=" vera ", role="viewer", password=PASSWORD)
    assert (made.username, role_of(made), made.is_active, made.is_staff) == ("vera", "viewer", True, True)
    assert made.check_password(PASSWORD) and Client().login(username="vera", password=PASSWORD)
    (entry,) = account_log(made.pk)
    assert (entry.user, entry.object_repr, entry.is_addition()) == (owner, "vera", True)
    assert logged(made) == ["Added with the role viewer."]
    second = account_create(actor=owner, name="otto", role="owner", password=generated_password())
    assert second.is_superuser and role_of(second) == "owner" and not second.groups.exists()


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"name": " "}, "name", "needs a name"),
        ({"name": "a b"}, "name", "Enter a valid username"),
        ({"name": "a\0b"}, "name", "Enter a valid username"),
        ({"name": "x" * 151}, "name", "at most 150 characters"),
        ({"name": "OLGA"}, "name", "an account 'OLGA' already"),
        ({"role": "king"}, "role", "role is 'king'; it must be one of viewer, member, operator, owner"),
        ({"password": "short"}, "password", "at least 8 characters"),
        ({"password": "password1"}, "password", "too common"),
        ({"password": "veravera"}, "password", "too similar to the username"),
        ({"password": "x" * 1025}, "password", "at most 1,024 characters"),
    ],
)
def test_wrong_fields_are_refused_by_name(owner: User, change: dict[str, str], param: str, words: str) -> None:
    fields = {"name": "veraver", "role": "viewer", "password": PASSWORD} | change
    with pytest.raises(InvalidRequest) as error:
        account_create(actor=owner, **fields)
    assert error.value.param == param and words in error.value.message
    assert User.objects.count() == 1 and not LogEntry.objects.exists()


def test_a_role_takes_the_place_of_groups_and_own_permissions(owner: User) -> None:
    user = account("vera", "operator")
    user.groups.add(Group.objects.create(name="auditors"))
    user.user_permissions.add(Permission.objects.get(codename="add_user"))
    assert role_of(user) == "auditors, operator, 1 permission of its own"
    assert list(role_choices()) == ["viewer", "member", "operator", "owner", "auditors"]
    account_role_change(actor=owner, account_id=user.pk, role="viewer")
    user = User.objects.get(pk=user.pk)
    assert role_of(user) == "viewer" and not user.has_perm("auth.add_user")
    account_role_change(actor=owner, account_id=user.pk, role="viewer")  # changes nothing, so nothing is logged
    account_role_change(actor=owner, account_id=user.pk, role="owner")
    account_role_change(actor=owner, account_id=user.pk, role="auditors")
    assert role_of(User.objects.get(pk=user.pk)) == "auditors"
    assert logged(user) == [
        "Role: owner → auditors.",
        "Role: viewer → owner.",
        "Role: auditors, operator, 1 permission of its own → viewer.",
    ]
    with pytest.raises(InvalidRequest, match="'king'"):
        account_role_change(actor=owner, account_id=user.pk, role="king")


def test_a_group_that_is_named_owner_is_not_the_role_owner(owner: User) -> None:
    """The admin can make one; who is in it gets the role all the same."""
    user = account("vera", "viewer")
    user.groups.set([Group.objects.create(name="owner")])
    assert role_of(user) == "group owner"
    account_role_change(actor=owner, account_id=user.pk, role="owner")
    user = User.objects.get(pk=user.pk)
    assert user.is_superuser and role_of(user) == "owner" and logged(user) == ["Role: group owner → owner."]
    user.groups.set([Group.objects.get(name="member")])
    assert role_of(user) == "owner, member"
    account_role_change(actor=owner, account_id=user.pk, role="owner")
    assert not user.groups.exists() and logged(user)[0] == "Role: owner, member → owner."
    user.groups.set([Group.objects.get(name="member")])
    account_role_change(actor=owner, account_id=user.pk, role="member")
    assert role_of(User.objects.get(pk=user.pk)) == "member"


@pytest.mark.parametrize(("taken", "name"), [("ÉMILE", "émile"), ("straße", "STRASSE"), ("Vera", "vERA")])
def test_names_that_differ_in_capitals_only_are_one_name(owner: User, taken: str, name: str) -> None:
    account(taken, "viewer")
    with pytest.raises(InvalidRequest, match="capital letters make no difference") as error:
        account_create(actor=owner, name=name, role="viewer", password=PASSWORD)
    assert error.value.param == "name" and User.objects.count() == 2


def test_name_and_role_are_checked_under_the_lock(owner: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another owner may have taken the name, or deleted the group, since the form was sent."""
    lock = account_changes._lock
    Group.objects.create(name="auditors")
    vera = account("vera", "viewer")

    def lock_late(*arguments: Any) -> User:
        found = lock(*arguments)
        Group.objects.filter(name="auditors").delete()
        User.objects.get_or_create(username="NORA")
        return found

    monkeypatch.setattr(account_changes, "_lock", lock_late)
    with pytest.raises(InvalidRequest, match="'auditors'"):
        account_create(actor=owner, name="otto", role="auditors", password=PASSWORD)
    with pytest.raises(InvalidRequest, match="'auditors'"):
        account_role_change(actor=owner, account_id=vera.pk, role="auditors")
    with pytest.raises(InvalidRequest, match="'nora' already"):
        account_create(actor=owner, name="nora", role="viewer", password=PASSWORD)


def test_a_new_password_ends_the_sessions(owner: User, client: Client) -> None:
    user = account("vera", "viewer")
    client.force_login(user)
    scope = {"session": client.session}
    assert client.get("/").status_code == 200 and account_now(scope) == user
    account_password_change(actor=owner, account_id=user.pk, password=PASSWORD)
    assert account_now(scope) is None  # which open WebSockets look up now and then
    assert client.get("/").status_code == 302
    assert User.objects.get(pk=user.pk).check_password(PASSWORD) and logged(user) == ["Password set."]
    with pytest.raises(InvalidRequest, match="too short"):
        account_password_change(actor=owner, account_id=user.pk, password="x")
    with pytest.raises(NotFound):
        account_password_change(actor=owner, account_id=10**30, password=PASSWORD)


def test_an_account_that_may_not_sign_in_has_no_session_even_later(owner: User, client: Client) -> None:
    user, other = account("vera", "viewer"), Client()
    client.force_login(user)
    other.force_login(owner)
    scope = {"session": client.session}
    account_sign_in_change(actor=owner, account_id=user.pk, is_allowed=False)
    assert account_now(scope) is None
    assert client.get("/").status_code == 302 and other.get("/").status_code == 200
    assert Session.objects.count() == 1
    account_sign_in_change(actor=owner, account_id=user.pk, is_allowed=True)
    account_sign_in_change(actor=owner, account_id=user.pk, is_allowed=True)
    assert client.get("/").status_code == 302
    assert logged(user) == ["May sign in.", "May no longer sign in."]
    plain = User.objects.create_user("plain")  # of manage.py: active, but no staff
    account_sign_in_change(actor=owner, account_id=plain.pk, is_allowed=True)
    assert User.objects.get(pk=plain.pk).is_staff


def test_sessions_of_an_account_that_the_admin_had_stopped_stay_ended(owner: User, client: Client) -> None:
    user, other = account("vera", "viewer"), Client()
    client.force_login(user)
    other.force_login(owner)
    User.objects.filter(pk=user.pk).update(is_active=False)
    account_sign_in_change(actor=owner, account_id=user.pk, is_allowed=True)
    assert client.get("/").status_code == 302 and other.get("/").status_code == 200


def test_a_sign_in_that_was_under_way_leaves_no_session(owner: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was checked before the commit, and stores its session after the first look at the sessions."""
    user, late = account("vera", "viewer"), Client()
    end = account_changes._end_sessions

    def end_and_sign_in(keys: list[str]) -> None:
        end(keys)
        if not late.cookies:
            late.force_login(User.objects.get(pk=user.pk))

    monkeypatch.setattr(account_changes, "_end_sessions", end_and_sign_in)
    account_sign_in_change(actor=owner, account_id=user.pk, is_allowed=False)
    assert late.cookies and not Session.objects.exists()


def test_sessions_are_decoded_outside_of_the_transaction(owner: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes long where many are signed in, and the transaction holds locks."""
    account_client = Client()
    account_client.force_login(account("vera", "viewer"))
    depths: list[int] = []
    decoded = Session.get_decoded
    monkeypatch.setattr(
        Session, "get_decoded", lambda row: depths.append(len(connection.atomic_blocks)) or decoded(row)
    )
    before = len(connection.atomic_blocks)
    account_sign_in_change(actor=owner, account_id=User.objects.get(username="vera").pk, is_allowed=False)
    assert depths and set(depths) == {before}


def test_nobody_locks_himself_out(owner: User) -> None:
    account("second", "superuser")
    for step in (
        lambda: account_role_change(actor=owner, account_id=owner.pk, role="viewer"),
        lambda: account_sign_in_change(actor=owner, account_id=owner.pk, is_allowed=False),
        lambda: account_delete(actor=owner, account_id=owner.pk),
    ):
        with pytest.raises(Conflict, match="another account with the role owner can"):
            step()
    assert User.objects.get(pk=owner.pk).is_superuser and not LogEntry.objects.exists()


def changes_by(actor: User, other: User) -> list[Any]:
    return [
        lambda: account_create(actor=actor, name="new", role="owner", password=PASSWORD),
        lambda: account_role_change(actor=actor, account_id=other.pk, role="viewer"),
        lambda: account_password_change(actor=actor, account_id=other.pk, password=PASSWORD),
        lambda: account_sign_in_change(actor=actor, account_id=other.pk, is_allowed=False),
        lambda: account_delete(actor=actor, account_id=other.pk),
    ]


@pytest.mark.parametrize("change", [{"is_superuser": False}, {"is_active": False}, {"is_staff": False}])
def test_whoever_is_no_owner_any_more_changes_nothing(owner: User, change: dict[str, bool]) -> None:
    """So of two owners that take each other's role at the same time one stays: the second has lost it by then."""
    stale = account("second", "superuser")
    User.objects.filter(pk=stale.pk).update(**change)
    for step in changes_by(stale, owner):
        with pytest.raises(PermissionRefused):
            step()
    now = User.objects.get(pk=owner.pk)
    assert (now.is_superuser, now.is_active, User.objects.count()) == (True, True, 2)
    assert not now.check_password(PASSWORD)


@pytest.mark.django_db(transaction=True)
def test_of_two_owners_that_take_each_others_role_at_once_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits for the first to commit. Without the lock both would meet at the barrier, with the role."""
    owners = [account(name, "superuser") for name in ("olga", "otto")]
    barrier, refused = threading.Barrier(2), []
    check = account_changes._check_is_other

    def check_late(*arguments: Any) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait(2)
        check(*arguments)

    def take(actor: User, other: User) -> None:
        try:
            account_role_change(actor=actor, account_id=other.pk, role="viewer")
        except PermissionRefused as error:
            refused.append(error)
        finally:
            connections.close_all()

    monkeypatch.setattr(account_changes, "_check_is_other", check_late)
    make_roles()
    threads = [threading.Thread(target=take, args=pair) for pair in (owners, owners[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert User.objects.filter(is_superuser=True).count() == 1 and len(refused) == 1


def test_an_account_without_dependents_is_deleted_and_its_usage_stays(owner: User) -> None:
    user = account("vera", "viewer")
    UsageDay.objects.create(day=timezone.now().date(), tenant=f"user:{user.pk}", model="tiny")
    account_delete(actor=owner, account_id=user.pk)
    assert not User.objects.filter(pk=user.pk).exists() and UsageDay.objects.count() == 1
    assert logged(user) == [f"Deleted; its usage stays as user:{user.pk}."]
    with pytest.raises(NotFound):
        account_delete(actor=owner, account_id=user.pk)


def test_an_account_with_dependents_is_not_deleted(owner: User) -> None:
    user = account("vera", "member")
    for name in ("a", "b"):
        StoredFile.objects.create(
            file_id=f"file-{name}", filename=name, purpose="batch", size_bytes=1, sha256="0" * 64,
            tenant=f"user:{user.pk}", created_at=timezone.now(),
        )  # fmt: skip
    make_schedule(principal_of_staff(user), input_file_id="file-a")
    SavedChat.objects.create(owner=user, title="Hi", model="tiny", content="{}")
    assert dependents_of(user) == ["1 schedule", "2 files", "1 kept chat"]
    with pytest.raises(Conflict, match="it has 1 schedule, 2 files, 1 kept chat"):
        account_delete(actor=owner, account_id=user.pk)
    account_role_change(actor=owner, account_id=account("late", "viewer").pk, role="member")
    assert dependents_of(owner) == ["1 logged change"]


def test_every_table_that_an_account_can_leave_behind_is_known() -> None:
    """A new table with tenants, or one whose rows go with the account, is a dependent or named here."""
    with_tenant = {
        model for model in apps.get_models() if any(field.name == "tenant" for field in model._meta.get_fields())
    }
    usage = {apps.get_model("inference", name) for name in ("UsageRecord", "UsageDay")}
    assert with_tenant - usage == {model for model, _, _ in _DEPENDENTS}
    relations = [
        relation
        for relation in User._meta.get_fields(include_hidden=True)
        if hasattr(relation, "on_delete") and not relation.related_model._meta.auto_created
    ]
    assert {row.related_model for row in relations if row.on_delete is CASCADE} == {SavedChat, LogEntry}
    emptied = {(row.related_model, row.field.name) for row in relations if row.on_delete is SET_NULL}
    never_open = {(CheckpointOverride, "author"), (Adapter, "owner")}  # no states: they stay without the account
    assert emptied - never_open == {(model, "owner") for model, _, _, _ in _OPEN_WORK}
    assert len(relations) == len(emptied) + 2


@pytest.mark.parametrize(
    ("make", "ended", "words"),
    [
        (
            lambda user: Upload.objects.create(
                owner=user, served_model_name="a", size_bytes=1, active_at=timezone.now()
            ),
            "done",
            "1 open upload",
        ),
        (
            lambda user: PullJob.objects.create(owner=user, origin="org/tiny", active_at=timezone.now()),
            "cancelled",
            "1 running pull",
        ),
        (
            lambda user: SpanMeasurement.objects.create(
                owner=user, source_name="a", max_tokens=1, max_seconds=1, active_at=timezone.now()
            ),
            "failed",
            "1 running memory measurement",
        ),
        (
            lambda user: TrainingRun.objects.create(
                owner=user, name="run", directory="/runs", max_tokens=1, temperature=0, seed=0, text="Hi",
                loss_tokens=1, max_seconds=1,
            ),
            "stopped",
            "1 training run that isn't stopped",
        ),
    ],
    ids=["upload", "pull", "job", "run"],
)  # fmt: skip
def test_an_account_is_not_deleted_while_its_work_on_models_goes_on(
    owner: User, make: Callable[[User], Any], ended: str, words: str
) -> None:
    user = account("vera", "operator")
    row = make(user)
    with pytest.raises(Conflict, match=f"it has {words}[.]"):
        account_delete(actor=owner, account_id=user.pk)
    type(row).objects.update(state=ended)
    account_delete(actor=owner, account_id=user.pk)
    row.refresh_from_db()
    assert row.owner is None
