"""Grammars that are written to take for ever: refused in time, or followed within bounds; nobody else notices."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from inference.errors import InvalidSamplingParams
from inference.llm.llm import LLM
from inference.text.grammars import compiler, constraint
from inference.text.grammars.checker import GrammarChecker, GrammarLimits
from inference.text.grammars.compiler import GrammarCompiler
from inference.values.grammar import Grammar
from tests.inference.llm.harness import ids_of, run
from tests.inference.text.grammars.test_constraint_generation import ask


def nested(depth: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


HOSTILE = {
    "repetitions in repetitions": Grammar("regex", "((a{1,100}){1,100}){1,100}"),
    "a large repetition": Grammar("regex", "a{1000000}"),
    "a larger one": Grammar("regex", "a{1,999999999}"),
    "optional then required": Grammar("regex", "(a?){5000}a{5000}"),
    "many wildcards": Grammar("regex", "(.*a){30}"),
    "exponential automaton": Grammar("regex", "(a|b)*a(a|b){25}"),
    "unicode classes": Grammar("regex", r"\w{1,500}\p{L}{1,500}"),
    "overlapping parts in GBNF": Grammar(
        "gbnf", "root ::= " + " | ".join(f'root? [a-z]{{1,40}} "x{number}"' for number in range(140))
    ),
    "repetitions in repetitions in GBNF": Grammar("gbnf", 'root ::= ((("a" | "b"){1,99}){1,99}){1,99} root?'),
    "intersections": Grammar("regex", "(.*a.*b.*c.*d.*e.*){20}&~(.*x.*)"),
    "many alternatives": Grammar("regex", "|".join(f"x{number}.*y{number}" for number in range(3000))),
    "many choices": Grammar("choice", tuple(f"choice {number}" for number in range(10_000))),
    "a huge enum": Grammar("json_schema", {"enum": [f"v{number}" for number in range(15_000)]}),
    "deep nesting": Grammar("json_schema", nested(45)),
    "many properties": Grammar(
        "json_schema",
        {"type": "object", "properties": {f"p{number}": {"type": "integer"} for number in range(4000)}},
    ),
    "products of alternatives": Grammar(
        "json_schema",
        {
            "allOf": [
                {"anyOf": [{"type": "object", "properties": {f"k{one}": {"const": two}}} for two in range(10)]}
                for one in range(8)
            ]
        },
    ),
    "long lists of long lists": Grammar(
        "json_schema",
        {"type": "array", "minItems": 1000, "items": {"type": "array", "minItems": 1000, "items": {"type": "array"}}},
    ),
    "endless recursion": Grammar("json_schema", {"$ref": "#"}),
    "mutual recursion": Grammar(
        "json_schema", {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    ),
    "no way to end": Grammar("json_schema", {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
    "ambiguous rules": Grammar("lark", 'start: s\ns: s s | "a" | '),
    "left recursion": Grammar("lark", "start: start"),
    "doubling rules": Grammar(
        "lark", "start: r0\n" + "\n".join(f"r{n}: r{n + 1} r{n + 1}" for n in range(40)) + '\nr40: "a"?'
    ),
    "numbers of many digits": Grammar("json_schema", {"type": "number", "multipleOf": 1e-20}),
    "a large divisor": Grammar("json_schema", {"type": "integer", "multipleOf": 999_999_937}),
}


@pytest.fixture(scope="module")
def checker() -> Iterator[GrammarChecker]:
    found = GrammarChecker(GrammarLimits(compile_s=0.5))
    yield found
    found.close()


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_in_time_or_followed_within_bounds(llm: LLM, checker: GrammarChecker, name: str) -> None:
    cpu, started = time.process_time(), time.monotonic()
    try:
        checker.check(HOSTILE[name])
    except InvalidSamplingParams as error:
        assert "can't be compiled" in error.message and "Traceback" not in error.message and len(error.message) < 800
        assert time.monotonic() - started < 30  # 0.5 s of processor time, on a machine that may be busy
        return
    plain = ask("plain", seed=3, ignore_eos=True, max_tokens=40)
    alone = ids_of(run(llm, plain)["plain"])
    bound = ask("bound", grammar=HOSTILE[name].to_dict(), max_tokens=60, temperature=1.5, seed=1)
    try:
        events = run(llm, bound, plain)
    except InvalidSamplingParams:  # over the model's own vocabulary
        return
    assert ids_of(events["plain"]) == alone
    last = events["bound"][-1]
    assert last["type"] == "done" or "grammar can't be followed" in last["error"]["message"]
    assert time.process_time() - cpu < 20


def test_what_breaks_a_limit_is_remembered_and_the_next_one_compiles() -> None:
    checker = GrammarChecker(GrammarLimits(compile_s=0.05))
    slow = HOSTILE["many properties"]
    try:
        started = time.monotonic()
        with pytest.raises(InvalidSamplingParams, match="takes too long"):
            checker.check(slow)
        compiling_s = time.monotonic() - started
        assert checker.knows(slow)
        again_s = []
        for _ in range(5):  # other programs may delay one of them
            started = time.monotonic()
            with pytest.raises(InvalidSamplingParams, match=r"takes too long \(limit: 0.05 s"):
                checker.check(slow)
            again_s.append(time.monotonic() - started)
        assert min(again_s) < compiling_s / 3
        checker.check(Grammar("regex", "[ab]+"))
    finally:
        checker.close()


def test_a_size_is_checked_before_anything_is_compiled() -> None:
    checker = GrammarChecker(GrammarLimits(max_bytes=20))
    with pytest.raises(InvalidSamplingParams, match="guided_regex has 21 bytes, at most 20"):
        checker.check(Grammar("regex", "a" * 21, "guided_regex"))
    assert checker._sandbox._child is None


def test_an_output_whose_masks_take_too_long_is_given_up(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraint, "MASK_S", 0.0)
    monkeypatch.setattr(constraint, "MASK_S_PER_TOKEN", 0.0)
    plain = ask("plain", seed=3, ignore_eos=True, max_tokens=10)
    events = run(llm, ask("slow", grammar=Grammar("regex", "[ab]{99}").to_dict()), plain)
    assert "takes too much time" in events["slow"][-1]["error"]["message"]
    assert events["plain"][-1]["type"] == "done"


def test_compiled_grammars_are_forgotten(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """CVE-2025-29770, GHSA-389x-67px-mjg3: a cache of everything that was ever compiled filled disk and memory."""
    assert (compiler.MAX_COMPILED, compiler.MAX_VOCABULARIES) == (64, 3)
    monkeypatch.setattr(compiler, "MAX_COMPILED", 4)
    made = GrammarCompiler(llm.tokenizer)
    try:
        for number in range(10):
            made.constraints(Grammar("regex", f"[ab]{{{number + 1}}}"), [()], stop_ids=())
        assert len(made._compiled) == 4
        for number in range(5):
            made.constraints(Grammar("regex", "[ab]"), [()], stop_ids=(), visible_ids=frozenset({number}))
        assert len(made._vocabularies) == compiler.MAX_VOCABULARIES
    finally:
        made.close()
