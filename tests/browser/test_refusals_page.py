"""What accounts may not do, and what a failure leaves of a page, in Chromium."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.actions import assert_fits_and_can_be_read
from tests.browser.conftest import Complaints
from tests.live.conftest import LiveServer

pytestmark = pytest.mark.browser

PASSWORD = "rotation-curve"
SET_UP = f"""
import uuid
from django.contrib.auth.models import Group, User
from models_registry.models import Checkpoint
member = User.objects.create_user("maria", password="{PASSWORD}", is_staff=True)
member.groups.add(Group.objects.get(name="member"))
row = Checkpoint.objects.get(served_model_name="demo")
row.pk = row.id = uuid.uuid4()
row.served_model_name, row.path, row.source = "sent", f"/nowhere/{{row.pk}}", "upload"
row.save(force_insert=True)
print(row.pk)
"""
TEAR_DOWN = """
from django.contrib.auth.models import User
from models_registry.models import Checkpoint
User.objects.filter(username="maria").delete()
Checkpoint.objects.filter(served_model_name="sent").delete()
"""


@pytest.fixture
def sent(site: LiveServer) -> Iterator[str]:
    """The id of an uploaded model; ``maria``, who isn't allowed to delete it, has an account meanwhile."""
    yield site.manage(SET_UP).strip()
    site.manage(TEAR_DOWN)


def test_an_account_without_the_permission_cannot_delete_an_upload(
    chromium: Browser, site: LiveServer, sent: str
) -> None:
    context = chromium.new_context(base_url=site.url, viewport={"width": 360, "height": 780})
    page = context.new_page()
    page.goto(f"/login/?next=/models/{sent}/?tab=settings")
    page.fill("#id_username", "maria")
    page.fill("#id_password", PASSWORD)
    page.click("button:has-text('Sign in')")
    expect(page.locator("h1")).to_have_text("sent")
    expect(page.locator("#delete")).to_have_count(0)
    status = page.evaluate(
        """async (id) => {
          const token = document.querySelector("[name=csrfmiddlewaretoken]").value;
          const headers = { "X-CSRFToken": token };
          return (await fetch(`/registry/checkpoints/${id}`, { method: "DELETE", headers })).status;
        }""",
        sent,
    )
    assert status == 403
    page.goto("/models/")
    expect(page.locator("#models")).to_contain_text("sent")
    page.goto("/models/upload/")  # for operators alone
    expect(page.locator("h1")).to_have_text("Your account may not do this")
    expect(page.locator("aside nav")).to_contain_text("Playground")
    assert_fits_and_can_be_read(page)
    context.close()


def test_a_failure_keeps_the_navigation(page: Page, site: LiveServer, complaints: Complaints) -> None:
    rename = "alter table {} rename to {}"
    tables = ("inference_savedchat", "inference_savedchat_away")
    page.goto("/models/")
    with sqlite3.connect(site.data_dir / "db.sqlite3", timeout=20) as database:
        database.execute(rename.format(*tables))
    try:
        assert page.goto("/playground/").status == 500
        expect(page.locator("h1")).to_have_text("Something went wrong")
        expect(page.locator("aside nav")).to_contain_text("Models")
    finally:
        with sqlite3.connect(site.data_dir / "db.sqlite3", timeout=20) as database:
            database.execute(rename.format(*reversed(tables)))
    page.click("main a:has-text('To the overview')")
    expect(page.locator("h1")).to_have_text("Overview")
    complaints[:] = [text for text in complaints if "500" not in text]
