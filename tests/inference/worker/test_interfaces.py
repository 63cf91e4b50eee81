"""The parts that the worker declares are those that exist: same members, same parameters."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from inference.llm.llm import LLM
from inference.worker.interfaces import LoadPlan, Presence, ServedLLM
from inference.worker.presence import RedisPresence
from tests.inference.worker.fakes import FakeLLM, FakePresence, not_resized


def members(protocol: type) -> dict[str, Any]:
    found = {}
    for base in reversed(protocol.__mro__):
        if getattr(base, "_is_protocol", False):
            found |= {name: value for name, value in vars(base).items() if not name.startswith("_")}
    return found


def parameters(function: Any) -> list[tuple[Any, Any]]:
    """Kinds and defaults; names count only where callers may use them."""
    return [
        (item.kind is item.KEYWORD_ONLY and item.name, item.default)
        for item in inspect.signature(function).parameters.values()
    ]


@pytest.mark.parametrize(
    ("protocol", "implementation"),
    [(ServedLLM, LLM), (ServedLLM, FakeLLM), (Presence, RedisPresence), (Presence, FakePresence)],
)
def test_implementations_have_what_the_worker_calls(protocol, implementation):
    declared = members(protocol)
    assert len(declared) >= 6
    for name, value in declared.items():
        if isinstance(value, property):
            assert name in ("adapters", "max_model_len", "step_tokens")
            continue
        assert parameters(getattr(implementation, name)) == parameters(value), name


def test_a_plan_is_neither_pinned_nor_explained_unless_it_says_so():
    plan = LoadPlan("tiny", 10, -1, max_num_seqs=4, load=lambda progress: FakeLLM(), resized=not_resized)
    assert (plan.pinned, plan.sizes) == (False, {})
    with pytest.raises(AttributeError):
        plan.pinned = True
