"""StartQueue: turns of callers and models, few threads for each, a limit of waiting text, and what ends in between."""

from __future__ import annotations

import threading
import time

import pytest

from inference.errors import QueueFull
from inference.llm.llm import LLM
from inference.worker import start_queue
from inference.worker.interfaces import LoadPlan
from inference.worker.resident import ActiveRequest, Resident
from inference.worker.start_queue import NumPreparations, StartQueue
from tests.inference.llm.harness import OPTIONS, Checkpoint
from tests.inference.worker.fakes import message, not_resized, wait_until

JOB = {"priority": 1_000_000}


class Preparation:
    """Records the requests that are prepared; each one waits for ``gate``."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.begun: list[str] = []

    def __call__(self, request):
        self.begun.append(request.request_id)
        assert self.gate.wait(60)


@pytest.fixture
def preparation():
    found = Preparation()
    yield found
    found.gate.set()


@pytest.fixture
def starts(preparation):
    found = StartQueue(preparation)
    yield found
    preparation.gate.set()
    found.stop()


def request(request_id, caller="a", *, model="m", max_num_seqs=100, **members):
    plan = LoadPlan(model, 1, -1, max_num_seqs, load=lambda progress: None, resized=not_resized)
    item = message(request_id, model=model, owner=caller, **members)
    return ActiveRequest(item, lambda events: None, Resident(model, plan=plan))


def test_a_model_and_a_caller_use_half_of_the_threads(starts, preparation):
    for number in range(4):
        starts.add(request(f"a-m-{number}", "a"))
        starts.add(request(f"b-m-{number}", "b"))
    for number in range(2):
        starts.add(request(f"b-n-{number}", "b", model="n"))
    wait_until(lambda: len(preparation.begun) == 3)
    time.sleep(0.05)
    assert sorted(preparation.begun) == ["a-m-0", "b-m-0", "b-n-0"]
    assert starts.num_preparations("m") == NumPreparations(6, 2)
    starts.add(request("c-n", "c", model="n"))
    wait_until(lambda: "c-n" in preparation.begun)


def test_callers_take_turns(starts, preparation):
    for number in range(4):
        starts.add(request(f"a{number}", "a"))
    for caller in ("b", "c"):
        starts.add(request(caller, caller))
    wait_until(lambda: len(preparation.begun) == 2)
    assert starts.waiting_ids("m") == ["a2", "b", "c", "a3"] and starts.waiting_ids("n") == []
    preparation.gate.set()
    wait_until(lambda: len(preparation.begun) == 6)
    assert preparation.begun[:2] == ["a0", "a1"]
    assert set(preparation.begun[2:4]) & {"b", "c"}
    assert preparation.begun.index("c") < preparation.begun.index("a3")


def test_clients_come_before_jobs(starts, preparation):
    for number in range(3):
        starts.add(request(f"job{number}", **JOB))
    wait_until(lambda: len(preparation.begun) == 2)
    starts.add(request("client"))
    preparation.gate.set()
    wait_until(lambda: len(preparation.begun) == 4)
    assert preparation.begun[2:] == ["client", "job2"]


def test_requests_wait_for_a_place_in_the_engine_by_turns(starts, preparation):
    preparation.gate.set()
    for number in range(6):
        starts.add(request(f"a{number}", max_num_seqs=1))
    starts.add(request("b", "b", max_num_seqs=1))
    wait_until(lambda: len(preparation.begun) == 3)
    assert (sorted(preparation.begun), starts.num_preparations("m").waiting) == (["a0", "a1", "a2"], 4)
    starts.add(request("job", max_num_seqs=1, **JOB))
    wait_until(lambda: "job" in preparation.begun)
    for number in range(2):
        starts.remove(f"a{number}")
    wait_until(lambda: len(preparation.begun) == 6)
    assert "b" in preparation.begun


def test_each_sequence_of_a_request_takes_a_place(starts, preparation):
    preparation.gate.set()
    starts.add(request("a", max_num_seqs=1, params={"n": 3}))
    wait_until(lambda: preparation.begun == ["a"])
    starts.add(request("b", "b", max_num_seqs=1))
    assert starts.num_preparations("m").waiting == 1
    starts.remove("a")
    wait_until(lambda: preparation.begun == ["a", "b"])


@pytest.mark.parametrize("members", [{"state": "a" * 64}, {"saves_state": {"model": "m"}}, {"echo": True}])
def test_what_reads_a_file_or_a_text_keeps_nobody_s_thread(starts, preparation, members):
    """The caller's thread takes a worker's messages, or is an engine's."""
    preparation.gate.set()
    threads = []
    starts._prepare = lambda request: threads.append(threading.current_thread())
    starts.add(request("quick", prompt={"token_ids": [1]}))
    starts.add(request("slow", prompt={"token_ids": [1]}, **members))
    wait_until(lambda: len(threads) == 2)
    assert threads[0] is threading.current_thread() and threads[1] is not threading.current_thread()


def test_token_ids_are_prepared_at_once_while_there_is_a_place(starts, preparation):
    preparation.gate.set()
    here = threading.current_thread()
    threads = []
    starts._prepare = lambda request: threads.append(threading.current_thread())
    for number in range(3):
        starts.add(request(f"a{number}", max_num_seqs=1, prompt={"token_ids": [1]}))
    assert threads == [here] * 3
    starts.add(request("later", max_num_seqs=1, prompt={"token_ids": [1]}))
    assert (len(threads), starts.num_preparations("m").waiting) == (3, 1)
    starts.remove("a0")
    wait_until(lambda: len(threads) == 4)


def test_waiting_text_is_limited(starts, preparation, monkeypatch):
    monkeypatch.setattr(start_queue, "MAX_CALLER_CHARS", 100)
    monkeypatch.setattr(start_queue, "MAX_MODEL_CHARS", 150)
    for number in range(2):
        starts.add(request(f"a{number}"))
    starts.add(request("long", text="x" * 90))
    with pytest.raises(QueueFull, match=r"has 20 characters, and 90 of your prompts wait .* at most 100 may") as caught:
        starts.add(request("longer", prompt={"messages": [{"role": "user", "content": "x" * 16}]}))
    assert caught.value.retry_after_s
    starts.add(request("other", "b", text="x" * 60))
    with pytest.raises(QueueFull, match="150 of all callers' prompts"):
        starts.add(request("third", "c", text="x" * 10))
    starts.remove("long")
    starts.add(request("longer", text="x" * 20))
    assert starts.num_preparations("m") == NumPreparations(2, 2)


def test_nothing_stays_of_requests_that_have_ended(starts, preparation):
    names = [f"a{number}" for number in range(5)]
    for name in names:
        starts.add(request(name))
    wait_until(lambda: len(preparation.begun) == 2)
    for name in [*names, "unknown"]:
        starts.remove(name)
    preparation.gate.set()
    wait_until(lambda: starts._num_free == start_queue.NUM_THREADS)
    assert (len(preparation.begun), dict(starts._models), starts._starts, starts._preparing) == (2, {}, {}, {})


def test_one_caller_does_not_wait_behind_the_flood_of_another(bench, tmp_path):
    """A keeps 1,000 requests open: how many of them end while one of B waits for its first token."""
    checkpoint = Checkpoint(tmp_path)
    b = bench(
        max_num_seqs=OPTIONS.max_num_seqs,
        make=lambda _: LLM.load(checkpoint.spec, checkpoint.tokenizer, checkpoint.files, OPTIONS),
    )
    params = {"params": {"max_tokens": 100, "ignore_eos": True, "temperature": 0.0}}
    sent = iter(range(100_000))
    is_flooding, num_ended = True, 0

    def flood(events):
        nonlocal num_ended
        for event in events:
            num_ended += event["type"] in ("done", "error")
            if event["type"] in ("done", "error") and is_flooding:
                b.manager.submit(message(f"a{next(sent)}", owner="a", **params), flood)

    first_tokens: dict[str, int] = {}

    def serve(events):
        for event in events:
            if event["type"] == "delta":
                first_tokens.setdefault(event["request_id"], num_ended)
        b.client.on_events(events)

    for _ in range(1000):
        b.manager.submit(message(f"a{next(sent)}", owner="a", **params), flood)
    wait_until(lambda: b.statuses() == {"a": "ready"})
    waits = []
    for number in range(4):
        name, before = f"b{number}", num_ended
        b.manager.submit(message(name, owner="b", **params), serve)
        wait_until(lambda name=name: name in first_tokens)
        waits.append(first_tokens[name] - before)
        wait_until(lambda before=num_ended: num_ended > before + 10)
    is_flooding = False
    b.client.wait(*(f"b{number}" for number in range(4)))
    assert [len(b.client.tokens(f"b{number}")) for number in range(4)] == [100] * 4
    assert max(waits) <= 100, waits  # 1,000 in the order of their coming
