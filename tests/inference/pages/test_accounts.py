"""Accounts on their pages: what owners do there, how it is refused, and that nobody else sees or does it."""

from __future__ import annotations

import re

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.test import Client

from tests.accounts import account

pytestmark = pytest.mark.django_db

PAGE = "/settings/accounts/"
PASSWORD = "a-long-enough-pass"
TYPED = {"password": PASSWORD, "again": PASSWORD}


@pytest.fixture
def owner(client: Client) -> Client:
    client.force_login(account("olga", "superuser"))
    return client


def shown_password(text: str) -> str:
    return re.search(r'id="made-password"[^>]*>([\w-]{16})</pre>', text).group(1)


def test_an_account_is_added_and_signs_in(owner: Client) -> None:
    response = owner.post(f"{PAGE}new/", {"name": "vera", "role": "member", **TYPED})
    vera = User.objects.get(username="vera")
    assert response["Location"] == f"{PAGE}{vera.pk}/"
    text = owner.get(response["Location"]).content.decode()
    for piece in ("member; may sign in; has never signed in", "Added with the role member.", "olga"):
        assert piece in text, piece
    assert PASSWORD not in text
    client = Client()
    assert client.post("/login/", {"username": "vera", "password": PASSWORD})["Location"] == "/"
    assert client.get("/playground/").status_code == 200 and client.get(PAGE).status_code == 403
    text = owner.get(PAGE).content.decode()
    assert "vera" in text and 'badge border fw-normal muted">you</span>' in text


def test_a_password_that_the_server_makes_is_shown_once(owner: Client) -> None:
    response = owner.post(f"{PAGE}new/", {"name": "vera", "role": "viewer", "password": "", "again": ""})
    assert (response.status_code, response["Cache-Control"]) == (201, "no-store")
    first = shown_password(response.content.decode())
    vera = User.objects.get(username="vera")
    assert vera.check_password(first)
    address = f"{PAGE}{vera.pk}/"
    assert first not in owner.get(address).content.decode()
    response = owner.post(f"{address}password/", {})
    assert (response.status_code, response["Cache-Control"]) == (200, "no-store")
    second = shown_password(response.content.decode())
    assert second != first and User.objects.get(pk=vera.pk).check_password(second)
    # Which the account can change itself.
    client = Client()
    client.login(username="vera", password=second)
    assert client.get("/admin/password_change/").status_code == 200


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": ""}, "needs a name"),
        ({"name": "<b>"}, "Enter a valid username"),
        ({"name": "olga"}, "already"),
        ({"role": "king"}, "it must be one of"),
        ({"again": "another"}, "The two passwords differ."),
        ({"password": "q-9x", "again": "q-9x"}, "too short"),
    ],
)
def test_a_wrong_form_comes_back_in_its_drawer(owner: Client, change: dict[str, str], words: str) -> None:
    form = {"name": "vera", "role": "viewer", **TYPED} | change
    response = owner.post(f"{PAGE}new/", form)
    text = response.content.decode()
    assert response.status_code == 400 and words in text.partition('id="form-error"')[2]
    assert re.search(r'<dialog class="drawer" [^>]* open>', text)
    if form["name"] == "vera":
        assert 'value="vera"' in text
    assert form["password"] not in text and User.objects.count() == 1 and not LogEntry.objects.exists()


def test_the_form_is_in_the_page_without_scripts(owner: Client) -> None:
    assert not re.search(r"<dialog [^>]* open>", owner.get(PAGE).content.decode().partition("</main>")[0])
    assert re.search(r'<dialog class="drawer" [^>]* open>', owner.get(f"{PAGE}?new=1").content.decode())


def test_the_list_is_limited_and_can_be_searched(owner: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("anna", "vera", "Verena"):
        account(name, "viewer")
    assert 'name="q"' not in owner.get(PAGE).content.decode()
    monkeypatch.setattr("inference.pages.accounts.NUM_ACCOUNTS", 2)
    response = owner.get(PAGE)
    assert len(response.context["accounts"]) == 2
    assert "The first 2 accounts by name" in response.content.decode()
    response = owner.get(PAGE, {"q": "VER"})
    assert sorted(row["name"] for row in response.context["accounts"]) == ["Verena", "vera"]
    text = response.content.decode()
    assert 'name="q" value="VER"' in text and "The first 2" not in text
    assert "No account has this in its name." in owner.get(PAGE, {"q": "<b>\0"}).content.decode()


def test_role_sign_in_and_deletion(owner: Client) -> None:
    vera = account("vera", "viewer")
    address = f"{PAGE}{vera.pk}/"
    text = owner.get(address).content.decode()
    assert re.search(r'value="viewer" checked', text) and "Stop it from signing in" in text
    assert "its open jobs and batches end" in text
    assert owner.post(f"{address}role/", {"role": "operator"})["Location"] == address
    assert owner.post(f"{address}sign-in/", {"allowed": "no"})["Location"] == address
    text = owner.get(address).content.decode()
    for piece in ("operator; may not sign in", "Role: viewer → operator.", "May no longer sign in.", "Let it sign in"):
        assert piece in text, piece
    assert owner.post(f"{address}sign-in/", {"allowed": "yes"})["Location"] == address
    assert owner.post(f"{address}password/", TYPED)["Location"] == address
    assert owner.post(f"{address}delete/")["Location"] == PAGE
    text = owner.get(PAGE).content.decode()
    assert f"Deleted; its usage stays as user:{vera.pk}." in text
    for path in ("", "role/", "sign-in/", "password/", "delete/"):
        step = {"role": "viewer", "allowed": "no", **TYPED}
        response = owner.post(f"{address}{path}", step) if path else owner.get(address)
        assert response.status_code == 404, path
    assert owner.get(f"{PAGE}{10**30}/").status_code == 404


@pytest.mark.parametrize(
    ("path", "form", "status", "words"),
    [
        ("role/", {"role": "king"}, 400, "it must be one of viewer, member, operator, owner"),
        ("sign-in/", {"allowed": "perhaps"}, 400, "it must be yes or no"),
        ("password/", {"password": "x", "again": "y"}, 400, "The two passwords differ."),
        ("password/", {"password": "veraveravera", "again": "veraveravera"}, 400, "too similar"),
    ],
)
def test_the_page_says_why_a_step_was_refused(
    owner: Client, path: str, form: dict[str, str], status: int, words: str
) -> None:
    vera = account("veravera", "viewer")
    response = owner.post(f"{PAGE}{vera.pk}/{path}", form)
    text = response.content.decode()
    assert response.status_code == status and words in text.partition('id="error"')[2]
    assert "<h1" in text and "veraveravera" not in text and not LogEntry.objects.exists()


def test_an_account_that_something_depends_on_stays(owner: Client) -> None:
    busy = account("busy", "superuser")
    other = Client()
    other.force_login(busy)
    other.post(f"{PAGE}new/", {"name": "vera", "role": "viewer", **TYPED})
    address = f"{PAGE}{busy.pk}/"
    text = owner.get(address).content.decode()
    assert "It can&#x27;t be deleted while it has 1 logged change." in text.replace("can't", "can&#x27;t")
    assert 'id="delete"' not in text
    response = owner.post(f"{address}delete/")
    assert response.status_code == 409 and b"1 logged change" in response.content
    assert User.objects.filter(pk=busy.pk).exists()


def test_ones_own_role_and_sign_in_stay_and_ones_own_session_survives_a_new_password(owner: Client) -> None:
    olga = User.objects.get(username="olga")
    other = Client()
    other.force_login(olga)
    address = f"{PAGE}{olga.pk}/"
    text = owner.get(address).content.decode()
    assert "This is your own account" in text
    for hidden in ('id="set-role"', 'id="sign-in"', 'id="delete"'):
        assert hidden not in text
    for path, form in (("role/", {"role": "viewer"}), ("sign-in/", {"allowed": "no"}), ("delete/", {})):
        response = owner.post(f"{address}{path}", form)
        assert response.status_code == 409 and b"another account with the role owner can" in response.content
    assert owner.post(f"{address}password/", TYPED)["Location"] == address
    assert owner.get(address).status_code == 200 and other.get(address).status_code == 302


def test_the_server_makes_no_password_for_ones_own_account_and_a_form_is_sent_once(owner: Client) -> None:
    """Of two such passwords the valid one may never be shown, and the only owner would be locked out."""
    olga, vera = User.objects.get(username="olga"), account("vera", "viewer")
    before = olga.password
    response = owner.post(f"{PAGE}{olga.pk}/password/", {"password": "", "again": ""})
    assert response.status_code == 400 and b"Your own password is one that you choose" in response.content
    assert User.objects.get(pk=olga.pk).password == before and not LogEntry.objects.exists()
    own, other = (
        owner.get(f"{PAGE}{pk}/").content.decode().partition('id="password-title"')[2] for pk in (olga.pk, vera.pk)
    )
    assert len(re.findall(r'<input [^>]*type="password"[^>]* required>', own)) == 2 and "The server makes none" in own
    assert not re.search(r'type="password"[^>]* required>', other) and "the server makes a password" in other
    assert re.search(r'/password/" class="stack" data-once>', own) and re.search(r'/password/"[^>]* data-once>', other)


def test_whoever_is_no_owner_gets_nowhere_even_with_permissions(client: Client) -> None:
    vera = account("vera", "viewer")
    paths = [f"{PAGE}{vera.pk}/{step}" for step in ("role/", "sign-in/", "password/", "delete/")]
    for role in (None, "viewer", "member", "operator"):
        client.force_login(account(f"a-{role}", role))
        assert [client.post(path).status_code for path in (*paths, f"{PAGE}new/")] == [403] * 5
        assert client.get(PAGE).status_code == client.get(f"{PAGE}{vera.pk}/").status_code == 403
    keeper = account("keeper", "viewer")
    keeper.user_permissions.set(Permission.objects.filter(content_type=ContentType.objects.get_for_model(User)))
    client.force_login(keeper)
    text = client.get(PAGE).content.decode()
    assert "vera" in text and "new-account" not in text and f"{PAGE}{vera.pk}/" not in text
    assert client.get(f"{PAGE}{vera.pk}/").status_code == 403
    assert [client.post(path).status_code for path in (*paths, f"{PAGE}new/")] == [403] * 5
    assert User.objects.get(pk=vera.pk).is_active and not LogEntry.objects.exists()


def test_an_owner_who_has_lost_the_role_meanwhile_is_refused(owner: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at the session and the change."""
    vera = account("vera", "viewer")
    monkeypatch.setattr("inference.access.account_changes.can_sign_in", lambda user: False)
    for path, form in (
        ("new/", {"name": "new", "role": "owner", **TYPED}),
        (f"{vera.pk}/role/", {"role": "owner"}),
        (f"{vera.pk}/delete/", {}),
    ):
        assert owner.post(f"{PAGE}{path}", form).status_code == 403
    assert User.objects.count() == 2 and not LogEntry.objects.exists()


def test_changes_of_the_admin_and_of_this_page_are_one_history(owner: Client) -> None:
    vera = account("vera", "viewer")
    form = {"username": "vera2", "is_active": "on", "is_staff": "on", "date_joined_0": "2026-01-01",
            "date_joined_1": "00:00:00"}  # fmt: skip
    assert owner.post(f"/admin/auth/user/{vera.pk}/change/", form).status_code == 302
    owner.post(f"{PAGE}{vera.pk}/role/", {"role": "member"})
    text = owner.get(f"{PAGE}{vera.pk}/").content.decode()
    assert "Changed" in text.partition('id="log"')[2] and "Role: none → member." in text
    assert "Role: none → member." in owner.get(f"/admin/auth/user/{vera.pk}/history/").content.decode()
