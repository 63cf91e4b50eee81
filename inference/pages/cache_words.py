"""What the prefix cache found of a prompt, in words: by ``UsageRecord.cache_outcome``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class CacheWords(NamedTuple):
    """Words for an outcome of the prefix cache.

    Attributes:
        name: In one or a few words, for many requests.
        what: What that means, behind the name.
        sentence: Why the cache had so much of one request's prompt, or so little.
    """

    name: str
    what: str
    sentence: str


CACHE_WORDS: Mapping[str, CacheWords] = {
    "hit": CacheWords(
        "found whole",
        "all of the prompt but its last token",
        "The prefix cache had all of the prompt but its last token.",
    ),
    "diverged": CacheWords(
        "found as far as it is shared",
        "the rest of the prompt was new",
        "The prefix cache had the beginning; the rest of the prompt was new.",
    ),
    "cold": CacheWords(
        "new",
        "no earlier prompt of this caller began like it",
        "It was new to the prefix cache: no earlier prompt of this caller began like it.",
    ),
    "evicted": CacheWords(
        "evicted",
        "it was there, and had to make room",
        "Its state had been in the prefix cache and had to make room. A larger BLAZR_CACHE_BYTES keeps more.",
    ),
    "no_snapshot": CacheWords(
        "no state there",
        "the tokens are known, recurrent state is kept at other places only",
        "The prefix cache knew the tokens, but kept no recurrent state at that place. More snapshots in "
        "BLAZR_PREFIX_CACHE keep more places.",
    ),
    "needs_all_rows": CacheWords(
        "not usable",
        "log-probabilities of the prompt, or a mean over it, need every token computed",
        "The prefix cache couldn't be used: log-probabilities of the prompt, or a mean over it, need every token "
        "computed.",
    ),
    "disabled": CacheWords(
        "off",
        "the model's cache is switched off",
        "The prefix cache is switched off (BLAZR_PREFIX_CACHE, or prefix_cache of the model).",
    ),
}


def cache_sentence(outcome: str) -> str:
    """Return why the prefix cache had so much of a prompt, or so little; empty if that isn't known."""
    words = CACHE_WORDS.get(outcome)
    return "" if words is None else words.sentence
