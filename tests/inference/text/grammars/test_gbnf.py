"""GBNF: read as llama.cpp reads it, and followed with the meaning that it has there."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from inference.llm.llm import LLM
from inference.text.grammars.gbnf import Chars, Choice, GBNFError, Node, Repeat, Rule, Sequence, parse_gbnf
from inference.text.grammars.gbnf_lexemes import MAX_LEXEMES, gbnf_to_lark
from inference.text.grammars.rules import parser_limits
from tests.inference.llm.harness import run, text_of
from tests.inference.text.grammars.test_constraint_generation import ask, finish_of

# llama.cpp's examples: https://github.com/ggml-org/llama.cpp/tree/master/grammars
JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
"""
ARITHMETIC = r"""
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""
LIST = r"""
root ::= item+

# Excludes various line break characters
item ::= "- " [^\r\n\x0b\x0c\x85\u2028\u2029]+ "\n"
"""
BYTES = LLTokenizer("byte")


def matches(lark: str, text: str) -> bool:
    matcher = LLMatcher(BYTES, LLMatcher.grammar_from_lark(lark), log_level=0, limits=parser_limits())
    assert not matcher.is_error(), matcher.get_error()
    ids = list(text.encode())
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


class Recogniser:
    """Where a node's texts that begin at some place can end; the plain meaning of the tree."""

    def __init__(self, rules: dict[str, Node], text: str) -> None:
        self.rules = rules
        self.text = text
        self.known: dict[tuple[Node, int], set[int]] = {}

    def matches(self) -> bool:
        return len(self.text) in self.ends(Rule("root"), 0)

    def ends(self, node: Node, at: int) -> set[int]:
        if (node, at) not in self.known:
            self.known[node, at] = self.found(node, at)
        return self.known[node, at]

    def found(self, node: Node, at: int) -> set[int]:
        if isinstance(node, Chars):
            fits = at < len(self.text) and any(low <= ord(self.text[at]) <= high for low, high in node.ranges)
            return {at + 1} if fits else set()
        if isinstance(node, Rule):
            return self.ends(self.rules[node.name], at)
        if isinstance(node, Choice):
            return set().union(*(self.ends(item, at) for item in node.items))
        if isinstance(node, Sequence):
            found = {at}
            for item in node.items:
                found = set().union(*(self.ends(item, place) for place in found))
            return found
        return self.repeated(node, at)

    def repeated(self, node: Repeat, at: int) -> set[int]:
        found = {at} if node.low == 0 else set()
        places, number, seen = {at}, 0, set()
        while places and (node.high is None or number < node.high):
            number += 1
            places = set().union(*(self.ends(node.item, place) for place in places))
            if number >= node.low:
                found |= places
                if (state := frozenset(places)) in seen:
                    break
                seen.add(state)
        return found


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (JSON, ["{}", '{"a": [1, 2.5e3, "x\\n", {"b": null}]}', '{"é":\n true }'], ["[1]", '{"a": 01}', '{"a"}', ""]),
        (ARITHMETIC, ["a=b\n", "a=b\n\n \n", "x +y*(2)= z1\nb=c\n"], ["a=b", "=b\n", "a b=c\n"]),
        (LIST, ["- a\n- b c\n"], ["- \n", "- a", "a\n"]),
        ('root ::= word "a"\nword ::= [a-z]+', ["ba", "aaa"], ["a", "b", "ab"]),
        ('root ::= ("a" | "ab") ("c" | "bd")', ["ac", "abd", "abc", "abbd"], ["ab", "abcd"]),
        ('root ::= "(" root ")" root |', ["", "()", "(())()"], ["(", ")("]),
        (r'root ::= "\u0041\x2f" [^/\]-] . "\U0001F600"?', ["A/x\n", "A/yz😀"], ["A//x", "A/-x", "A/x"]),
        ('root ::= "a"{2} "b"{1,2} "c"{0} "d"{2,}', ["aabdd", "aabbddd"], ["abdd", "aabbbdd", "aabcdd", "aabd"]),
        ('my-rule ::= "x"\nroot ::=\n  my-rule |\n  "y" # or\n', ["x", "y"], ["xy"]),
        ("root ::= [a-c-]+ []x]", None, "a character class is empty"),
        ("root ::= [a-c-]+ [\\]x]", ["a-]", "-x"], ["]", "d]"]),
        ('root ::= "a"\nroot ::= "b"', ["b"], ["a"]),
    ],
)
def test_what_a_grammar_matches(grammar: str, good: list[str] | None, bad: list[str] | str) -> None:
    if good is None:
        with pytest.raises(GBNFError, match=str(bad)):
            gbnf_to_lark(grammar)
        return
    lark = gbnf_to_lark(grammar)
    assert [text for text in good if not matches(lark, text)] == []
    assert [text for text in bad if matches(lark, text)] == []


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ("", "no rule named root"),
        ('start ::= "a"', "no rule named root"),
        ('root ::= "a" b', "line 1: there is no rule named 'b'"),
        ('root = "a"', "line 1: expected ::="),
        ('\n\nroot ::= "a', "line 3: a string or a character class does not end"),
        ("root ::= [a", "does not end"),
        ('root ::= ("a"', r"expected \)"),
        ('root ::= "a")', "expected the end of the line"),
        ('root ::= "\\q"', r"unknown escape \\q"),
        ('root ::= "\\x4"', "2 hexadecimal digits"),
        ('root ::= "\\uD800"', r"U\+D800 is no character"),
        ("root ::= [z-a]", "goes backwards"),
        ('root ::= "a"{3,2}', "counts backwards"),
        ('root ::= "a"{,2}', "expected a number"),
        ('root ::= "a"{5000}', "at most 2,000 times"),
        ('root ::= "a"*+', "repeated twice"),
        ("root ::= <think> x", "single tokens"),
        ("root ::= " + "(" * 100, "deeper than 64"),
        ("root ::= r0\n" + "".join(f"r{n} ::= r{n + 1}\n" for n in range(2000)) + 'r2000 ::= "a"', "too deep"),
        ("root ::= " + " ".join(f"[{chr(0x4E00 + n)}] root?" for n in range(MAX_LEXEMES + 1)), "different parts"),
    ],
)
def test_what_is_wrong_is_said(grammar: str, words: str) -> None:
    with pytest.raises(GBNFError, match=words):
        gbnf_to_lark(grammar)


ITEMS = st.recursive(
    st.sampled_from(['"a"', '"b"', '"ab"', "[ab]", "[b-c]", "[^a]", "c", "d", '""']),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(" ".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda items: f"({' | '.join(items)})"),
        st.tuples(inner, st.sampled_from("*+?")).map(lambda pair: f"({pair[0]}){pair[1]}"),
        st.tuples(inner, st.sampled_from(["{2}", "{0,2}", "{1,}", "{2,3}"])).map(lambda pair: f"({pair[0]}){pair[1]}"),
    ),
    max_leaves=6,
)


def sampled(node: Node, rules: dict[str, Node], random: Random, depth: int = 0) -> str:
    """One of a node's texts."""
    if isinstance(node, Chars):
        low, high = random.choice(node.ranges)
        return chr(random.randint(low, min(high, low + 2)))
    if isinstance(node, Rule):
        return sampled(rules[node.name], rules, random, depth + 1)
    if isinstance(node, Choice):
        items = node.items[-1:] if depth > 4 else node.items
        return sampled(random.choice(items), rules, random, depth)
    if isinstance(node, Sequence):
        return "".join(sampled(item, rules, random, depth) for item in node.items)
    most = node.low + 2 if node.high is None else node.high
    return "".join(sampled(node.item, rules, random, depth) for _ in range(random.randint(node.low, most)))


@settings(max_examples=100, deadline=None)
@given(parts=st.lists(ITEMS, min_size=4, max_size=4), text=st.text("abc()", max_size=6), random=st.randoms())
def test_the_meaning_is_kept(parts: list[str], text: str, random: Random) -> None:
    """``c`` and ``d`` are regular, ``root`` isn't: so parts of it become lexemes, between others that may overlap."""
    c, d = (part.replace("c", "e").replace("d", "e").replace("[b-e]", "[b-c]") for part in parts[:2])
    lines = [
        f"root ::= {parts[2]} inner {parts[3]}",
        'inner ::= "(" root ")" | [ab]* | c | d',
        f"c ::= {c}",
        f"d ::= {d}",
    ]
    grammar = "\n".join([*lines, 'e ::= "a" | "ba"'])
    rules = parse_gbnf(grammar)
    lark = gbnf_to_lark(grammar)
    own = sampled(Rule("root"), rules, random)
    assume(len(own) <= 40)
    assert Recogniser(rules, own).matches()
    for one in (own, own[:-1], f"{own}a", text):
        assert matches(lark, one) == Recogniser(rules, one).matches(), (one, grammar, lark)


def test_outputs_follow_it(llm: LLM) -> None:
    source = 'root ::= word ("," word){2} "!"\nword ::= [a-z]{1,3} "a"'
    asked = [
        ask(f"r{seed}", grammar={"kind": "gbnf", "value": source}, seed=seed, temperature=2.0) for seed in range(3)
    ]
    for events in run(llm, *asked).values():
        assert finish_of(events) == "stop"
        assert Recogniser(parse_gbnf(source), text_of(events)).matches(), text_of(events)
