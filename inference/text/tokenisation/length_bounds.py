"""Find texts that certainly have more tokens than a limit, before all of the text is tokenised.

Two bounds hold. A text has at least as many tokens as its bytes divided by the longest token's bytes. And tokens that
end at a word's end don't depend on the text behind it, so the beginning of a text can show that the whole is too long;
this holds for vocabularies whose tokens never cross a space between two words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from inference.errors import PromptTooLong

CHARS_PER_TOKEN = 8
"""Characters to a token of a beginning that is tokenised first; texts of natural languages have fewer."""
_WORD_END = re.compile(r"(?<=[A-Za-z]) (?=[A-Za-z])")
_WINDOW = 1024
"""Characters before the end of a beginning in which a word's end is searched."""


def utf8_length(text: str) -> int:
    """Return the number of bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def check_text_length(
    texts: Sequence[str],
    max_tokens: int,
    *,
    longest_token_bytes: int | None,
    count_tokens: Callable[[str], int] | None,
    noun: str,
) -> None:
    """Refuse texts that can't be encoded in so few tokens.

    Args:
        texts: The parts of a prompt.
        max_tokens: The model's context.
        longest_token_bytes: No token stands for more bytes of a text; None: no such bound.
        count_tokens: Tokenises a text, for vocabularies whose tokens end at the ends of words; None: others.
        noun: What the prompt is called, for errors.

    Raises:
        PromptTooLong: The texts have more tokens than that.
    """
    too_long = longest_token_bytes is not None and sum(map(utf8_length, texts)) > longest_token_bytes * max_tokens
    if too_long or (count_tokens is not None and _has_long_beginning(texts, max_tokens, count_tokens)):
        raise PromptTooLong.of_chars(max_tokens, sum(map(len, texts)), noun=noun)


def _has_long_beginning(texts: Sequence[str], max_tokens: int, count_tokens: Callable[[str], int]) -> bool:
    """Whether the beginning of one of the texts has too many tokens already."""
    num_chars = CHARS_PER_TOKEN * max_tokens
    for text in texts:
        if len(text) <= num_chars:
            continue
        ends = [found.start() for found in _WORD_END.finditer(text, max(0, num_chars - _WINDOW), num_chars)]
        if ends and count_tokens(text[: ends[-1]]) > max_tokens:
            return True
    return False
