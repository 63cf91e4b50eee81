"""Child that compiles grammars for a trial: one that takes too much time or memory takes this process with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from inference.errors import InvalidRequest
from inference.text.grammars.rules import parser_limits, problem_of, source_of
from inference.text.tokenisation.children.loop import Refused, serve
from inference.values.grammar import Grammar


class Trial:
    """Compiles over a vocabulary of single bytes, which says what is wrong as well as any other does."""

    def __init__(self) -> None:
        self._bytes = LLTokenizer("byte")

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """``grammar`` compiles and computes the first mask; the result is empty."""
        try:
            source = source_of(Grammar.from_dict(request["grammar"]))
        except (InvalidRequest, ValueError) as error:
            raise Refused(str(error)) from None
        matcher = LLMatcher(self._bytes, source, log_level=0, limits=parser_limits())
        problem = problem_of(matcher)
        if problem is not None:
            raise Refused(problem)
        return {}


def main(memory_bytes: int, readable: Sequence[Path]) -> None:
    serve(Trial().handle, memory_bytes, readable)
