"""Text between a prefix and a suffix, for vocabularies with the control tokens that such models were trained with.

Orders and names: Bavarian et al. 2022 (https://arxiv.org/abs/2207.14255), and the model cards of StarCoder,
Qwen2.5-Coder, Code Llama, DeepSeek-Coder, GLM and Codestral. All but Codestral put the prefix first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Encoder(Protocol):
    """What is needed of a tokenizer."""

    @property
    def has_text(self) -> bool: ...

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class InfillTokens:
    """Control tokens of one convention.

    Attributes:
        before_prefix, before_suffix, before_middle: Ids that come before these parts; the last one may be missing.
        suffix_first: The suffix precedes the prefix.
        endings: Ids with which such a text ends, beside the end of sequence.
    """

    before_prefix: int
    before_suffix: int
    before_middle: int | None
    suffix_first: bool
    endings: tuple[int, ...]

    def prompt(self, prefix: list[int], suffix: list[int]) -> list[int]:
        """Ids of a prompt whose continuation goes between the two."""
        parts = [[self.before_prefix, *prefix], [self.before_suffix, *suffix]]
        if self.suffix_first:
            parts.reverse()
        middle = [] if self.before_middle is None else [self.before_middle]
        return [*parts[0], *parts[1], *middle]


_CONVENTIONS: tuple[tuple[str, str, str | None, bool], ...] = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", False),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", False),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>", False),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", False),
    ("▁<PRE>", "▁<SUF>", "▁<MID>", False),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", False),
    ("[PREFIX]", "[SUFFIX]", None, True),
)
_ENDINGS = ("<|endoftext|>", "<|fim_pad|>", "<|file_sep|>", "<|repo_name|>", "<file_sep>", "<EOT>", "▁<EOT>")


def infill_tokens(tokenizer: Encoder) -> InfillTokens | None:
    """The convention whose tokens the vocabulary has; None: it has none."""
    if not tokenizer.has_text:
        return None

    def single(text: str) -> int | None:
        ids = tokenizer.encode(text, add_special_tokens=False, parse_special=True)
        return ids[0] if len(ids) == 1 else None

    for prefix_text, suffix_text, middle_text, suffix_first in _CONVENTIONS:
        prefix, suffix = single(prefix_text), single(suffix_text)
        middle = None if middle_text is None else single(middle_text)
        if prefix is None or suffix is None or (middle is None and middle_text is not None):
            continue
        found = (single(text) for text in _ENDINGS)
        own = [token for token in (prefix, suffix, middle) if token is not None]
        endings = tuple(dict.fromkeys([token for token in found if token is not None] + own))
        return InfillTokens(prefix, suffix, middle, suffix_first, endings)
    return None
