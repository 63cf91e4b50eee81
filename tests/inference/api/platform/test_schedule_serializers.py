"""Bodies of schedules: members that are required, nested ones, and null."""

from __future__ import annotations

import pytest

from inference.api.openai.batch_schemas import BatchRequestSerializer
from inference.api.platform.schedule_serializers import ScheduleChangeSerializer, ScheduleRequestSerializer
from inference.errors import InvalidRequest

BATCH = {"input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": "24h"}
BODY = {"cron": "0 3 * * *", "action": "batch", "batch": BATCH}


def test_a_change_needs_nothing_and_a_request_its_times_and_its_action():
    assert ScheduleChangeSerializer.shared().parse({}) == {}
    assert ScheduleChangeSerializer.shared().parse({"paused": True, "name": ""}) == {"paused": True, "name": ""}
    assert ScheduleRequestSerializer.shared().parse(BODY) == BODY
    for name in ("cron", "action"):
        with pytest.raises(InvalidRequest, match=f"{name} is required"):
            ScheduleRequestSerializer.shared().parse({key: value for key, value in BODY.items() if key != name})


def test_a_batch_has_the_members_of_its_own_body_and_no_others():
    parse = ScheduleRequestSerializer.shared().parse
    assert set(ScheduleChangeSerializer().fields["batch"].fields) == set(BatchRequestSerializer().fields)
    assert parse({**BODY, "batch": {**BATCH, "metadata": None}}) == BODY
    for batch, param in (({**BATCH, "cron": "x"}, "batch.cron"), ({}, "batch.input_file_id"),
                         ({**BATCH, "endpoint": "/x"}, "batch.endpoint"), ([], "batch"), ("a", "batch")):  # fmt: skip
        with pytest.raises(InvalidRequest) as caught:
            parse({**BODY, "batch": batch})
        assert caught.value.param == param
