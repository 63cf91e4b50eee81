"""Deltas that are joined: joining them changes nothing that a reader gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.transport.deltas import is_urgent, join_deltas
from inference.transport.subscription import Subscription
from inference.values.messages import GenerationEvent


def delta(request: int, index: int, text: str = " w", **more) -> GenerationEvent:
    found: GenerationEvent = {
        "request_id": f"r{request}",
        "attempt": 0,
        "index": index,
        "type": "delta",
        "choice": 0,
        "text": text,
        "token_ids": [index],
    }
    return {**found, **more}


def start(request: int) -> GenerationEvent:
    return {"request_id": f"r{request}", "attempt": 0, "index": 0, "type": "start", "prompt_tokens": 3}


@pytest.mark.parametrize(
    "event",
    [
        start(99),
        delta(99, 1),
        delta(99, 3, finish_reason="stop"),
        {"request_id": "r99", "attempt": 0, "index": 9, "type": "error", "error": {}},
    ],
    ids=["start", "first token", "end of a choice", "error"],
)
def test_what_a_client_waits_for_is_urgent(event):
    assert is_urgent(event)
    assert not is_urgent(delta(99, 3))


class _Hub:
    def forget(self, request_id: str) -> None:
        pass

    def cancel_soon(self, request_id: str) -> None:
        raise AssertionError(f"{request_id} was given up")


def _read(deliveries: list[list[GenerationEvent]], request: str) -> tuple[str, list[int], list[str], list[str | None]]:
    """Text, tokens, log-probabilities and ends that a reader of ``request`` gets, in order."""
    events_of: list[GenerationEvent] = []
    subscription = Subscription(_Hub(), request, events_of.append)
    for events in deliveries:
        for event in events:
            if event["request_id"] == request:
                subscription.accept(event)
    taken = [event for event in events_of if event["type"] == "delta"]
    return (
        "".join(event["text"] for event in taken),
        [token for event in taken for token in event["token_ids"]],
        [entry["token"] for event in taken for entry in event.get("logprobs", ())],
        [event["finish_reason"] for event in taken if event.get("finish_reason")],
    )


@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    cuts=st.lists(st.booleans(), min_size=8, max_size=8),
    again=st.integers(0, 7),
    with_logprobs=st.booleans(),
)
def test_a_reader_gets_the_same_from_joined_deltas(lengths, cuts, again, with_logprobs):
    """Whatever steps are sent together, and also if a delivery comes twice."""
    deliveries: list[list[GenerationEvent]] = [[start(number) for number in range(len(lengths))]]
    plain = [deliveries[0]]
    for index in range(1, max(lengths) + 1):
        events = []
        for number, length in enumerate(lengths):
            more: dict = {"logprobs": [{"token": f"{number}.{index}"}]} if with_logprobs else {}
            if index == length:
                more["finish_reason"] = "length"
            if index <= length:
                events.append(delta(number, index, f" {number}.{index}", **more))
        plain.append(events)
        if cuts[index]:
            deliveries.append([])
        deliveries[-1] = deliveries[-1] + events
    joined = [join_deltas(events) for events in deliveries]
    repeated = min(again, len(joined) - 1)
    joined.insert(repeated, joined[repeated])
    for number, length in enumerate(lengths):
        found = _read(joined, f"r{number}")
        assert found == _read(plain, f"r{number}")
        assert len(found[1]) == length
    assert sum(event.get("span", 1) for event in join_deltas(deliveries[-1])) == len(deliveries[-1])


def test_choices_attempts_vectors_and_ends_are_not_joined():
    events = [
        delta(1, 1),
        delta(1, 2, choice=1),
        delta(1, 3, choice=1, finish_reason="stop"),
        delta(1, 4, choice=1),
        delta(1, 0, attempt=1),
        {"request_id": "r1", "attempt": 1, "index": 1, "type": "done", "usage": {}},
    ]
    assert [(event["index"], event.get("span", 1)) for event in join_deltas(events)] == [
        (1, 1),
        (2, 2),
        (4, 1),
        (0, 1),
        (1, 1),
    ]
