"""The form of a schedule: its fields from a row, a batch or an address, and back."""

from __future__ import annotations

import pytest
from django.http import QueryDict

from inference.access.accounts import principal_of_staff
from inference.errors import InvalidRequest
from inference.jobs import hints
from inference.models import Schedule
from inference.pages.schedule_form import (
    NEW,
    form_context,
    form_of_query,
    form_of_row,
    form_sent,
    preview_context,
    values_of,
)
from inference.schedules.services import schedule_create
from inference.values.principal import LOCAL
from tests.accounts import account
from tests.inference.rows import make_checkpoint
from tests.inference.schedules.fakes import make_schedule

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def own_store(settings, tmp_path, monkeypatch) -> None:
    settings.BLAZR_FILES_DIR = tmp_path / "files"
    monkeypatch.setattr(hints, "wake_workers", lambda: None)


def test_a_form_that_is_sent_as_it_was_shown_changes_nothing() -> None:
    make_checkpoint("tiny")
    loads = schedule_create(values={"cron": "0 8 * * *", "action": "load", "model": "tiny"}, principal=LOCAL)
    for row in (make_schedule(priority=2, metadata={"a": "b"}), loads):
        sent = QueryDict(mutable=True)
        sent.update({name: text.replace("\n", "\r\n") for name, text in form_of_row(row).items()})
        assert values_of(form_sent(sent), row) == {}
        assert values_of({**form_of_row(row), "name": "n"}, row) == {"name": "n"}


def test_what_is_changed_is_sent_with_what_belongs_to_it() -> None:
    row = make_schedule(metadata={"a": "b"})
    form = form_of_row(row)
    values = values_of({**form, "priority": "5"}, row)
    assert values["action"] == "batch" and values["batch"]["priority"] == 5
    assert values["batch"]["metadata"] == {"a": "b"} and values["batch"]["input_file_id"] == row.input_file_id
    assert "metadata" not in values_of({**form, "metadata": " "}, row)["batch"]
    assert values_of({**form, "action": "load", "model": "tiny"}, row) == {"action": "load", "model": "tiny"}
    for wrong in ({"action": "dance"}, {"endpoint": ""}, {"priority": "1e3"}, {"metadata": "a"}):
        with pytest.raises(InvalidRequest):
            values_of({**form, **wrong}, row)


def test_a_damaged_row_has_a_form_to_mend_it() -> None:
    row = make_schedule()
    Schedule.objects.update(request="{}")
    row.refresh_from_db()
    form = form_of_row(row)
    assert (form["endpoint"], form["window"]) == ("", "24h")
    assert values_of({**form, "endpoint": "/v1/completions"}, row)["batch"]["completion_window"] == "24h"


def test_an_address_names_what_a_new_one_is_for() -> None:
    assert form_of_query(QueryDict("model=tiny"), LOCAL) == {**NEW, "action": "load", "model": "tiny"}
    assert form_of_query(QueryDict("file=f&endpoint=/v1/responses"), LOCAL)["endpoint"] == "/v1/responses"
    assert form_of_query(QueryDict("x=y"), LOCAL) == NEW


def test_choices_are_those_of_the_account() -> None:
    make_checkpoint("tiny")
    contexts = {role: form_context(NEW, principal_of_staff(account(role, role))) for role in ("operator", "member")}
    assert [name for name, _ in contexts["operator"]["actions"]] == ["batch", "load", "unload"]
    assert [name for name, _ in contexts["member"]["actions"]] == ["batch"]
    assert (contexts["operator"]["models"], contexts["member"]["models"]) == (["tiny"], [])
    assert form_context({**NEW, "file": "file-gone"}, principal_of_staff(account("x", "member")))["file_is_gone"]


def test_a_preview_has_moments_by_the_clock_of_the_zone() -> None:
    clocks = preview_context("0 2 * * *", "Asia/Kathmandu")["preview"]["clocks"]
    assert len(clocks) == 5 and all(text.endswith("02:00 (UTC+05:45)") for text in clocks)
    assert "IANA" in preview_context("0 2 * * *", "Mars")["preview_error"]
