"""/v1/responses in lines of batches: what a line can't have, and the response of its output."""

from __future__ import annotations

import pytest

from inference.dialects.responses.lines import response_request, whole_response
from inference.errors import InvalidRequest
from inference.values.output_builder import OutputBuilder
from tests.inference.dialects.openai.outputs.builders import USAGE, delta, event

BODY = {"model": "m", "input": "x"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stream", True),
        ("background", True),
        ("store", True),
        ("previous_response_id", "resp_1"),
        ("truncation", "auto"),
    ],
)
def test_what_only_a_request_of_its_own_can_have_is_refused(name, value):
    with pytest.raises(InvalidRequest, match=name) as caught:
        response_request({**BODY, name: value})
    assert caught.value.param == name


def test_the_response_is_told_from_the_output():
    request = response_request(BODY)
    plan = request.plan()
    builder = OutputBuilder(plan)
    for item in (event("start", prompt_tokens=3), delta("Hel"), delta("lo", finish_reason="stop"),
                 event("done", usage=USAGE)):  # fmt: skip
        builder.add(0, item)
    found = whole_response(request, plan, builder, response_id="resp_1")
    assert (found["id"], found["status"], found["store"]) == ("resp_1", "completed", False)
    assert found["output"][0]["content"][0]["text"] == "Hello"
    assert found["usage"]["total_tokens"] == 5
