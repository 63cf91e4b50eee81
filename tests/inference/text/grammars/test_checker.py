"""GrammarChecker: verdicts of the child, remembered, and limits of what it is asked."""

from __future__ import annotations

import os
import signal

import pytest

from inference.errors import InvalidSamplingParams, Unavailable
from inference.text.grammars.checker import GrammarChecker, GrammarLimits
from inference.text.tokenisation.sandbox import SandboxFailure
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


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="a process can't be stopped here")
def test_a_busy_machine_says_nothing_about_a_grammar():
    checker = GrammarChecker(GrammarLimits(compile_s=0.1))
    checker.check(Grammar("regex", "a"))
    grammar = Grammar("regex", "b")
    os.kill(checker._sandbox._child.process.pid, signal.SIGSTOP)
    with pytest.raises(Unavailable, match=r"the compiler of grammars did not get enough processor time within 2 s"):
        checker.check(grammar)
    assert not checker.knows(grammar)
    checker.close()


def test_a_process_that_was_killed_says_nothing_lasting_about_a_grammar(checker, monkeypatch):
    def crash(*arguments, **options):
        raise SandboxFailure("crash")

    grammar = Grammar("regex", "killed")
    with monkeypatch.context() as patched:
        patched.setattr(checker._sandbox, "call", crash)
        with pytest.raises(InvalidSamplingParams, match="it ended its process"):
            checker.check(grammar)
    checker.check(grammar)
