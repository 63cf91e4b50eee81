"""Bodies of /v1/states: what is taken, and what is refused by name."""

from __future__ import annotations

import pytest

from inference.api.platform.state_serializers import StateChangeSerializer, StateCreateSerializer
from inference.errors import InvalidRequest


def test_a_body_is_taken_as_it_is():
    body = {"name": "a", "model": "m", "prompt": "text", "pinned": True, "replace": False, "state": "b"}
    assert dict(StateCreateSerializer.shared().parse(body)) == {**body, "prompt": ["text"]}
    assert StateChangeSerializer.shared().parse({"pinned": False}) == {"pinned": False}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": "m", "prompt": "x"}, "name"),
        ({"name": "a", "prompt": "x"}, "model"),
        ({"name": 1, "model": "m", "prompt": "x"}, "name"),
        ({"name": "a", "model": "m", "prompt": "x", "stream": True}, "stream"),
        ({"name": "a", "model": "m", "prompt": "x", "pinned": "yes"}, "pinned"),
    ],
)
def test_bodies_that_are_refused(body, param):
    with pytest.raises(InvalidRequest) as refused:
        StateCreateSerializer.shared().parse(body)
    assert refused.value.param == param
