"""White space in JSON that follows a grammar: bounded, however much the weights want it.

Weights are random; white space and the marks that end a value get an extra, so that outputs hold both and some end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from inference.errors import InvalidSamplingParams
from inference.llm.llm import LLM
from inference.text.grammars.compiler import GrammarCompiler
from inference.text.tool_calls.grammar import calls_grammar, output_grammar
from inference.values.chat_options import ChatOptions
from inference.values.grammar import Grammar
from tests.inference.llm.harness import deltas, message, run, text_of

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
        "inner": {"type": "object", "properties": {"flag": {"type": "boolean"}}, "required": ["flag"]},
    },
    "required": ["name", "sizes", "inner"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "store", "parameters": SCHEMA}}
CALLS = ChatOptions(tools=(TOOL,), tool_choice="required", parallel=False)
THINKING = ("<think>", "</think>")

TEXT_IN_QUOTES = re.compile(r'"(?:[^"\\]|\\.)*"?')
RUN_OF_SPACE = re.compile(r"\s+")
ALLOWED = re.compile(r" |\n {0,32}")
NUM_TOKENS = 160


def runs_of_space(text: str) -> list[str]:
    """White space outside of strings."""
    return RUN_OF_SPACE.findall(TEXT_IN_QUOTES.sub('""', text))


def check(text: str, is_finished: bool) -> None:
    for found in runs_of_space(text):
        # The end may be that of the tokens and not of the run.
        assert ALLOWED.fullmatch(found), repr(text)
    if is_finished:
        assert isinstance(json.loads(text), dict)


def drawn(llm: LLM, grammar: Grammar, seed: int, temperature: float) -> tuple[str, bool]:
    """An output under a grammar with random logits, and whether it ended by itself."""
    rng = np.random.default_rng(seed)
    size = llm.tokenizer.vocab_size
    (constraint,) = GrammarCompiler(llm.tokenizer).constraints(grammar, [[]], stop_ids=llm.tokenizer.eos_token_ids)
    extra = np.zeros(size)
    for mark, amount in ((" ", 3.0), ("\n", 4.0), ("\t", 4.0), ('"', 3.0), ("}", 2.0), ("]", 2.0)):
        extra[llm.tokenizer.encode(mark, add_special_tokens=False)] = amount
    token_ids: list[int] = []
    while len(token_ids) < NUM_TOKENS and not constraint.is_finished:
        mask = constraint.mask()
        assert constraint.error is None
        logits = (rng.standard_normal(size) + extra) / temperature
        allowed = np.zeros(size, dtype=bool)
        allowed[mask.ids] = True
        logits[allowed != mask.allows] = -np.inf
        token_id = int(np.argmax(logits + rng.gumbel(size=size)))
        constraint.accept(token_id)
        if token_id not in llm.tokenizer.eos_token_ids:
            token_ids.append(token_id)
    return llm.tokenizer.decode(token_ids), constraint.is_finished


GRAMMARS: dict[str, Callable[[], Grammar]] = {
    "schema": lambda: Grammar("json_schema", SCHEMA),
    "any object": lambda: Grammar("json_object"),
    "answer behind thinking": lambda: output_grammar(Grammar("json_schema", SCHEMA), THINKING),
    "tool call": lambda: calls_grammar(CALLS, "hermes", "", None),
    "call of llama": lambda: calls_grammar(CALLS, "llama3_json", "", None),
}


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("name", GRAMMARS)
def test_no_run_of_white_space_is_longer_than_an_indentation(llm: LLM, name: str, temperature: float) -> None:
    found = GRAMMARS[name]()
    num_finished = num_runs = 0
    for seed in range(8):
        text, is_finished = drawn(llm, found, seed, temperature)
        text = text.partition("</think>")[2].lstrip() if text.startswith("<think>") else text
        text = text.removeprefix("<tool_call>\n").partition("\n</tool_call>")[0]
        check(text, is_finished and "<" not in text and ";" not in TEXT_IN_QUOTES.sub("", text))
        num_finished += is_finished
        num_runs += len(runs_of_space(text))
    assert num_runs > 2
    if name not in ("any object", "answer behind thinking"):  # which may go on for ever
        assert num_finished > 0


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("kind", ["json_schema", "json_object"])
def test_a_random_network_writes_compact_json(llm: LLM, kind: str, temperature: float) -> None:
    wanted = {"kind": kind, "value": SCHEMA if kind == "json_schema" else None}
    bias = {
        str(token_id): amount
        for mark, amount in ((" ", 4.0), ("\n", 6.0), ("\t", 8.0), ('"', 5.0), ("}", 4.0))
        for token_id in llm.tokenizer.encode(mark, add_special_tokens=False)
    }
    asked = [
        message(f"{seed}", grammar=wanted, seed=seed, temperature=temperature, n=2, ignore_eos=False, max_tokens=160,
                prompt={"text": "the "}, logit_bias=bias)
        for seed in range(4)
    ]  # fmt: skip
    for events in run(llm, *asked).values():
        for choice in range(2):
            check(text_of(events, choice), deltas(events, choice)[-1]["finish_reason"] == "stop")


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [
        ('{"a": 1}', True),
        ('{\n  "a": [\n    1\n  ]\n}', True),
        ("{\n" + " " * 32 + '"a": 1}', True),
        ("{\n" + " " * 33 + '"a": 1}', False),
        ('{  "a": 1}', False),
        ('{\n\n"a": 1}', False),
        ('{\t"a": 1}', False),
        ('{\r\n"a": 1}', False),
        (' {"a": 1}', False),
    ],
)
def test_the_bound_itself(llm: LLM, text: str, is_allowed: bool) -> None:
    token_ids = [llm.tokenizer.encode(mark, add_special_tokens=False) for mark in text]
    constraints = GrammarCompiler(llm.tokenizer).constraints
    (constraint,) = constraints(Grammar("json_object"), [[]], stop_ids=llm.tokenizer.eos_token_ids)
    followed = True
    for token_id in (item for ids in token_ids for item in ids):
        followed = followed and constraint.allows(token_id)
        if followed:
            constraint.accept(token_id)
    assert followed is is_allowed


def test_a_pattern_of_the_client_is_followed_to_the_letter(llm: LLM) -> None:
    """The bound is for JSON's white space only."""
    assert re.fullmatch(r"\s{40}", drawn(llm, Grammar("regex", r"[\n\t ]{40}"), 1, 1.0)[0])
    with pytest.raises(InvalidSamplingParams):
        drawn(llm, Grammar("json_schema", {"type": "nonsense"}), 1, 1.0)
