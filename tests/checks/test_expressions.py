"""No regular expression of ours repeats what is a repetition already, which may take exponential time (CVE-2025-71379).

An expression in which an unbounded repetition stands within another is listed with the reason why it can match a text
in one way only.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.checks.layout import PACKAGES, modules

METHODS = {"search", "sub", "subn", "split", "findall", "finditer", "match", "fullmatch", "compile"}
MANY = 100
"""A repetition of more is one without an end."""
KNOWN = {
    "inference/dialects/fields.py: ([+-]?)((\\d{1,9}(?": "each part of a duration ends with its unit",
    "models_registry/gguf_choice.py: (?:^|[-._ ])(?P<ta": "each part of a tag begins with an underscore",
}


def literals(source: str) -> Iterator[str | bytes]:
    """Each expression that is written out."""
    for node in ast.walk(ast.parse(source)):
        is_call = isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re.")
        if is_call and ast.unparse(node.func).removeprefix("re.") in METHODS and isinstance(node.args[0], ast.Constant):
            yield node.args[0].value


def repeats_itself(expression: str | bytes) -> bool:
    """Whether a repetition that gives back what it took stands within another."""
    return _has_nested(re._parser.parse(expression), is_repeated=False)


def _has_nested(node: object, *, is_repeated: bool) -> bool:
    for kind, value in node if isinstance(node, re._parser.SubPattern) else ():
        name = str(kind)
        if name in ("MAX_REPEAT", "MIN_REPEAT"):
            _, most, inner = value
            is_long = most > MANY
            if (is_repeated and most > value[0]) or _has_nested(inner, is_repeated=is_repeated or is_long):
                return True
        elif name not in ("POSSESSIVE_REPEAT", "ATOMIC_GROUP"):
            parts = value[1] if name == "BRANCH" else value if isinstance(value, tuple) else ()
            if any(_has_nested(part, is_repeated=is_repeated) for part in parts):
                return True
    return False


@pytest.mark.parametrize(
    "expression", ["(a+)+$", "(.*a){2000}$", r"([a-zA-Z]+)*!\Z", "(?:a?b?)+", "(a|b+)*", "((?:x+)y)+"]
)
def test_a_repetition_in_a_repetition_is_found(expression):
    assert repeats_itself(expression)
    assert list(literals(f"import re\nre.compile({expression!r})")) == [expression]


@pytest.mark.parametrize("expression", ["a+b+", "(a++)+", "(?:ab)+", "[a-z]{1,3}(x|y)?", "(?>a+)+", "(a{3})+"])
def test_others_are_taken(expression):
    assert not repeats_itself(expression)


def test_the_project_has_none_but_those_that_are_listed():
    found = {
        f"{module.path}: {str(expression)[:18]}"
        for module in modules(*PACKAGES)
        if "re." in module.source
        for expression in literals(module.source)
        if repeats_itself(expression)
    }
    assert found == KNOWN.keys()
