"""EngineLoop: one thread, woken at once, that reports every fate and ends cleanly."""

from __future__ import annotations

import queue
import threading
import time

import pytest

from inference.engine.loop import EngineLoop
from inference.errors import EngineDead, GenerationFailed, InvalidTokenIds, Unavailable
from tests.inference.engine.fakes import Collected, collect, expected_tokens, make_engine, make_spec, request
from tests.inference.worker.fakes import wait_until


class EngineOwner:
    """A plain engine as the loop's owner."""

    def __init__(self, engine) -> None:
        self.engine = engine
        self.threads: set[int] = set()
        self.begun = threading.Event()
        self.hold = threading.Event()
        self.hold.set()

    def add(self, prepared) -> None:
        self.threads.add(threading.get_ident())
        if prepared.request_id == "bug":
            raise KeyError("a bug")
        self.engine.add_request(prepared)

    def abort(self, request_id: str) -> bool:
        self.threads.add(threading.get_ident())
        return self.engine.abort_request(request_id)

    def step(self):
        self.threads.add(threading.get_ident())
        self.begun.set()
        assert self.hold.wait(60)
        return self.engine.step()

    @property
    def step_tokens(self) -> int:
        return self.engine.step_tokens

    def has_unfinished(self) -> bool:
        return self.engine.has_unfinished()


class Harness:
    """A running loop with everything that it reported."""

    def __init__(self, owner) -> None:
        self.owner = owner
        self.events: queue.Queue = queue.Queue()
        self.refused: queue.Queue = queue.Queue()
        self.dead: queue.Queue = queue.Queue()
        self.loop = EngineLoop(
            owner,
            self.events.put,
            on_refused=lambda item, error: self.refused.put((item, error)),
            on_dead=self.dead.put,
        )
        self.loop.start()

    def until_finished(self, count: int) -> dict[str, Collected]:
        found: dict[str, Collected] = {}
        while sum(bool(entry.finals) for entry in found.values()) < count:
            collect(self.events.get(timeout=60), found)
        return found


@pytest.fixture
def harness():
    made: list[Harness] = []

    def make(owner=None) -> Harness:
        made.append(Harness(owner or EngineOwner(make_engine())))
        return made[-1]

    yield make
    for item in made:
        if isinstance(item.owner, EngineOwner):
            item.owner.hold.set()
        item.loop.stop(drain=False, timeout_s=60)
        assert not item.loop.is_alive


def test_requests_from_many_threads_are_answered_by_one(harness):
    running = harness()
    spec = make_spec("hybrid")

    def submit(number: int) -> None:
        for i in range(5):
            running.loop.submit(request(f"{number}-{i}", [number, i], max_tokens=5))

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    found = running.until_finished(30)
    for number in range(6):
        for i in range(5):
            assert found[f"{number}-{i}"].tokens == expected_tokens(spec, [number, i], 5)
    assert len(running.owner.threads) == 1 and threading.get_ident() not in running.owner.threads


def test_a_submit_wakes_an_idle_loop_at_once(harness, monkeypatch):
    running = harness()
    condition = running.loop._condition
    wait, limits = condition.wait, []

    def recorded(timeout_s: float | None = None) -> bool:
        limits.append(timeout_s)
        return wait(timeout_s)

    monkeypatch.setattr(condition, "wait", recorded)
    for number in range(30):
        running.loop.submit(request(f"r{number}", [1], max_tokens=1))
        running.until_finished(1)
        wait_until(lambda number=number: len(limits) > number)
    assert set(limits) == {None}  # nothing but the submit ends the wait: it doesn't poll


def test_an_idle_loop_does_nothing(harness):
    running = harness()
    running.loop.submit(request("r", [1], max_tokens=2))
    running.until_finished(1)
    wait_until(lambda: not running.loop.is_busy)
    at = running.loop.last_step_at
    used = time.thread_time_ns(), time.process_time()
    time.sleep(0.3)
    assert running.loop.last_step_at == at
    assert time.process_time() - used[1] < 0.1


def test_all_events_of_a_step_come_together(harness):
    running = harness()
    running.owner.hold.clear()
    for number in range(4):
        running.loop.submit(request(f"r{number}", [number], max_tokens=2))
    running.owner.hold.set()
    sizes = []
    while sum(sizes) < 8:
        sizes.append(len(running.events.get(timeout=60)))
    assert max(sizes) >= 3


def test_abort_reaches_the_owner(harness):
    running = harness()
    running.loop.submit(request("long", [1]))
    running.loop.abort("unknown")
    running.loop.abort("long")
    assert running.until_finished(1)["long"].finish_reason == "abort"


def test_refusals_name_their_request(harness):
    running = harness()
    running.loop.submit(request("bad", [10**6]))
    running.loop.submit(request("bug", [1]))
    running.loop.submit(request("good", [1], max_tokens=1))
    assert running.until_finished(1)["good"].tokens
    item, error = running.refused.get(timeout=60)
    assert item.request_id == "bad" and type(error) is InvalidTokenIds
    item, error = running.refused.get(timeout=60)
    assert item.request_id == "bug" and type(error) is GenerationFailed


def test_a_callback_that_raises_does_not_end_the_loop(harness):
    running = harness()
    real = running.loop._on_events
    calls = []

    def failing(events) -> None:
        calls.append(events)
        if len(calls) == 1:
            raise ConnectionError("redis is away")
        real(events)

    running.loop._on_events = failing
    running.loop.submit(request("r", [1], max_tokens=3))
    while len(calls) < 3:
        time.sleep(0.005)
    assert running.loop.is_alive


def test_draining_finishes_what_was_accepted(harness):
    running = harness()
    for number in range(5):
        running.loop.submit(request(f"r{number}", [number], max_tokens=20))
    assert running.loop.stop(drain=True, timeout_s=60)
    found = running.until_finished(5)
    assert {entry.finish_reason for entry in found.values()} == {"length"}
    assert not running.loop.is_alive
    with pytest.raises(Unavailable):
        running.loop.submit(request("late", [1]))


def test_an_idle_loop_stops_at_once(harness):
    for drain in (True, False):
        running = harness()
        begin = time.perf_counter()
        assert running.loop.stop(drain=drain, timeout_s=60)
        assert time.perf_counter() - begin < 15 and not running.loop.is_alive


def test_stopping_without_draining_leaves_requests_without_an_end(harness):
    running = harness()
    running.owner.hold.clear()
    running.loop.submit(request("long", [1]))
    assert running.owner.begun.wait(60)
    stopper = threading.Thread(target=running.loop.stop, kwargs={"drain": False, "timeout_s": 60})
    stopper.start()
    wait_until(lambda: running.loop._is_stopping)
    running.owner.hold.set()
    stopper.join(60)
    assert not running.loop.is_alive and running.owner.has_unfinished()


def test_a_drain_that_takes_too_long_is_cut(harness):
    class Endless(EngineOwner):
        def step(self):
            time.sleep(0.002)
            return []

        def has_unfinished(self) -> bool:
            return bool(self.threads)

    running = harness(Endless(make_engine()))
    running.loop.submit(request("r", [1]))
    begin = time.perf_counter()
    assert not running.loop.stop(drain=True, timeout_s=0.2)
    assert time.perf_counter() - begin < 15 and not running.loop.is_alive


class Dying(EngineOwner):
    """Fails at its first step."""

    error: BaseException = EngineDead("the device is gone.")

    def step(self):
        self.begun.set()
        assert self.hold.wait(60)
        raise self.error


class PanicException(BaseException):
    """What a Rust library raises through pyo3."""


@pytest.mark.parametrize("error", [EngineDead("the device is gone."), ZeroDivisionError(), PanicException("rust")])
def test_death_is_reported_once_and_ends_the_loop(harness, error):
    owner = Dying(make_engine())
    owner.error = error
    owner.hold.clear()
    running = harness(owner)
    running.loop.submit(request("r", [1]))
    assert owner.begun.wait(60)
    running.loop.submit(request("unread", [1]))
    owner.hold.set()
    found = running.dead.get(timeout=60)
    assert type(found) is EngineDead
    running.loop._thread.join(60)
    assert not running.loop.is_alive and running.dead.empty()
    item, refusal = running.refused.get(timeout=60)
    assert item.request_id == "unread" and refusal.retryable
    with pytest.raises(Unavailable):
        running.loop.submit(request("late", [1]))


def test_health_sees_a_step_that_hangs(harness):
    running = harness()
    running.owner.hold.clear()
    running.loop.submit(request("r", [1], max_tokens=1))
    assert running.owner.begun.wait(60)
    time.sleep(0.3)
    assert running.loop.is_busy and time.monotonic() - running.loop.last_step_at > 0.2
    running.owner.hold.set()
    running.until_finished(1)
    wait_until(lambda: not running.loop.is_busy)


def test_the_slowest_token_is_measured_without_the_first_step(harness):
    class Slow(EngineOwner):
        """Sleeps a step in which kernels would be compiled, then a step of four tokens."""

        pauses = (1.5, 0.2)
        ended_at = 0.0

        def step(self):
            events = super().step()
            time.sleep(self.pauses[0] if self.pauses else 0)
            self.pauses = self.pauses[1:]
            self.ended_at = self.ended_at or time.monotonic()
            return events

    running = harness(Slow(make_engine()))
    running.loop.submit(request("r", [1, 2, 3, 4], max_tokens=3))
    while running.loop.longest_token_s == 0 or running.owner.has_unfinished():
        time.sleep(0.005)
    assert running.loop.step_tokens == 1
    assert 0.2 <= running.loop.longest_token_s < time.monotonic() - running.owner.ended_at


def test_the_time_with_work_is_counted_also_within_a_step():
    owner = EngineOwner(make_engine("paged"))
    harness = Harness(owner)
    assert harness.loop.work_s == 0.0
    owner.hold.clear()
    harness.loop.submit(request("a", [1], max_tokens=4))
    assert owner.begun.wait(60)
    first = harness.loop.work_s
    wait_until(lambda: harness.loop.work_s > first)  # the step waits, and the time passes
    owner.hold.set()
    harness.until_finished(1)
    wait_until(lambda: not harness.loop.is_busy)
    total = harness.loop.work_s
    assert total > first and harness.loop.work_s == total  # an idle loop's time stands
    harness.loop.stop(drain=True, timeout_s=60)


def test_an_idle_loop_is_woken_for_work_of_another_thread(harness) -> None:
    class Owner(EngineOwner):
        has_order = False

        def has_unfinished(self) -> bool:
            return self.has_order or super().has_unfinished()

        def step(self):
            self.has_order = False
            return super().step()

    made = harness(Owner(make_engine()))
    wait_until(lambda: not made.loop.is_busy)
    made.owner.has_order = True
    assert not made.owner.begun.is_set()
    made.loop.wake()
    assert made.owner.begun.wait(60)
