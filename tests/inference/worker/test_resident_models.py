"""ResidentModels: what each change asks its caller to do; and that threads that change it at once can't break it."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from inference.errors import BlazrError, GenerationFailed, InvalidRequest, ModelLoadFailed
from inference.worker import resident_models
from inference.worker.interfaces import LoadPlan
from inference.worker.resident import Engine, Resident
from inference.worker.resident_models import ResidentModels
from tests.inference.worker.fakes import FakeLLM, FakePresence, message, not_resized, wait_until


class FakeLoop:
    is_busy = False
    last_step_at = 0.0


def plan(name: str = "a", size: int = 10, **values: Any) -> LoadPlan:
    keep_alive_s, max_num_seqs = values.pop("keep_alive_s", -1), values.pop("max_num_seqs", 2)
    return LoadPlan(name, size, keep_alive_s, max_num_seqs, None, resized=not_resized, **values)  # type: ignore[arg-type]


def table(budget: int = 20, min_residence_s: float = 0.0) -> ResidentModels:
    return ResidentModels(FakePresence(), budget_bytes=budget, min_residence_s=min_residence_s)


def ignore(events: list[Any]) -> None:
    pass


def event(request_id: str, kind: str, index: int = 0, **members: Any) -> Any:
    return {"request_id": request_id, "attempt": 0, "index": index, "type": kind, **members}


def load(models: ResidentModels, name: str = "a", **values: Any) -> Resident:
    """Load a model that is queued, as the loader does."""
    resident = models.next_to_load()
    assert resident is not None
    assert resident.checkpoint_id == name
    assert models.reserve(resident, plan(name, **values), deadline=0.0) is None
    engine = Engine(FakeLLM(), FakeLoop())  # type: ignore[arg-type]
    models.mark_ready(resident, plan(name, **values), engine, memory_bytes=10, load_s=0.0)
    models.admit()
    return resident


def add(models: ResidentModels, request_id: str, **members: Any) -> list[str]:
    """Add a request, and return the requests that enter their engines."""
    models.add_request(message(request_id, **members), ignore)
    return [request.request_id for request in models.admit().requests]


def test_first_request_queues_one_load_and_waits_for_it():
    models = table()
    first, second = (models.add_request(message(name), ignore) for name in ("r1", "r2"))
    assert (first.is_new_model, first.error) == (True, None)
    assert (second.is_new_model, second.error) == (False, None)
    assert models.admit() == ([], None)
    resident = models.next_to_load()
    assert models.reserve(resident, plan(), deadline=0.0) is None
    assert models.memory_bytes == 10
    engine = Engine(FakeLLM(), FakeLoop())
    assert models.engine_of(first.request) is None
    assert not models.mark_ready(resident, plan(), engine, memory_bytes=7, load_s=1.0)
    assert models.admit() == ([first.request, second.request], None)
    assert models.engine_of(first.request) is engine
    assert models.memory_bytes == 7
    assert add(models, "r3") == ["r3"]
    assert resident.num_in_engine == models.num_requests == 3


def test_an_id_that_is_running_is_refused_and_changes_nothing():
    models = table()
    models.add_request(message("r"), ignore)
    with pytest.raises(ValueError, match="'r' is running already"):
        models.add_request(message("r", model="b"), ignore)
    assert [item.checkpoint_id for item in models.describe()] == ["a"]


def test_events_are_counted_grouped_and_end_their_requests():
    models = table()
    requests = [models.add_request(message(name), ignore).request for name in ("r1", "r2")]
    other = models.add_request(message("r3"), print).request
    resident = load(models)
    groups = models.record_events(
        resident,
        [
            event("r1", "delta", 1, token_ids=[1, 2]),
            event("gone", "delta", 1, token_ids=[1]),
            event("r3", "delta", 4, token_ids=[1]),
            event("r2", "done", 9),
        ],
    )
    assert [item["request_id"] for item in groups[ignore]] == ["r1", "r2"]
    assert [item["request_id"] for item in groups[print]] == ["r3"]
    assert (requests[0].num_tokens, requests[0].next_index, other.next_index) == (2, 2, 5)
    assert not models.is_open(requests[1])
    assert not models.close_request(requests[1])
    assert (resident.num_in_engine, models.num_requests) == (2, 2)
    (model,) = models.describe()
    assert model.tokens_per_s == 3 / 5.0
    assert [item["state"] for item in models.describe_requests()] == ["running", "running"]


def test_events_of_an_earlier_load_of_the_model_reach_nobody():
    models = table()
    request = models.add_request(message("r"), ignore).request
    resident = load(models)
    assert models.record_events(Resident("a"), [event("r", "done")]) == {}
    assert models.is_open(request)
    assert resident.num_in_engine == 1


def test_error_of_a_load_is_kept_for_a_moment(monkeypatch):
    models = table()
    waiting = models.add_request(message("r1"), ignore).request
    error = InvalidRequest("no.")
    assert models.mark_failed(models.next_to_load(), error) == [waiting]
    later = models.add_request(message("r2"), ignore)
    assert (later.error, later.is_new_model) == (error, False)
    assert models.describe() == ()
    assert models.expire() == ([], [])
    monkeypatch.setattr(resident_models, "FAILED_FOR_S", 0.0)
    ((failed,),) = (models.expire().failed,)
    assert models.expire() == ([], [])
    for request in (waiting, later.request):
        assert models.close_request(request)
    assert not models.remove(failed, has_messages=False)
    assert models.add_request(message("r3"), ignore).is_new_model


def test_order_to_go_counts_while_the_model_loads():
    models = table()
    assert models.request_load("a", pinned=True)
    assert models.request_unload("a") is None
    resident = models.next_to_load()
    assert models.reserve(resident, plan(), deadline=0.0) is None
    has_to_go = models.mark_ready(resident, plan(), Engine(FakeLLM(), FakeLoop()), memory_bytes=10, load_s=0.0)
    assert has_to_go
    assert (resident.status, resident.pinned) == ("unloading", False)
    assert [item.reason for item in models.departures] == ["an unload was requested during its load"]


def test_requests_for_an_unloading_model_are_its_successors():
    models = table()
    models.request_load("a", pinned=False)
    resident = load(models)
    assert models.request_unload("a") is resident
    assert models.request_unload("a") is None
    request = models.add_request(message("r"), ignore).request
    assert models.take_engine(resident) is not None
    assert models.engine_of(request) is None
    assert models.remove(resident, has_messages=False)
    assert request.resident is not resident
    assert load(models).waiting == []
    assert models.engine_of(request) is not None


@pytest.mark.parametrize(("has_messages", "is_ordered"), [(True, False), (False, True), (False, False)])
def test_model_that_left_is_loaded_again_only_if_it_is_wanted(has_messages, is_ordered):
    models = table()
    models.request_load("a", pinned=False)
    resident = load(models)
    models.request_unload("a")
    if is_ordered:
        assert not models.request_load("a", pinned=True)
    models.take_engine(resident)
    assert models.remove(resident, has_messages=has_messages) is (has_messages or is_ordered)
    assert [item.pinned for item in models.describe()] == [is_ordered] * (has_messages or is_ordered)


def test_orders_to_load_again_keep_the_pin_and_end_in_one_load():
    models = table()
    models.request_load("a", pinned=True)
    assert models.request_reload("a", "room") is None  # it loads, and what is missing is seen after that
    resident = load(models)
    models.add_request(message("r"), ignore)
    models.admit()
    assert models.request_reload("a", "room") is resident
    assert models.request_reload("a", "room") is None  # the request runs, so that its engine is still there
    models.close_request(models.find_request("r"))
    models.take_engine(resident)
    assert models.remove(resident, has_messages=False)
    assert [(item.status, item.pinned) for item in models.describe()] == [("loading", True)]


def test_a_reload_for_a_request_follows_without_it_unless_an_unload_is_ordered():
    for is_ordered in (False, True):
        models = table()
        models.request_load("a", pinned=True)
        resident = load(models)
        request = models.add_request(message("r"), ignore).request
        models.admit()
        assert models.wait_for_reload(request, "room") is resident
        assert models.request_reload("a", "room") is None
        if is_ordered:
            models.request_unload("a")
            assert models.request_reload("a", "room") is None
        models.close_request(request)
        models.take_engine(resident)
        assert models.remove(resident, has_messages=False) is not is_ordered
        assert [item.pinned for item in models.describe()] == [True] * (not is_ordered)


def test_unload_waits_for_the_requests_of_its_model():
    models = table()
    request = models.add_request(message("r"), ignore).request
    resident = load(models)
    models.request_unload("a")
    taken: list[Engine | None] = []
    thread = threading.Thread(target=lambda: taken.append(models.take_engine(resident)))
    thread.start()
    time.sleep(0.05)
    assert taken == []
    models.close_request(request)
    thread.join(60)
    assert taken != [None]
    assert resident.engine is None


def test_reserve_names_victims_until_the_model_fits():
    models = table(budget=20)
    for name in ("a", "b"):
        models.request_load(name, pinned=False)
        load(models, name)
    models.request_load("c", pinned=False)
    resident = models.next_to_load()
    victim = models.reserve(resident, plan("c", 20), deadline=0.0)
    second = models.reserve(resident, plan("c", 20), deadline=0.0)
    assert (victim.checkpoint_id, second.checkpoint_id) == ("a", "b")
    with pytest.raises(ModelLoadFailed, match="still use"):
        models.reserve(resident, plan("c", 20), deadline=time.monotonic() + 0.05)
    for item in (victim, second):
        models.take_engine(item)
        models.remove(item, has_messages=False)
    assert models.reserve(resident, plan("c", 20), deadline=0.0) is None
    assert models.memory_bytes == 20


def test_drain_forgets_what_does_not_end_and_refuses_what_comes():
    models = table()
    models.add_request(message("r1"), ignore)
    resident = load(models)
    models.add_request(message("r2", model="b"), ignore)
    drained = models.drain(0.05)
    assert drained == (["r1", "r2"], [resident.engine])
    assert isinstance(models.add_request(message("r3"), ignore).error, GenerationFailed)
    assert not models.request_load("c", pinned=False)
    assert models.next_to_load() is models.take_engine(resident) is None
    assert not models.remove(resident, has_messages=True)


class YieldingDict(dict[str, Any]):
    """Lets other threads run with each access, so that a change without the lock is seen half done."""

    def get(self, *args: Any) -> Any:
        found = super().get(*args)
        time.sleep(0)
        return found

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        time.sleep(0)

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        time.sleep(0)


class Traffic:
    """Drives a ResidentModels as the manager, the loader and the engines do, and counts what becomes of requests."""

    def __init__(self, models: ResidentModels, seed: int) -> None:
        self.models = models
        models._requests, models._residents = YieldingDict(), YieldingDict()
        self.seed = seed
        self.ended: Counter[str] = Counter()
        self.submitted: set[str] = set()
        self.errors: list[BaseException] = []
        self.engines: dict[int, tuple[Resident, dict[str, int]]] = {}
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self.loads = 0

    def guarded(self, target: Any, *args: Any) -> threading.Thread:
        def run() -> None:
            try:
                target(*args)
            except BaseException as error:
                self.errors.append(error)
                raise

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    # --- what the manager does

    def fail(self, request: Any) -> None:
        if self.models.close_request(request):
            self.ended[request.request_id] += 1
            self.admit()

    def admit(self) -> None:
        for request in self.models.admit().requests:
            self.start(request)

    def start(self, request: Any) -> None:
        engine = self.models.engine_of(request)
        if engine is not None:
            with self.lock:
                self.engines[id(engine)][1][request.request_id] = 0

    def client(self, number: int) -> None:
        draw = random.Random(self.seed * 1000 + number)
        for count in range(150):
            request_id = f"r{number}-{count}"
            priority = draw.choice([0, 0, 1000])
            more = {"alone_tokens": draw.randint(1, 5)} if draw.random() < 0.1 else {}
            submission = self.models.add_request(
                message(request_id, model=draw.choice("abcd"), priority=priority, **more), self.on_events
            )
            self.submitted.add(request_id)
            if submission.error is not None:
                self.fail(submission.request)
            self.admit()
            if draw.random() < 0.2:
                request = self.models.find_request(f"r{number}-{draw.randint(0, count)}")
                if request is not None:
                    self.fail(request)
            time.sleep(0.004 * draw.random())

    def orders(self, number: int) -> None:
        draw = random.Random(self.seed * 2000 + number)
        while not self.stopping.is_set():
            name = draw.choice("abcd")
            match draw.randint(0, 4):
                case 0:
                    self.models.request_load(name, pinned=False)
                case 1 | 2:
                    resident = self.models.request_unload(name)
                    if resident is not None:
                        self.guarded(self.unload, resident)
                case 3:
                    self.models.set_pinned(name, False)
                case 4:
                    expired = self.models.expire()
                    for resident in expired.idle:
                        self.guarded(self.unload, resident)
                    for resident in expired.failed:
                        self.models.remove(resident, has_messages=draw.random() < 0.5)
            time.sleep(0.001)

    # --- what the loader does

    def loader(self) -> None:
        draw = random.Random(self.seed)
        while (resident := self.models.next_to_load()) is not None:
            self.loads += 1
            wanted = plan(resident.checkpoint_id, keep_alive_s=draw.choice([-1, 0.0]))
            try:
                while (victim := self.models.reserve(resident, wanted, deadline=time.monotonic() + 0.2)) is not None:
                    self.guarded(self.unload, victim)
                if draw.random() < 0.1:
                    raise ModelLoadFailed("as drawn.")
            except BlazrError as error:
                for request in self.models.mark_failed(resident, error):
                    self.fail(request)
                continue
            engine = Engine(FakeLLM(), FakeLoop())  # type: ignore[arg-type]
            with self.lock:
                self.engines[id(engine)] = (resident, {})
            has_to_go = self.models.mark_ready(resident, wanted, engine, memory_bytes=10, load_s=0.0)
            self.admit()
            if has_to_go:
                self.guarded(self.unload, resident)

    def unload(self, resident: Resident) -> None:
        engine = self.models.take_engine(resident)
        if engine is None:
            return
        assert resident.num_in_engine == 0
        self.models.remove(resident, has_messages=False)

    # --- what the engines do

    def steps(self) -> None:
        while not self.stopping.is_set():
            with self.lock:
                engines = list(self.engines.values())
            for resident, running in engines:
                with self.lock:
                    step = dict(running)
                    for request_id, index in step.items():
                        if index == 2:
                            del running[request_id]
                        else:
                            running[request_id] += 1
                events = [
                    event(request_id, "done" if index == 2 else "delta", index, token_ids=[1])
                    for request_id, index in step.items()
                ]
                for on_events, group in self.models.record_events(resident, events).items():
                    on_events(group)
                self.admit()
            time.sleep(0.0005)

    def on_events(self, events: list[Any]) -> None:
        for item in events:
            if item["type"] == "done":
                self.ended[item["request_id"]] += 1

    # --- what always holds

    def check(self) -> None:
        models = self.models
        with models._condition:
            assert sum(item.memory_bytes for item in models._residents.values()) <= 20
            in_engine: Counter[int] = Counter()
            interactive: Counter[int] = Counter()
            for request_id, request in models._requests.items():
                assert request.request_id == request_id
                resident = request.resident
                in_engine[id(resident)] += request.in_engine
                interactive[id(resident)] += request.in_engine and request.is_interactive
                if request.in_engine:
                    assert resident.engine is not None
                    assert request not in resident.waiting
            alone = models._entry.alone
            assert models._entry.num_inside == sum(in_engine.values())
            assert alone is None or sum(in_engine.values()) == 1
            for name, resident in models._residents.items():
                assert resident.checkpoint_id == name
                assert resident.num_in_engine == in_engine[id(resident)]
                assert resident.num_interactive == interactive[id(resident)]
                assert (resident.engine is not None) <= (resident.status in ("ready", "unloading"))
                assert len(set(map(id, resident.waiting))) == len(resident.waiting)
                if resident.status == "ready":
                    assert not resident.waiting
                    assert models._must_admit or resident.paused == (resident.num_interactive >= 4)
                for request in resident.waiting:
                    assert models._is_open(request)
                    assert request.resident is resident


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Let threads take turns 500 times as often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("frequent_switches")
@pytest.mark.parametrize("seed", range(3))
def test_loads_evictions_unloads_submits_and_cancels_at_once_keep_the_books(seed, monkeypatch):
    """Six clients, two that give orders, a loader and engines; two of four models fit."""
    monkeypatch.setattr(resident_models, "FAILED_FOR_S", 0.005)
    models = table(budget=20)
    traffic = Traffic(models, seed)
    helpers = [traffic.guarded(traffic.loader), traffic.guarded(traffic.steps)]
    helpers += [traffic.guarded(traffic.orders, number) for number in range(2)]
    clients = [traffic.guarded(traffic.client, number) for number in range(6)]
    while any(thread.is_alive() for thread in clients):
        traffic.check()
        models.describe()
        time.sleep(0.002)
    wait_until(lambda: traffic.errors or not models.num_requests)
    traffic.stopping.set()
    traffic.check()
    assert models.drain(1.0).unfinished == []
    for thread in helpers:
        thread.join(60)
        assert not thread.is_alive()
    assert traffic.errors == []
    assert len(traffic.submitted) == 6 * 150
    assert traffic.ended == dict.fromkeys(traffic.submitted, 1)
    assert traffic.loads > 10
