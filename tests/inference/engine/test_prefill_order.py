"""Callers share the prefill tokens of the steps."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from inference.engine import prefill_order
from inference.engine.prefill_order import PrefillOrder
from tests.inference.engine.fakes import (
    Collected,
    FakeNetwork,
    collect,
    expected_tokens,
    make_engine,
    make_spec,
    request,
    run,
)

SPEC = make_spec("hybrid")
LONG = 900


@dataclass
class Prompt:
    """What the order knows of a request."""

    source: SimpleNamespace
    arrival: int
    left: int


def steps_of_heavy(num_light: int, *, max_steps: int, budget: int = 2048) -> int:
    """Steps until one prompt of 20 steps is computed beside callers that send a prompt of one step each, again and
    again, a step after the one before."""
    order, arrivals = PrefillOrder(), itertools.count()

    def prompt(caller: str, num_tokens: int) -> Prompt:
        return Prompt(SimpleNamespace(priority=0, caller=caller), next(arrivals), num_tokens)

    heavy = prompt("heavy", 20 * budget)
    waiting, returns = [heavy], {f"light{number}": 2 + number for number in range(num_light)}
    for step in range(max_steps):
        for caller in [caller for caller, at in returns.items() if at <= step]:
            waiting.append(prompt(caller, budget))
            del returns[caller]
        left = budget
        for item in order.iterate(list(waiting), {}):
            if left == 0:
                break
            count = min(left, item.left)
            order.record(item, count)
            item.left -= count
            left -= count
            if item.left == 0:
                waiting.remove(item)
                returns[item.source.caller] = step + 2
        if heavy.left == 0:
            return step + 1
    raise AssertionError(f"{heavy.left} tokens are left after {max_steps} steps")


@pytest.mark.parametrize("num_light", [1, 3, 4, 8])
def test_callers_that_return_with_one_prompt_at_a_time_starve_nobody(num_light):
    assert steps_of_heavy(num_light, max_steps=400) <= 20 * (num_light + 2)


def test_counts_of_callers_that_left_are_bounded(monkeypatch):
    monkeypatch.setattr(prefill_order, "MAX_AWAY", 5)
    order = PrefillOrder()
    stays = Prompt(SimpleNamespace(priority=0, caller="stays"), 0, 1)
    for number in range(20):
        new = Prompt(SimpleNamespace(priority=0, caller=f"new{number}"), number + 1, 1)
        list(order.iterate([stays, new], {}))
        order.record(new, 10)
    list(order.iterate([stays], {}))
    assert len(order._counts) == 6


def of(caller: str, name: str, prompt, **options):
    return replace(request(name, prompt, **options), caller=caller)


def engine_for(num_seqs: int = 64, *, budget: int = 512, **options):
    sizes = {
        "max_model_len": 1024,
        "num_blocks": 65 * num_seqs,
        "block_size": 16,
        "num_state_slots": num_seqs + 1,
        "max_num_seqs": num_seqs,
        "max_num_batched_tokens": budget,
    }
    return make_engine(network=FakeNetwork(SPEC), **(sizes | options))


def first_tokens(engine, max_steps: int = 1000) -> tuple[dict[str, int], dict[str, Collected]]:
    """Step until all requests have ended; return the step of each request's first token, and all outputs."""
    steps: dict[str, int] = {}
    found: dict[str, Collected] = {}
    for number in range(1, max_steps):
        outputs = engine.step()
        collect(outputs, found)
        for output in outputs:
            steps.setdefault(output.request_id, number)
        if not engine.has_unfinished():
            return steps, found
    raise AssertionError("requests never end")


@pytest.mark.parametrize("num_seqs", [64, 8], ids=["all run", "most wait"])
def test_a_short_prompt_is_not_behind_the_sixty_long_ones_of_another_caller(num_seqs):
    engine = engine_for(num_seqs)
    prompts = {f"many{i}": [i, *range(LONG - 1)] for i in range(60)}
    prompts = {name: [token % 97 for token in prompt] for name, prompt in prompts.items()}
    for name, prompt in prompts.items():
        engine.add_request(of("many", name, prompt, max_tokens=2))
    for _ in range(3):
        engine.step()
    engine.add_request(of("one", "one", [5, 6, 7], max_tokens=2))
    steps, found = first_tokens(engine)
    assert steps["one"] <= 2
    assert max(steps.values()) >= 60 * LONG // 512 - 3, "the others need a hundred steps"
    assert found["one"].tokens == expected_tokens(SPEC, [5, 6, 7], 2)
    assert found["many59"].tokens == expected_tokens(SPEC, prompts["many59"], 2)


def test_callers_get_the_same_number_of_tokens_whatever_their_number_of_requests():
    engine = engine_for(32, budget=100)
    for i in range(20):
        engine.add_request(of("many", f"many{i}", range(40), max_tokens=1))
    for i in range(3):
        engine.add_request(of("few", f"few{i}", range(80), max_tokens=1))
    steps, _ = first_tokens(engine)
    # "few" has 240 tokens: done when both have had about as many, one step more or less.
    assert 4 <= max(steps[f"few{i}"] for i in range(3)) <= 6
    assert [steps[f"many{i}"] for i in range(20)] == sorted(steps[f"many{i}"] for i in range(20))


def test_a_caller_that_returns_has_not_saved_up_turns():
    engine = engine_for(16, budget=32)
    engine.add_request(of("idle", "early", [1], max_tokens=1))
    engine.step()
    engine.add_request(of("busy", "busy", range(90), max_tokens=1))
    engine.add_request(of("busy", "busy2", range(90), max_tokens=1))
    engine.step()
    engine.add_request(of("idle", "back", range(90), max_tokens=1))
    steps, _ = first_tokens(engine)
    # Equal turns from now on: neither the 32 tokens that "busy" had alone nor the step before them count.
    assert steps["busy"] < steps["back"] < steps["busy2"]


def test_priority_comes_before_turns_and_has_turns_of_its_own():
    engine = engine_for(16, budget=32)
    for i in range(8):
        engine.add_request(of("a", f"urgent{i}", range(32), priority=0, max_tokens=1))
    engine.add_request(of("b", "batch", range(32), priority=10, max_tokens=1))
    for _ in range(4):
        engine.step()
    engine.add_request(of("b", "b", range(32), priority=0, max_tokens=1))
    steps, _ = first_tokens(engine)
    assert steps["batch"] == max(steps.values())
    assert steps["b"] == 2, "what its batch waits for gives no turns at another priority"


def test_a_long_prompt_that_waits_for_blocks_is_not_overtaken_by_new_callers():
    engine = engine_for(8, num_blocks=66, budget=64)
    engine.add_request(of("a", "running", range(90), max_tokens=40))
    engine.step()
    engine.step()
    engine.add_request(of("a", "long", [token % 97 for token in range(1000)], max_tokens=1))
    order: list[str] = []
    for i in range(200):
        engine.add_request(of(f"new{i}", f"new{i}", [1], max_tokens=1))
        order += [output.request_id for output in engine.step() if output.finish_reason is not None]
        if "long" in order:
            break
    assert order[0] == "running" and "long" in order
    run(engine)


def test_requests_without_a_caller_are_served_by_arrival():
    engine = engine_for(8, budget=8)
    for i in range(6):
        engine.add_request(request(f"r{i}", range(12), max_tokens=1))
    steps, _ = first_tokens(engine)
    assert steps == {f"r{i}": -(-12 * (i + 1) // 8) for i in range(6)}
