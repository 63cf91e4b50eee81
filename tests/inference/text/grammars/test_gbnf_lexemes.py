"""From GBNF to Lark: regular parts become lexemes, and those that could take too much are taken apart."""

from __future__ import annotations

import re

import pytest

from inference.text.grammars.gbnf import GBNFError
from inference.text.grammars.gbnf_lexemes import MAX_LEXEMES, gbnf_to_lark


def lexemes(grammar: str) -> list[re.Pattern[str]]:
    """The lexemes of the Lark grammar that a GBNF grammar becomes, as regular expressions of Python."""
    found = re.findall(r"^T\d+: /(.*)/$", gbnf_to_lark(grammar), re.MULTILINE)
    return [
        re.compile(re.sub(r"\\u\{([0-9a-f]+)\}", lambda item: f"\\U{int(item[1], 16):08x}", text)) for text in found
    ]


def test_a_regular_grammar_is_one_lexeme():
    (lexeme,) = lexemes('root ::= sign? [0-9]{1,3} ("." digit+)*\nsign ::= "-" | "+"\ndigit ::= [0-9]')
    for text in ("-12", "123.4.56", "+1", "0"):
        assert lexeme.fullmatch(text)
    for text in ("1234", "-", "1.", "--1"):
        assert not lexeme.fullmatch(text)


def test_recursion_stays_a_rule_around_its_regular_parts():
    grammar = gbnf_to_lark('root ::= "(" root ")" | "[" [0-9]+ "]"')
    assert grammar.splitlines()[:2] == ["start: r0", "r0: (T0 r0 T1 | T2)"]
    assert lexemes('root ::= "(" root ")" | "[" [0-9]+ "]"')[2].fullmatch("[123]")


def test_a_lexeme_that_could_swallow_what_follows_is_taken_apart():
    """``[a-z]+`` would take the letters that the rule behind it needs."""
    apart = gbnf_to_lark('root ::= word tail\nword ::= [a-z]+\ntail ::= "b" tail | "!"')
    assert not any(lexeme.fullmatch("ab") for lexeme in lexemes('root ::= [a-z]+ tail\ntail ::= "b" tail | "!"'))
    assert "+" in apart.partition("T0:")[0]
    kept = lexemes('root ::= [a-z]+ tail\ntail ::= "1" tail | "!"')
    assert any(lexeme.fullmatch("ab") for lexeme in kept)


@pytest.mark.parametrize("grammar", ['root ::= ""', 'root ::= "x"{0}'])
def test_what_is_always_empty_has_no_lexeme_of_its_own(grammar):
    rules = gbnf_to_lark(grammar).partition("T0:")[0]
    assert '""' in rules
    assert "T0" not in rules


def test_too_many_different_parts_are_refused():
    # Each part is recursive, so that none of them is regular.
    numbers = range(MAX_LEXEMES // 2 + 1)
    rules = [f'r{number} ::= "{chr(0x4E00 + number)}" r{number} "{chr(0x5E00 + number)}" | "x"' for number in numbers]
    grammar = "\n".join(["root ::= " + " | ".join(f"r{number}" for number in numbers), *rules])
    with pytest.raises(GBNFError, match=f"more than {MAX_LEXEMES} different parts"):
        gbnf_to_lark(grammar)


def test_rules_that_nest_too_deeply_are_refused():
    depth = 3000
    rules = [f'r{number} ::= "(" r{number + 1} ")"' for number in range(depth)]
    with pytest.raises(GBNFError):
        gbnf_to_lark("root ::= r0\n" + "\n".join(rules) + f'\nr{depth} ::= "x"')
