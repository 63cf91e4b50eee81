"""GrammarChecker: verdicts of the child, remembered, and limits of what it is asked."""

from __future__ import annotations

import pytest

from inference.errors import InvalidSamplingParams
from inference.text.grammars.checker import GrammarChecker, GrammarLimits
from inference.values.grammar import Grammar


@pytest.fixture(scope="module")
def checker():
    found = GrammarChecker(GrammarLimits(max_bytes=1000))
    yield found
    found.close()


def test_good_grammars_pass_and_are_remembered(checker):
    grammar = Grammar("regex", "[a-z]{3}")
    assert not checker.knows(grammar)
    assert checker.check(grammar) is None
    assert checker.knows(grammar)
    assert checker.check(Grammar("regex", "[a-z]{3}", param="guided_regex")) is None


@pytest.mark.parametrize(
    "grammar", [Grammar("regex", "(", param="guided_regex"), Grammar("lark", "start: nothing", param="guided_regex")]
)
def test_wrong_grammars_are_refused_by_their_field_each_time(checker, grammar):
    for _ in range(2):
        with pytest.raises(InvalidSamplingParams, match="can't be compiled") as caught:
            checker.check(grammar)
        assert caught.value.param == "guided_regex"


def test_long_grammars_are_not_even_tried(checker):
    long = Grammar("regex", "a" * 1001)
    with pytest.raises(InvalidSamplingParams, match=r"1,001 bytes, at most 1,000"):
        checker.check(long)
    assert not checker.knows(long)
