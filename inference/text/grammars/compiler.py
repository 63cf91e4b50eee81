"""GrammarCompiler: from the grammar of a request to one constraint for each of its outputs."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from llguidance import LLMatcher

from inference.errors import InvalidSamplingParams, UnsupportedFeature
from inference.text.grammars.checker import GrammarChecker, GrammarLimits
from inference.text.grammars.constraint import GrammarConstraint
from inference.text.grammars.rules import parser_limits, problem_of, source_of
from inference.text.grammars.vocabulary import GrammarVocabulary
from inference.text.tokenisation.tokenizer import Tokenizer
from inference.values.grammar import Grammar

MAX_COMPILED = 64
MAX_VOCABULARIES = 3
"""A model's outputs show no control tokens, the marks of its thinking, or those of tool calls too."""


class GrammarCompiler:
    """Compiles for one loaded model; safe to call from several threads."""

    def __init__(self, tokenizer: Tokenizer, limits: GrammarLimits | None = None) -> None:
        self._tokenizer = tokenizer
        self._checker = GrammarChecker(limits)
        self._vocabularies: OrderedDict[frozenset[int], GrammarVocabulary] = OrderedDict()
        self._compiled: OrderedDict[tuple[bytes, frozenset[int]], LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def constraints(
        self,
        grammar: Grammar,
        outputs: Sequence[Sequence[int]],
        *,
        stop_ids: Iterable[int],
        after: str | None = None,
        visible_ids: frozenset[int] = frozenset(),
    ) -> list[GrammarConstraint]:
        """One constraint for each output, behind the tokens that it has.

        Args:
            outputs: Token ids of each that an earlier attempt delivered.
            stop_ids: Ids that end an output.
            after: Text behind which the grammar begins.
            visible_ids: Control tokens whose text is part of the output.

        Raises:
            InvalidSamplingParams: The grammar can't be followed.
            UnsupportedFeature: The model's vocabulary isn't known.
            Unavailable: Other grammars keep the compiler busy.
        """
        if not self._tokenizer.has_text:
            raise UnsupportedFeature(
                "this checkpoint has no known tokenizer, so its output can't be made to follow a grammar.",
                param=grammar.param,
            )
        self._checker.check(grammar)
        made: list[GrammarConstraint] = []
        with self._lock:
            vocabulary = self._vocabulary(visible_ids)
            compiled = self._matcher(vocabulary, grammar)
            matchers = [compiled.deep_copy() for _ in outputs]
        for matcher, token_ids in zip(matchers, outputs, strict=True):
            constraint = GrammarConstraint(vocabulary, matcher, stop_ids=stop_ids, after=after or "")
            for token_id in token_ids:
                constraint.accept(token_id)
            made.append(constraint)
        return made

    def close(self) -> None:
        self._checker.close()

    def _vocabulary(self, visible_ids: frozenset[int]) -> GrammarVocabulary:
        """The model's vocabulary for outputs that show these control tokens. Called under the lock."""
        found = self._vocabularies.get(visible_ids)
        if found is None:
            found = self._vocabularies[visible_ids] = GrammarVocabulary(self._tokenizer, visible_ids)
            if len(self._vocabularies) > MAX_VOCABULARIES:
                self._vocabularies.popitem(last=False)
        self._vocabularies.move_to_end(visible_ids)
        return found

    def _matcher(self, vocabulary: GrammarVocabulary, grammar: Grammar) -> LLMatcher:
        """The grammar compiled over the vocabulary, at its beginning; to be copied. Called under the lock."""
        digest = (grammar.digest, vocabulary.visible_ids)
        matcher = self._compiled.get(digest)
        if matcher is None:
            matcher = LLMatcher(vocabulary.ll, source_of(grammar), log_level=0, limits=parser_limits())
            problem = problem_of(matcher)  # what its first mask finds out stays with the copies
            if problem is None and not vocabulary.is_complete:
                first = GrammarConstraint(vocabulary, matcher.deep_copy(), stop_ids=())
                first.mask()
                problem = first.error
            if problem is not None:
                raise InvalidSamplingParams(f"{grammar.param} can't be followed: {problem}.", param=grammar.param)
            self._compiled[digest] = matcher
            if len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(digest)
        return matcher
