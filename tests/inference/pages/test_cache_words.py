"""Each outcome of the prefix cache has words of both forms."""

from __future__ import annotations

from inference.engine.prefix_cache.stats import MissReason
from inference.pages.cache_words import CACHE_WORDS, cache_sentence


def test_the_engines_reasons_have_words() -> None:
    assert set(CACHE_WORDS) == {"hit", *MissReason}
    assert all(all(words) and words.sentence.endswith(".") for words in CACHE_WORDS.values())
    assert len({words.name for words in CACHE_WORDS.values()}) == len(CACHE_WORDS)


def test_an_unknown_outcome_has_no_sentence() -> None:
    assert cache_sentence("hit") == "The prefix cache had all of the prompt but its last token."
    assert cache_sentence("") == cache_sentence("of another version") == ""
