"""What the runners of jobs and of batch lines share: events from engines, hints, and which errors count."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from inference.errors import (
    BlazrError,
    EngineError,
    GenerationFailed,
    InvalidRequest,
    ModelLoadFailed,
    ModelLoading,
    OutOfCacheBlocks,
    QueueFull,
    Unavailable,
)
from inference.jobs.claim_runner import ClaimRunner, counts_as_attempt


class Runner(ClaimRunner):
    def __init__(self) -> None:
        super().__init__("runner-test", "the rows of a test", owner="w", window=2)
        self._running = ["one", "two"]

    def _begin(self) -> None: ...

    def _hand_back(self) -> None:
        self._running = []

    def _count_and_start(self, request_id: str) -> None: ...

    def turn(self) -> None: ...

    def _pause_s(self) -> float:
        return 60.0


def event(kind: str, number: int = 0) -> Any:
    return {"request_id": "r", "attempt": 0, "index": number, "type": kind}


def test_events_of_several_engines_arrive_in_order_and_once():
    runner = Runner()
    threads = [
        threading.Thread(
            target=lambda start: runner._on_events([event("delta", start), event("delta", start + 1)]), args=(n,)
        )
        for n in range(0, 20, 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    numbers = [item["index"] for item in runner._received_events()]
    assert sorted(numbers) == list(range(20))
    assert all(numbers[at + 1] == numbers[at] + 1 for at in range(0, 20, 2))
    assert list(runner._received_events()) == []


@pytest.mark.parametrize(("kind", "is_woken"), [("delta", False), ("start", False), ("done", True), ("error", True)])
def test_only_the_end_of_a_request_wakes_the_thread(kind, is_woken):
    runner = Runner()
    runner._on_events([event("delta"), event(kind)])
    assert runner._wake.is_set() is is_woken


def test_a_hint_lets_the_next_turn_look_for_new_and_for_cancelled_rows():
    runner = Runner()
    runner._look_now = False
    runner.wake()
    assert runner._look_now
    assert runner._hinted
    assert runner._wake.is_set()


def test_the_end_gives_back_what_is_held():
    runner = Runner()
    assert runner.num_running == 2
    runner._end()
    assert runner.num_running == 0


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (QueueFull("full."), False),
        (ModelLoading("loading."), False),
        (Unavailable("no worker."), False),
        (ModelLoadFailed("too large."), True),
        (ModelLoadFailed("other models use the memory.", retry_after_s=10), False),
        (OutOfCacheBlocks("too long."), True),
        (GenerationFailed("broken."), True),
        (EngineError("broken."), True),
        (InvalidRequest("wrong."), True),
    ],
)
def test_a_full_or_loading_worker_is_not_the_requests_fault(error, counts):
    assert counts_as_attempt(error) is counts
    assert counts_as_attempt(BlazrError.from_dict(error.to_dict())) is counts
