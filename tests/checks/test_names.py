"""The check of names finds retired words as whole words of an identifier, and nothing else."""

from __future__ import annotations

import ast

from tests.checks.layout import Module
from tests.checks.names import identifiers, problems, words


def test_words_of_identifiers():
    assert words("readSpecs_now2") == ["read", "specs", "now", "2"]
    assert words("HTTPAnswer") == ["http", "answer"]


def test_every_kind_of_definition_counts_and_uses_do_not():
    source = "class Room:\n    def settle(self, guess): self.told = other\nseat: int = used.note\n"
    names = {name for name, _ in identifiers(Module("a.py", source, ast.parse(source)))}
    assert names == {"Room", "settle", "self", "guess", "told", "seat"}


def test_the_project_uses_no_retired_word():
    assert list(problems()) == []
