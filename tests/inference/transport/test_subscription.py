"""A subscription passes each event on once and in order, whatever is repeated, lost or from an older attempt."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from inference.errors import BlazrError
from inference.transport.subscription import Subscription


def delta(index: int, *, attempt: int = 0, token: int = 0, request_id: str = "r", **more):
    return {
        "request_id": request_id, "attempt": attempt, "index": index, "type": "delta", "choice": 0, "text": "t",
        "token_ids": [token], **more,
    }  # fmt: skip


class _Hub:
    def __init__(self) -> None:
        self.cancelled: list[str] = []

    def forget(self, request_id: str) -> None:
        pass

    def cancel_soon(self, request_id: str) -> None:
        self.cancelled.append(request_id)


def subscribed(hub=None) -> tuple[Subscription, list[dict]]:
    """A subscription, and the events that it has passed on."""
    events: list[dict] = []
    return Subscription(hub or _Hub(), "r", events.append), events


async def test_repeated_events_are_dropped_and_a_gap_fails_the_request():
    hub = _Hub()
    subscription, events = subscribed(hub)
    for index in (0, 1, 1, 0, 2):
        subscription.accept(delta(index, token=index))
    subscription.accept(delta(4))
    subscription.accept(delta(5))
    assert [event.get("token_ids") for event in events] == [[0], [1], [2], None]
    assert BlazrError.from_dict(events[-1]["error"]).code == "generation_failed"
    assert hub.cancelled == ["r"]


@settings(max_examples=300, deadline=None)
@given(
    total=st.integers(1, 30),
    crashes=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 3)), max_size=4),
    chance=st.randoms(use_true_random=False),
)
def test_any_mix_of_attempts_gives_the_undisturbed_tokens(total, crashes, chance):
    """Workers die at any point and the dead ones' events come late or twice; the client sees 0 … n-1 once each."""
    hub = _Hub()
    subscription, passed = subscribed(hub)
    stale: list[dict] = []
    attempt = 0
    for survived, step_on in [*crashes, (total, 1)]:
        done = sum(map(len, subscription.delivered()))
        events = [
            {"request_id": "r", "attempt": attempt, "index": 0, "type": "start"},
            *(delta(1 + step, attempt=attempt, token=done + step) for step in range(total - done)),
        ]
        for event in events[: 1 + survived]:
            subscription.accept(event)
            if stale and chance.random() < 0.5:
                subscription.accept(chance.choice(stale))
            if chance.random() < 0.2:
                subscription.accept(event)
        stale += events
        attempt += step_on
        subscription.begin_attempt(attempt)
    seen = [token for event in passed for token in event.get("token_ids", ())]
    assert seen == list(range(total))
    assert [event["type"] for event in passed].count("start") == 1
    assert hub.cancelled == []


async def test_finished_choices_are_not_repeated_by_a_later_attempt():
    subscription, _ = subscribed()
    subscription.accept(delta(0, token=1, finish_reason="stop"))
    subscription.accept(delta(1, token=2, choice=1))
    subscription.begin_attempt(1)
    subscription.accept(delta(0, attempt=1, token=5, finish_reason="stop"))
    subscription.accept(delta(1, attempt=1, token=3, choice=1))
    assert subscription.delivered() == [[1], [2, 3]]


async def test_nothing_follows_the_terminal_event():
    subscription, events = subscribed()
    subscription.accept({"request_id": "r", "attempt": 0, "index": 0, "type": "done", "usage": {}})
    subscription.accept(delta(1))
    subscription.fail(BlazrError("late"))
    assert [event["type"] for event in events] == ["done"]
