"""What a schedule is to do: what is refused when it is made, by value and by right."""

from __future__ import annotations

import pytest

from inference.access.accounts import principal_of_staff
from inference.errors import InvalidRequest, NotFound, PermissionRefused, UnknownModel
from inference.models import Schedule, StoredFile
from inference.models.readable_rows import DamagedRow
from inference.schedules.definitions import batch_values, drawn_secret, times_of
from inference.schedules.services import schedule_create
from inference.values.principal import LOCAL
from tests.accounts import account
from tests.inference.batches.fakes import store_file
from tests.inference.schedules.fakes import key, load_values, make_schedule

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("wrong", "error", "param"),
    [
        ({"cron": "* * * * *"}, InvalidRequest, "cron"),
        ({"time_zone": "Berlin"}, InvalidRequest, "time_zone"),
        ({"name": "x" * 101}, InvalidRequest, "name"),
        ({"model": ""}, InvalidRequest, "model"),
        ({"model": "nothing"}, UnknownModel, "model"),
        ({"batch": {"input_file_id": "file-x"}}, InvalidRequest, "batch"),
        ({"action": "batch"}, InvalidRequest, "model"),
        ({"action": "batch", "model": None}, InvalidRequest, "batch"),
    ],
)
def test_what_is_wrong_is_refused_at_once(model, wrong, error, param):
    with pytest.raises(error) as caught:
        schedule_create(values=load_values(**wrong), principal=LOCAL)
    assert caught.value.param == param
    assert not Schedule.objects.exists()


def test_what_a_batch_would_be_refused_for_is_refused_at_once(model):
    for wrong, error in (
        ({"completion_window": "soon"}, InvalidRequest),
        ({"input_file_id": "file-x"}, NotFound),
        ({"input_file_id": store_file([b"x"], purpose="vision").file_id}, InvalidRequest),
        ({"metadata": {"a": 1}}, InvalidRequest),
    ):
        with pytest.raises(error):
            make_schedule(**wrong)
    with pytest.raises(PermissionRefused):
        make_schedule(key("files"), priority=-1)
    assert not Schedule.objects.exists()
    assert all(row.expires_at is not None for row in StoredFile.objects.all())


def test_loads_need_what_the_pages_and_the_api_need(model):
    for principal in (
        key("files"),
        key("files", "lifecycle", models=["other"]),
        principal_of_staff(account("member", "member")),
    ):
        with pytest.raises(PermissionRefused):
            schedule_create(values=load_values(), principal=principal)
    for principal in (key("files", "lifecycle"), principal_of_staff(account("operator", "operator")), LOCAL):
        assert schedule_create(values=load_values(), principal=principal)


def test_a_row_gives_what_a_batch_is_made_of(model, settings):
    settings.BLAZR_WEBHOOKS = "public"
    row = make_schedule(priority=3, webhook={"url": "https://example.com/"})
    values = batch_values(row)
    assert (values["input_file_id"], values["priority"]) == (row.input_file_id, 3)
    assert drawn_secret(row, {"webhook": {"url": "https://example.com/"}}) == values["webhook"]["secret"]
    assert drawn_secret(row, {"webhook": {"secret": "s"}}) is None
    assert drawn_secret(row, {}) is None
    row.request = '{"endpoint": "/v1/completions"}'
    with pytest.raises(DamagedRow, match="completion_window"):
        batch_values(row)
    row.time_zone = "Mars"
    with pytest.raises(InvalidRequest, match="Mars"):
        times_of(row)
