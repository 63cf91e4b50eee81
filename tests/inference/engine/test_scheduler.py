"""What the scheduler does in given situations."""

from __future__ import annotations

import pytest

from inference.engine.prefill_order import PrefillOrder
from inference.engine.request import FinishReason
from inference.errors import OutOfCacheBlocks
from tests.inference.engine.fakes import (
    FakeNetwork,
    assert_all_free,
    collect,
    expected_tokens,
    make_engine,
    make_spec,
    request,
    run,
)


def test_prompts_are_computed_in_chunks_while_others_decode():
    network = FakeNetwork(make_spec("hybrid"))
    engine = make_engine(network=network, max_num_batched_tokens=8)
    engine.add_request(request("short", [1, 2], max_tokens=8))
    engine.step()
    engine.add_request(request("long", range(30), max_tokens=2))
    run(engine)
    # The running request gets its token in every step, the prompt what is left of the 8.
    assert network.batches[:6] == [(2, 0), (8, 1), (8, 1), (8, 1), (8, 1), (3, 1)]


def test_several_prompts_share_a_step():
    network = FakeNetwork(make_spec("paged"))
    run(make_engine(network=network), *(request(f"r{i}", range(6), max_tokens=1) for i in range(5)))
    assert network.batches == [(30, 0)]


def test_no_more_than_max_num_seqs_run():
    engine = make_engine(max_num_seqs=3, num_state_slots=9)
    for i in range(7):
        engine.add_request(request(f"r{i}", [i, i], max_tokens=5))
    engine.step()
    assert (engine.stats().num_running, engine.stats().num_waiting) == (3, 4)
    run(engine)


def test_slots_limit_what_runs():
    engine = make_engine("slots", num_state_slots=3)
    for i in range(4):
        engine.add_request(request(f"r{i}", [i, i], max_tokens=5))
    engine.step()
    assert (engine.stats().num_running, engine.stats().num_waiting) == (2, 2)
    run(engine)


def test_order_is_priority_then_arrival():
    engine = make_engine(max_num_seqs=1)
    for name, priority in (("a", 5), ("b", 5), ("c", 0), ("d", 5), ("e", 0)):
        engine.add_request(request(name, [1], priority=priority, max_tokens=1))
    order = [output.request_id for _ in range(5) for output in engine.step()]
    assert order == ["c", "e", "a", "b", "d"]


def test_an_urgent_request_preempts_a_lesser_one():
    engine = make_engine("hybrid", max_num_seqs=2)
    spec = make_spec("hybrid")
    for name in ("batch1", "batch2"):
        engine.add_request(request(name, [1, 2, 3], priority=10, max_tokens=20))
    found: dict = {}
    for _ in range(3):
        collect(engine.step(), found)
    engine.add_request(request("urgent", [4, 5], priority=0, max_tokens=4))
    first = engine.step()
    collect(first, found)
    assert {output.request_id for output in first} == {"batch1", "urgent"}, "the newer of the lesser ones gives way"
    while engine.has_unfinished():
        collect(engine.step(), found)
    assert found["urgent"].tokens == expected_tokens(spec, [4, 5], 4)
    assert found["batch1"].tokens == found["batch2"].tokens == expected_tokens(spec, [1, 2, 3], 20)
    assert engine.stats().num_preemptions == 1


def test_equal_priority_never_preempts():
    engine = make_engine(max_num_seqs=1)
    engine.add_request(request("first", [1], max_tokens=10))
    engine.step()
    engine.add_request(request("second", [1], max_tokens=1))
    found = run(engine)
    assert engine.stats().num_preemptions == 0 and len(found["second"].tokens) == 1


def test_an_urgent_prompt_goes_before_the_rest_of_a_lesser_one():
    network = FakeNetwork(make_spec("paged"))
    engine = make_engine(network=network, max_num_batched_tokens=8)
    engine.add_request(request("batch", range(40), priority=9, max_tokens=1))
    engine.step()
    engine.add_request(request("urgent", range(8), max_tokens=1))
    assert [output.request_id for output in engine.step()] == ["urgent"]
    assert engine.stats().num_preemptions == 0, "there was room for both"
    run(engine)


def test_the_newest_is_preempted_and_recomputed():
    spec = make_spec("hybrid")
    # 9 usable blocks of 4 tokens: three sequences of 4 + 12 tokens need 12.
    engine = make_engine("hybrid", num_blocks=10)
    prompts = {name: [i, i + 1, i + 2, i + 3] for i, name in enumerate("abc")}
    found = run(engine, *(request(name, prompt, max_tokens=13) for name, prompt in prompts.items()))
    for name, prompt in prompts.items():
        assert found[name].tokens == expected_tokens(spec, prompt, 13)
    assert engine.stats().num_preemptions >= 1
    finished_after = {name: entry.finals[0] for name, entry in found.items()}
    assert finished_after["a"].finish_reason is FinishReason.LENGTH


def test_nobody_overtakes_a_long_prompt_that_waits_for_blocks():
    engine = make_engine("paged", num_blocks=11, max_model_len=60)
    engine.add_request(request("running", range(12), max_tokens=12))
    engine.step()
    engine.add_request(request("long", range(40, 72), max_tokens=1))
    engine.add_request(request("short", [1], max_tokens=1))
    order = []
    while engine.has_unfinished():
        order += [output.request_id for output in engine.step() if output.finish_reason is not None]
    assert order == ["running", "long", "short"]


def test_nobody_takes_the_room_of_one_who_just_gave_way():
    """An urgent request evicts a large one; a small one of least priority must not slip in before it."""
    engine = make_engine("paged", num_blocks=11, max_model_len=40)
    engine.add_request(request("large", range(31), priority=10, max_tokens=4))
    found: dict = {}
    collect(engine.step(), found)
    engine.add_request(request("urgent", range(40, 54), priority=0, max_tokens=3))
    engine.add_request(request("small", [1], priority=20, max_tokens=1))
    order = []
    while engine.has_unfinished():
        outputs = engine.step()
        collect(outputs, found)
        order += [output.request_id for output in outputs if output.finish_reason is not None]
    assert order[0] == "urgent" and engine.stats().num_preemptions == 1
    assert found["large"].tokens == expected_tokens(make_spec("paged"), range(31), 4)
    assert order.index("small") > 0


def test_a_request_that_never_fits_is_refused():
    engine = make_engine("paged", num_blocks=5)
    with pytest.raises(OutOfCacheBlocks, match=r"need 5 blocks of state, the server has 4 \(16 tokens\)"):
        engine.add_request(request("large", range(10), max_tokens=8))
    assert run(engine, request("fits", range(10), max_tokens=7))["fits"].finish_reason is FinishReason.LENGTH
    unlimited = run(engine, request("open", range(10)))
    assert len(unlimited["open"].tokens) == 7, "without max_tokens it goes as far as blocks do"


def test_aborting_frees_at_once_wherever_the_request_is():
    engine = make_engine("hybrid", max_num_seqs=1, max_num_batched_tokens=4)
    for name in ("running", "waiting"):
        engine.add_request(request(name, range(9), max_tokens=5))
    engine.step()
    assert engine.abort_request("waiting") and engine.abort_request("running")
    assert not engine.abort_request("running") and not engine.abort_request("unknown")
    assert_all_free(engine)
    found: dict = {}
    collect(engine.step(), found)
    assert {entry.finish_reason for entry in found.values()} == {FinishReason.ABORT} and len(found) == 2
    assert not engine.has_unfinished()


def test_a_step_does_not_look_at_each_of_many_waiting_requests(monkeypatch):
    looked_at = []
    iterate = PrefillOrder.iterate

    def counted(self, *requests):
        for found in iterate(self, *requests):
            looked_at.append(found)
            yield found

    monkeypatch.setattr(PrefillOrder, "iterate", counted)
    engine = make_engine(max_num_seqs=3, num_state_slots=9, max_num_batched_tokens=64)
    for number in range(500):
        engine.add_request(request(f"r{number}", [1, 2], max_tokens=30))
    for _ in range(20):
        looked_at.clear()
        engine.step()
        assert len(looked_at) <= 5
    assert engine.stats().num_waiting > 400
