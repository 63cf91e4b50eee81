"""Child that holds one ``tokenizer.json``: it loads the file, tells its vocabulary, and encodes.

The file chooses regular expressions and normalisers, so everything that it does happens here, under limits.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from inference.text.tokenisation.children.loop import Refused, serve

MAX_IDS = 1 << 23


class Codec:
    """The tokenizer and what the parent may ask of it."""

    def __init__(self) -> None:
        self._tokenizer: Any = None

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """``path`` loads; ``text`` with ``parse_special`` encodes; ``vocab_size`` describes."""
        if "path" in request:
            self._tokenizer = load(Path(request["path"]), request["max_bytes"])
            return {}
        if "vocab_size" in request:
            return describe(self._tokenizer, request["vocab_size"])
        self._tokenizer.encode_special_tokens = not request["parse_special"]
        ids = self._tokenizer.encode(request["text"], add_special_tokens=False).ids
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
    return {"tokens": tokens, "special": sorted(special), "beyond": beyond, "decoder": json.loads(state)}


def main(memory_bytes: int) -> None:
    """Entry of the child process."""
    serve(Codec().handle, memory_bytes)
