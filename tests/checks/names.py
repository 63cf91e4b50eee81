"""Check names: ``python -m tests.checks.names`` refuses words in identifiers that the project has retired.

The field has a word for each of these things; ``docs/`` and ``CONTRIBUTING.md`` use the same ones.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator

from tests.checks.layout import PACKAGES, Module, modules

RETIRED = {
    "answer answers answered answering": "output (of a generation) or response (of HTTP)",
    "appear appears vanish vanishes": "advertise, withdraw",
    "ask asks asked asking": "request, query",
    "debt fund earning earnings savings hope hopeless odds hindsight": "what is computed",
    "greatest likeliest": "argmax",
    "guess guesses guessed": "draft token, to draft",
    "hasty patient": "urgent, deferred",
    "kick": "wake",
    "may shall": "can, is_allowed",
    "note notes noted noting": "record, integer_with_evidence",
    "owe owes owed": "pending",
    "regulate": "apply back-pressure",
    "room rooms": "capacity",
    "say says said tell tells told": "report",
    "seat seats": "request index",
    "settle settles settled settling settlement": "resolve, finish, complete, acknowledge",
    "spread": "broadcast, expand",
    "want wants wanted": "requires, requested",
    "worth": "expected gain",
}
"""Retired words, and what to use instead."""

ALLOWED: dict[str, str] = {}
"""Names that keep a retired word, each with the reason."""

WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")


def words(name: str) -> list[str]:
    """The words of an identifier in lower case: ``readSpecs_now`` gives ``read``, ``specs``, ``now``."""
    return [word.lower() for word in WORD.findall(name)]


def identifiers(module: Module) -> Iterator[tuple[str, int]]:
    """Each name that a module defines, with its line: classes, functions, parameters, variables and attributes."""
    for node in ast.walk(module.tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno


def problems() -> Iterator[str]:
    """Each identifier with a retired word, once per module, and each module whose own name has one."""
    instead = {word: field for group, field in RETIRED.items() for word in group.split()}
    for module in modules(*PACKAGES, "bench"):
        stem = module.path.rpartition("/")[2].removesuffix(".py")
        seen: set[str] = set()
        for name, line in [(stem, 1), *identifiers(module)]:
            found = [word for word in words(name) if word in instead]
            if found and name not in seen and name not in ALLOWED:
                seen.add(name)
                yield f"{module.path}:{line}: {name} has the retired word {found[0]!r}; use {instead[found[0]]}"


def main() -> int:
    """Print what is wrong; the exit status is 1 then."""
    found = list(problems())
    for problem in found:
        sys.stderr.write(problem + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
