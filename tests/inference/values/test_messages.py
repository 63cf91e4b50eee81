"""The messages between the web process and the workers."""

from inference.errors import BlazrError, QueueFull
from inference.values.messages import error_event


def test_the_event_of_an_error_carries_it_over_the_border():
    event = error_event("r", 2, 5, QueueFull("full", retry_after_s=3))
    assert {name: event[name] for name in ("request_id", "attempt", "index", "type")} == {
        "request_id": "r", "attempt": 2, "index": 5, "type": "error",
    }  # fmt: skip
    found = BlazrError.from_dict(event["error"])
    assert (type(found), found.message, found.retry_after_s) == (QueueFull, "full", 3)
