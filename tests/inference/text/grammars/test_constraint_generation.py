"""Outputs of a tiny random network and of the demo model under grammars: they always match, whatever else is asked."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest

from inference.errors import InvalidRequest
from inference.llm.llm import LLM
from inference.llm.options import LLMOptions
from inference.text.grammars.vocabulary import GrammarVocabulary
from inference.values.grammar import Grammar
from tests.inference.llm.harness import Checkpoint, deltas, ids_of, message, run, text_of

ADDRESS = {
    "type": "object",
    "properties": {
        "street": {"type": "string", "maxLength": 12},
        "number": {"type": "integer", "minimum": 1, "maximum": 999},
        "kind": {"enum": ["home", "work", 7, None]},
    },
    "required": ["street", "number", "kind"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, Any] = {
    "object": ADDRESS,
    "array": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    "nested": {
        "$defs": {"a": ADDRESS},
        "type": "object",
        "properties": {"list": {"type": "array", "items": {"$ref": "#/$defs/a"}, "maxItems": 2}},
        "required": ["list"],
        "additionalProperties": False,
    },
    "tree": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "integer", "minimum": -3, "maximum": 3},
                    "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                },
                "required": ["value"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "number": {"type": "number", "minimum": 0, "exclusiveMaximum": 1, "multipleOf": 0.25},
    "optional": {
        "type": "object",
        "properties": {"a": {"type": "null"}, "b": {"const": "ü🙂"}, "c": {"type": "string", "format": "date"}},
        "additionalProperties": False,
    },
    "text": {"type": "string", "minLength": 2, "maxLength": 5},
}


def grammar(kind: Any, value: Any = None) -> dict[str, Any]:
    return {"kind": kind, "value": value}


def ask(request_id: str = "r", **values: Any) -> Any:
    return message(request_id, **{"ignore_eos": False, "max_tokens": 200, "prompt": {"text": "the "}} | values)


def finish_of(events: list[Any], choice: int = 0) -> str:
    return deltas(events, choice)[-1]["finish_reason"]


@pytest.mark.parametrize("name", ["llm", "demo"])
@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_json_is_valid_under_its_schema(request: pytest.FixtureRequest, name: str, temperature: float) -> None:
    found = request.getfixturevalue(name)
    asked = [
        ask(key, grammar=grammar("json_schema", schema), temperature=temperature, seed=5, n=2)
        for key, schema in SCHEMAS.items()
    ]
    finished = 0
    for key, events in run(found, *asked).items():
        for choice in range(2):
            if finish_of(events, choice) == "stop":
                finished += 1
                jsonschema.validate(json.loads(text_of(events, choice)), SCHEMAS[key])
            else:
                assert finish_of(events, choice) == "length"
    assert finished >= 12


@pytest.mark.parametrize("seed", range(4))
def test_regex_choice_lark_and_json_object(llm: LLM, seed: int) -> None:
    lark = 'start: greeting ", " name "!"\ngreeting: "hello" | "hi"\nname: /[a-z]{2,5}/'
    cases = {
        "regex": (grammar("regex", r"(ab|cd){2,4}\d?"), r"(ab|cd){2,4}\d?"),
        "unicode": (grammar("regex", "[äöü🙂]{3}"), "[äöü🙂]{3}"),
        "choice": (grammar("choice", ["red", "reddish", 'a "b"\n', "日本"]), 'red|reddish|a "b"\n|日本'),
        "lark": (grammar("lark", lark), "(hello|hi), [a-z]{2,5}!"),
    }
    events = run(llm, *[ask(key, grammar=case[0], seed=seed, temperature=1.5) for key, case in cases.items()])
    for key, (_, pattern) in cases.items():
        assert finish_of(events[key]) == "stop"
        assert re.fullmatch(pattern, text_of(events[key])), (key, text_of(events[key]))
    events = run(llm, ask("o", grammar=grammar("json_object"), seed=seed, temperature=0.7, logit_bias=closing(llm)))
    assert isinstance(json.loads(text_of(events["o"])), dict)


def closing(llm: LLM) -> dict[str, float]:
    """Biases under which a random network soon ends its strings and objects."""
    ids = [token_id for mark in '"}:' for token_id in llm.tokenizer.encode(mark, add_special_tokens=False)]
    return {str(token_id): 12.0 for token_id in ids}


def test_every_choice_and_every_request_follows_its_own_grammar(llm: LLM) -> None:
    plain = ask("plain", seed=9, ignore_eos=True, max_tokens=40)
    alone = ids_of(run(llm, plain)["plain"])
    asked = [ask(f"n{number}", grammar=grammar("regex", "[a-z]{12}"), n=3, seed=number) for number in range(3)]
    together = run(llm, *asked, plain)
    assert ids_of(together["plain"]) == alone
    texts = [text_of(together[f"n{number}"], choice) for number in range(3) for choice in range(3)]
    assert all(re.fullmatch("[a-z]{12}", text) for text in texts)
    assert len(set(texts)) > 3
    for number in range(3):
        again = run(llm, asked[number])[f"n{number}"]
        assert [text_of(again, choice) for choice in range(3)] == texts[3 * number : 3 * number + 3]


def test_penalties_and_biases_choose_among_what_is_allowed(llm: LLM) -> None:
    (b,) = llm.tokenizer.encode("b", add_special_tokens=False)
    (z,) = llm.tokenizer.encode("z", add_special_tokens=False)
    for number in range(5):
        biased = ask(grammar=grammar("regex", "[ab]"), logit_bias={str(b): 60, str(z): 100}, seed=number, top_k=1)
        assert text_of(run(llm, biased)["r"]) == "b"
    punished = ask(grammar=grammar("choice", ["a" * 8, "bbbb"]), frequency_penalty=2.0, repetition_penalty=10.0)
    assert text_of(run(llm, punished)["r"]) in ("a" * 8, "bbbb")


def test_logprobs_are_those_of_the_unmasked_model(llm: LLM) -> None:
    free = run(llm, ask(logprobs=3, max_tokens=1, temperature=0.0))["r"]
    bound = run(llm, ask(logprobs=3, grammar=grammar("choice", ["zzz"]), temperature=0.0))["r"]
    assert deltas(bound)[0]["logprobs"][0]["top"] == deltas(free)[0]["logprobs"][0]["top"]
    assert deltas(bound)[0]["logprobs"][0]["token_id"] != deltas(free)[0]["logprobs"][0]["token_id"]


@pytest.mark.parametrize("values", [{}, {"ignore_eos": True}, {"min_tokens": 30}, {"ignore_eos": True, "n": 2}])
def test_a_complete_output_ends_whatever_is_said_of_its_end(llm: LLM, values: dict[str, Any]) -> None:
    events = run(llm, ask(grammar=grammar("regex", "[ab]{3}c?c?"), **values))["r"]
    assert re.fullmatch("[ab]{3}c?c?", text_of(events))
    assert finish_of(events) == "stop"
    assert deltas(events)[-1]["stop_reason"] is None


def test_the_end_of_sequence_is_allowed_only_where_the_grammar_may_end(llm: LLM) -> None:
    eos = {str(llm.tokenizer.eos_token_ids[0]): 100}
    assert text_of(run(llm, ask(grammar=grammar("regex", "(abc)+"), logit_bias=eos))["r"]) == "abc"
    events = run(llm, ask(grammar=grammar("regex", "(abc)+"), logit_bias=eos, ignore_eos=True, max_tokens=20))["r"]
    assert len(text_of(events)) >= 15
    assert finish_of(events) == "length"


def test_stop_strings_cut_an_output(llm: LLM) -> None:
    events = run(llm, ask(grammar=grammar("regex", "(ab){4}STOP(cd){4}"), stop=["TOP"]))["r"]
    assert text_of(events) == "ababababS"
    assert deltas(events)[-1]["stop_reason"] == "TOP"


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_a_later_attempt_goes_on_within_the_grammar(llm: LLM, temperature: float) -> None:
    values = {"grammar": grammar("json_schema", SCHEMAS["nested"]), "temperature": temperature, "seed": 4, "n": 2}
    whole = run(llm, ask(**values))["r"]
    for cut in (1, 5, 17, len(ids_of(whole))):
        delivered = [ids_of(whole, 0)[:cut], ids_of(whole, 1)[: cut // 2]]
        rest = run(llm, ask(attempt=1, delivered=delivered, **values))["r"]
        for choice in range(2):
            assert delivered[choice] + ids_of(rest, choice) == ids_of(whole, choice)
            assert finish_of(rest, choice) == finish_of(whole, choice)


def test_preempted_requests_go_on_within_the_grammar(llm: LLM, tmp_path: Any) -> None:
    asked = [
        ask(f"r{number}", grammar=grammar("regex", "([ab]{9}-){11}"), max_tokens=110, seed=number)
        for number in range(6)
    ]
    expected = {key: ids_of(events) for key, events in run(llm, *asked).items()}
    checkpoint = Checkpoint(tmp_path)
    options = LLMOptions(max_model_len=128, max_num_seqs=6, num_threads=1, cache_bytes=24 * 16 * 2 * 2 * 2 * 8 * 4)
    small = LLM.load(checkpoint.spec, checkpoint.tokenizer, checkpoint.files, options)
    try:
        found = run(small, *asked)
        assert small.stats()["num_preemptions"] > 0
    finally:
        small.close()
    assert {key: ids_of(events) for key, events in found.items()} == expected


@pytest.mark.parametrize("seed", range(6))
def test_the_grammar_begins_behind_a_text(llm: LLM, seed: int) -> None:
    """Whatever the free part looks like, and however its end falls upon tokens."""
    bias = {str(token_id): 7.0 for mark in "xy" for token_id in llm.tokenizer.encode(mark, add_special_tokens=False)}
    values = {"grammar": grammar("regex", "[0-9]{4}"), "seed": seed, "logit_bias": bias}
    events = run(llm, ask(grammar_after="xy", **values))["r"]
    free, _, bound = text_of(events).partition("xy")
    assert finish_of(events) == "stop"
    assert re.fullmatch(r"\s*[0-9]{4}", bound), (free, bound)
    # With an earlier attempt that ended before, within and behind the text.
    for said in ("a</thin", "</think>", "a < b</think>", "</think>12"):
        ids = llm.tokenizer.encode(said, add_special_tokens=False)
        asked = ask(attempt=1, delivered=[ids], grammar_after="</think>", **values)
        events = run(llm, asked)["r"]
        free, found, bound = (said + text_of(events)).partition("</think>")
        assert finish_of(events) == ("stop" if found else "length")
        assert not found or re.fullmatch("[0-9]{4}", bound)
    never = run(llm, ask(grammar_after="never", max_tokens=50, **values))["r"]
    assert finish_of(never) == "length"


def test_a_token_that_runs_past_the_text_is_refused(llm: LLM) -> None:
    """No token may bring the beginning of the output with the end of the thinking section, unseen by the grammar."""
    vocabulary = GrammarVocabulary(llm.tokenizer)
    texts = [vocabulary.token_bytes(token_id).decode("utf-8", "replace") for token_id in range(vocabulary.size)]
    assert {texts[token_id] for token_id in vocabulary.straddling("th", 1)} == {
        text for text in texts if text.startswith("h") and text[1:].strip()
    }
    assert (
        {texts[token_id] for token_id in vocabulary.straddling("th", 0)}
        == {text for text in texts if text.partition("th")[2].strip()}
        > {"the"}
    )


def test_what_cannot_be_followed_is_refused_with_the_reason(llm: LLM) -> None:
    for bad, words in [
        (Grammar("regex", "(a"), "unclosed group"),
        (Grammar("lark", "start: foo"), 'unknown name: "foo"'),
        (Grammar("json_schema", {"type": "strin"}), "strin"),
        (Grammar("json_schema", {"type": "array", "uniqueItems": True}), "uniqueItems"),
        (Grammar("json_schema", {"anyOf": []}), "Unsatisfiable"),
        (Grammar("json_schema", {"$ref": "#"}), "matches no text"),
        (Grammar("lark", "start: start"), "matches no text"),
    ]:
        with pytest.raises(InvalidRequest, match=re.escape(words)):
            llm.prepare(ask(grammar=bad.to_dict()))


def test_speculation_leaves_requests_with_a_grammar_alone(llm: LLM, tmp_path: Any) -> None:
    from inference.values.speculative_options import SpeculativeOptions

    checkpoint = Checkpoint(tmp_path)
    options = LLMOptions(max_model_len=256, num_threads=1, speculative=SpeculativeOptions("ngram", is_adaptive=False))
    guessing = LLM.load(checkpoint.spec, checkpoint.tokenizer, checkpoint.files, options)
    asked = [
        ask("bound", grammar=grammar("regex", "([ab]{9}-){11}"), seed=2),
        ask("free", prompt={"text": "the quick the quick"}, temperature=0.0, ignore_eos=True, max_tokens=60),
    ]
    try:
        found = run(guessing, *asked)
        assert guessing.stats()["speculation"]["num_proposed"] > 0
    finally:
        guessing.close()
    expected = run(llm, *asked)
    assert {key: ids_of(events) for key, events in found.items()} == {
        key: ids_of(events) for key, events in expected.items()
    }
