"""Child that holds one ``tokenizer.json``: it loads the file, tells its vocabulary, and encodes.

The file chooses regular expressions and normalisers, so everything that it does happens here, under limits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models

from inference.text.tokenisation.children.loop import Refused, serve
from inference.text.tokenisation.decoding import byte_alphabet

MAX_IDS = 1 << 23


class Codec:
    """The tokenizer and what the parent may ask of it."""

    def __init__(self) -> None:
        self._tokenizer: Any = None

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """``path`` loads; ``vocab_size`` describes; ``pieces``, each with ``parse_special``, encodes."""
        if "path" in request:
            self._tokenizer = load(Path(request["path"]), request["max_bytes"])
            return {}
        if "vocab_size" in request:
            return describe(self._tokenizer, request["vocab_size"])
        ids: list[int] = []
        for text, parse_special in request["pieces"]:
            self._tokenizer.encode_special_tokens = not parse_special
            ids += self._tokenizer.encode(text, add_special_tokens=False).ids
            if len(ids) > MAX_IDS:
                raise Refused(f"it makes more than {MAX_IDS} tokens of the text")
        return {"ids": ids}


def load(path: Path, max_bytes: int) -> Any:
    """Read the file, truncation and padding off."""
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise Refused(f"the file is larger than {max_bytes} bytes")
    tokenizer = Tokenizer.from_str(data.decode("utf-8"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def describe(tokenizer: Any, vocab_size: int) -> dict[str, Any]:
    """Tokens by id (None where there is none), ids of special tokens, and the decoder's configuration."""
    tokens: list[str | None] = [None] * vocab_size
    beyond = 0
    for token, token_id in tokenizer.get_vocab(with_added_tokens=True).items():
        if token_id < vocab_size:
            tokens[token_id] = token
        else:
            beyond += 1
    special = []
    for token_id, added in tokenizer.get_added_tokens_decoder().items():
        if token_id < vocab_size:
            tokens[token_id] = added.content
            if added.special:
                special.append(token_id)
    state = tokenizer.decoder.__getstate__() if tokenizer.decoder is not None else b"null"
    return {
        "tokens": tokens,
        "special": sorted(special),
        "beyond": beyond,
        "decoder": json.loads(state),
        "longest_token_bytes": longest_token_bytes(tokenizer),
    }


_NORMALIZERS = {"NFC": 3, "NFD": 1, "Prepend": 1}
"""How many bytes of a text become one at most; NFC makes 3 bytes of 9 (three Hangul letters)."""
_PRE_TOKENIZERS = ("ByteLevel", "Digits", "Metaspace", "Split")
"""They keep the whole text, unless a split is removed."""


def longest_token_bytes(tokenizer: Any) -> int | None:
    """Return a number of bytes of a text that no token exceeds; None where parts of a text can go without a token."""
    if not isinstance(tokenizer.model, models.BPE):
        return None
    added = tokenizer.get_added_tokens_decoder().values()
    if any(token.lstrip or token.rstrip for token in added):
        return None
    shrinking = 1
    for step in _steps(tokenizer.normalizer, "normalizers"):
        if step["type"] == "Replace" and len(step["content"]) >= len(
            step["pattern"].get("String", step["content"] + "x")
        ):
            continue
        if step["type"] not in _NORMALIZERS:
            return None
        shrinking *= _NORMALIZERS[step["type"]]
    pre_tokenizers = _steps(tokenizer.pre_tokenizer, "pretokenizers")
    if any(step["type"] not in _PRE_TOKENIZERS or step.get("behavior") == "Removed" for step in pre_tokenizers):
        return None
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    if any(step["type"] == "ByteLevel" for step in pre_tokenizers):
        every_byte: Iterable[str] = byte_alphabet()
    else:
        every_byte = (f"<0x{byte:02X}>" for byte in range(256)) if tokenizer.model.byte_fallback else ("",)
    if not all(token in vocabulary for token in every_byte):
        return None  # text without a token is left out, or a token for the unknown stands for all of it
    return shrinking * max(len(token.encode()) for token in vocabulary)


def _steps(part: Any, name: str) -> list[dict[str, Any]]:
    """Return the configurations of a normaliser or pre-tokeniser and of all of its parts."""
    if part is None:
        return []
    state: dict[str, Any] = json.loads(part.__getstate__())
    waiting, found = [state], []
    while waiting:
        state = waiting.pop()
        if state["type"] == "Sequence":
            waiting += state[name]
        else:
            found.append(state)
    return found


def main(memory_bytes: int, readable: Sequence[Path]) -> None:
    serve(Codec().handle, memory_bytes, readable)
