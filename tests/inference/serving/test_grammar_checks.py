"""Grammars in the web process: after the limits of the key, in turns, and without leaving anything open."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest

from inference.access.admission import admit
from inference.errors import InvalidSamplingParams, QueueFull, RateLimitExceeded
from inference.serving import grammar_checks as checks
from inference.serving import served_models
from inference.serving.generation import generation_start
from inference.serving.grammar_checks import GrammarChecks
from inference.text.grammars.checker import GrammarLimits
from inference.values.grammar import Grammar
from inference.values.limits import KeyLimits
from inference.values.plan import GenerationPlan
from inference.values.principal import Principal, principal_set
from inference.values.sampling_params import SamplingParams
from inference.values.served_model import ServedModel
from inference.values.tokenizer_spec import TokenizerSpec

BROKEN = Grammar("regex", "(a", "guided_regex")
SERVED = ServedModel("a", "tiny", 0, 100331, 100, TokenizerSpec("builtin", 100331, name="cl100k_base"), "1")
PLAN = GenerationPlan("completion", "tiny", ({"token_ids": [1, 2]},), SamplingParams(seed=1, grammar=BROKEN))
KEY = Principal("key", "key:1", "a", limits=KeyLimits(requests=2, concurrent=1))


@pytest.fixture
def served(redis_urls_in_settings, monkeypatch):
    served_models.served_model_cache_clear()
    monkeypatch.setattr(served_models, "_read", lambda name, known: SERVED)
    yield
    served_models.served_model_cache_clear()


@pytest.mark.django_db(transaction=True)
async def test_limits_come_before_grammars_and_a_refused_grammar_leaves_nothing_open(served):
    for _ in range(2):  # the second one is admitted because the first isn't open any more
        with pytest.raises(InvalidSamplingParams, match="unclosed group"):
            await generation_start(plan=PLAN, principal=KEY)
        await asyncio.sleep(0.1)
    with pytest.raises(RateLimitExceeded, match="2 requests a minute"):
        await generation_start(plan=PLAN, principal=KEY)
    await admit(replace(KEY, tenant="key:2"), tokens=1)


@pytest.mark.parametrize("grammar", [Grammar("regex", "a" * 1001), Grammar("json_schema", {"enum": [1] * 400})])
async def test_the_digest_of_a_grammar_that_is_too_long_is_not_computed(monkeypatch, grammar):
    monkeypatch.setattr(Grammar, "digest", property(lambda self: pytest.fail("a digest")))
    with pytest.raises(InvalidSamplingParams, match=r"bytes, at most 1,000 are compiled; shorten it\."):
        await GrammarChecks(GrammarLimits(max_bytes=1000)).check(grammar)


async def test_callers_take_turns_and_one_caller_waits_with_few(monkeypatch):
    monkeypatch.setattr(checks, "MAX_WAITING_EACH", 2)
    found = GrammarChecks(GrammarLimits())
    gate, order = threading.Event(), []

    def check(grammar):
        order.append(grammar.value)
        assert gate.wait(60)

    monkeypatch.setattr(found._checker, "check", check)

    async def send(caller, number):
        principal_set(Principal("key", caller, caller))
        await found.check(Grammar("regex", f"{caller}{number}", "guided_regex"))

    tasks = []
    for number in range(3):
        tasks.append(asyncio.create_task(send("a", number)))
        await asyncio.sleep(0)
    with pytest.raises(QueueFull, match="2 grammars of yours wait already"):
        await asyncio.create_task(send("a", 3))
    tasks.append(asyncio.create_task(send("b", 0)))
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*tasks)
    assert order == ["a0", "a1", "b0", "a2"]
