"""From a ``Grammar`` to what llguidance compiles, and the limits that it compiles and runs under.

API: https://github.com/guidance-ai/llguidance/blob/main/python/llguidance/_lib.pyi.
"""

from __future__ import annotations

import json

from llguidance import LLMatcher, LLParserLimits

from inference.text.grammars.gbnf_lexemes import gbnf_to_lark
from inference.values.grammar import Grammar

WHITESPACE = r"\x20|\n\x20{0,32}"
"""Between JSON's tokens, or nothing: one space, or one newline with at most 32 spaces of indentation. JSON allows any
amount, and a weak model would spend all its tokens on tabs and newlines."""


def source_of(grammar: Grammar) -> str:
    """The grammar in llguidance's own form; not compiled yet, so it may be wrong.

    Raises:
        ValueError: A schema with a number that llguidance can't read; GBNF that is none.
    """
    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.text)
    if grammar.kind == "lark":
        return LLMatcher.grammar_from_lark(grammar.text)
    if grammar.kind == "gbnf":
        return LLMatcher.grammar_from_lark(gbnf_to_lark(grammar.text))
    if grammar.kind == "choice":
        # A Lark string is written like one of JSON.
        return LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(text) for text in grammar.value))
    schema = {"type": "object"} if grammar.kind == "json_object" else {} if grammar.value is True else grammar.value
    return LLMatcher.grammar_from_json_schema(
        json.dumps(schema, ensure_ascii=False), overrides={"whitespace_pattern": WHITESPACE}
    )


def parser_limits() -> LLParserLimits:
    """What a grammar may use: bounds the time of a mask and the memory of a matcher."""
    return LLParserLimits(step_max_items=20_000, max_lexer_states=50_000, verbose_errors=False)


def problem_of(matcher: LLMatcher) -> str | None:
    """Why a grammar can't be followed from its beginning; None: it can. Computes the first mask."""
    if not matcher.is_error():
        matcher.compute_bitmask()
    if not matcher.is_stopped() or matcher.is_accepting():
        return None
    text = reason(matcher.get_error())
    return "it matches no text" if text in ("", "NoExtension", "NoExtensionBias") else text


def reason(message: str) -> str:
    """llguidance's message, without what it says for its developers, on few lines."""
    text = message.partition("\n<")[0].partition("; following special tokens")[0].rstrip()
    return text if len(text) <= 600 else text[:597] + "..."
