"""Tokenizer: text to token ids and back, one interface over all kinds of vocabulary.

Encoding is the library's business (splintr, tiktoken, HuggingFace tokenizers); decoding is ours: every token
has bytes, and text is the UTF-8 reading of their sequence. Text from users never becomes a control token
unless the caller asks for it (``parse_special``), ids that the model has no row for are never returned, and
the beginning-of-sequence token is put once.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol, cast

from inference.errors import (
    BlazrError,
    CorruptCheckpoint,
    InvalidRequest,
    InvalidTokenIds,
    PromptTooLong,
    UnsupportedFeature,
    UnsupportedFormat,
)
from inference.text.tokenisation.control_tokens import ControlTokens
from inference.text.tokenisation.decoding import TokenForms
from inference.text.tokenisation.length_bounds import check_text_length
from inference.text.tokenisation.sandbox import Sandbox, SandboxFailure
from inference.text.tokenisation.sandbox_encoder import SandboxEncoder
from inference.text.tokenisation.text import check_text
from inference.text.tokenisation.tiktoken_file import PUBLISHED_FILES, read_ranks
from inference.values.tokenizer_spec import VOCABULARIES, TokenizerSpec

MAX_FILE_BYTES = 32 << 20
MAX_TEXT_CHARS = 8 << 20
MAX_WHOLE_TEXTS = 1 << 15
PIECES_AT_ONCE = 1024
"""Pieces of a text that are encoded without another request in between."""
_HF_MEMORY_BYTES = 2 << 30
_HF_LOAD_CPU_S = 10.0
_VOCABULARY_LOAD_CPU_S = 30.0
"""The merges of 262,144 scored tokens take 3 s on a slow core."""
_LONG_TEXT_CHARS = 1 << 14

TokenBytes = Callable[[int, bool], bytes]
"""(token id, whether it begins the text) to its bytes."""


class Encoder(Protocol):
    """Text to ids; safe to call from several threads."""

    def encode(self, pieces: Sequence[tuple[str, bool]], *, first: bool = True) -> list[int]:
        """Ids of consecutive (text, parse_special) pieces, no token added, each encoded by itself; control tokens are
        recognised only with ``parse_special``.

        ``first``: nothing is before the text, or a control token; some vocabularies put a space in front of it then.
        """
        ...

    def close(self) -> None: ...


class Tokenizer:
    """A vocabulary bounded by a model's embedding. Built by ``load_tokenizer``; safe to share between threads.

    Attributes:
        name: For people: the vocabulary's or the file's name.
        vocab_size: Rows of the model's embedding.
        special_ids: Control tokens below ``vocab_size``.
        invalid_token_ids: Ids below ``vocab_size`` that stand for nothing; they must not be sampled.
        lead, max_lead: This character is removed from the beginning of a text, at most that many times.
        longest_token_bytes: No token stands for more bytes of a text; None: no such bound.
    """

    def __init__(
        self,
        spec: TokenizerSpec,
        name: str,
        encoder: Encoder,
        *,
        token_bytes: TokenBytes,
        special_tokens: dict[str, int],
        invalid_token_ids: Iterable[int],
        lead: tuple[str, int] = ("", 0),
        longest_token_bytes: int | None = None,
    ) -> None:
        self.name = name
        self.kind = spec.kind
        self.vocab_size = spec.vocab_size
        self.bos_token_id = spec.bos_token_id
        self.eos_token_ids = spec.eos_token_ids
        self.special_ids = frozenset(special_tokens.values())
        self.special_tokens = dict(special_tokens)
        self.invalid_token_ids = tuple(invalid_token_ids)
        self.lead, self.max_lead = lead
        self.longest_token_bytes = longest_token_bytes
        self._encoder = encoder
        self._token_bytes = token_bytes
        self._special_texts = {token_id: text for text, token_id in special_tokens.items()}
        self._missing = frozenset(self.invalid_token_ids)
        self._whole_texts: dict[int, str] = {}

    @property
    def has_text(self) -> bool:
        """Whether text can be encoded; otherwise only token ids go in and out."""
        return self.kind != "none"

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False, param: str = "prompt"
    ) -> list[int]:
        """Token ids of a text.

        Args:
            text: Valid Unicode without NUL.
            add_special_tokens: Put BOS in front, unless it is already there.
            parse_special: Control tokens that are written in the text become their ids.

        Raises:
            InvalidRequest: The text is invalid, too large, or the checkpoint's tokenizer fails on it.
            InvalidTokenIds: The text needs a token that the model has no row for.
            UnsupportedFeature: The checkpoint has no tokenizer.
        """
        return self.encode_pieces([(text, parse_special)], add_special_tokens=add_special_tokens, param=param)

    def encode_pieces(
        self,
        pieces: Sequence[tuple[str, bool]],
        *,
        add_special_tokens: bool = False,
        param: str = "messages",
        max_tokens: int | None = None,
    ) -> list[int]:
        """Token ids of consecutive (text, parse_special) pieces, as ``encode``.

        Args:
            max_tokens: With more, the rest of many pieces isn't encoded, and ``PromptTooLong`` is raised.
        """
        ids: list[int] = []
        for text, _ in pieces:
            check_text(text, param)
            if len(text) > MAX_TEXT_CHARS:
                raise InvalidRequest(
                    f"{param} has {len(text):,} characters, at most {MAX_TEXT_CHARS:,} are read.", param=param
                )
        for at in range(0, len(pieces), PIECES_AT_ONCE):
            if max_tokens is not None and len(ids) > max_tokens:
                raise PromptTooLong.of_chars(max_tokens, sum(len(text) for text, _ in pieces), noun=param)
            ids += self._encoder.encode(pieces[at : at + PIECES_AT_ONCE], first=not ids or ids[-1] in self.special_ids)
        highest = max(ids, default=0)
        if highest >= self.vocab_size:
            raise InvalidTokenIds(
                f"{param} has the token id {highest}, but the model's embedding has {self.vocab_size} rows; "
                "the text can't be said in its vocabulary.",
                param=param,
            )
        bos = self.bos_token_id
        if add_special_tokens and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def check_length(self, texts: Sequence[str], max_tokens: int, noun: str) -> None:
        """Refuse texts that certainly have more tokens, at a fraction of the time that tokenising takes.

        Raises:
            PromptTooLong: They have.
        """
        ends_at_words = self.kind in ("builtin", "tiktoken")
        check_text_length(
            texts,
            max_tokens,
            longest_token_bytes=self.longest_token_bytes,
            count_tokens=(lambda text: len(self._encoder.encode([(text, False)]))) if ends_at_words else None,
            noun=noun,
        )

    def check_token_ids(self, token_ids: Sequence[object], param: str = "prompt") -> tuple[int, ...]:
        """The ids of a token-id prompt, each inside the embedding.

        Raises:
            InvalidTokenIds: One isn't an integer, or is out of range.
        """
        ids = cast("tuple[int, ...]", tuple(token_ids))
        if set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < self.vocab_size:
            return ids  # without a look at each one in Python: a prompt may have a hundred thousand
        for position, token_id in enumerate(token_ids):
            if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < self.vocab_size:
                raise InvalidTokenIds(
                    f"{param} has {str(token_id)[:40]} at position {position}; "
                    f"token ids are integers from 0 to {self.vocab_size - 1}.",
                    param=param,
                )
        return tuple(token_id for token_id in token_ids if isinstance(token_id, int))

    def token_bytes(self, token_id: int, *, first: bool = False) -> bytes:
        """Bytes that the token adds to a text; empty for an id without a token.

        Args:
            token_id: Below ``vocab_size``.
            first: The token begins the text (some vocabularies write it differently there).
        """
        if token_id in self._missing:
            return b""
        special = self._special_texts.get(token_id)
        if special is not None and self.kind != "huggingface":
            return special.encode()
        return self._token_bytes(token_id, first)

    def whole_text(self, token_id: int) -> str | None:
        """What the token adds to a text that it doesn't begin; None for control tokens, and for bytes that are no whole
        characters."""
        text = self._whole_texts.get(token_id)
        if text is None and token_id not in self._special_texts:
            try:
                text = self.token_bytes(token_id).decode()
            except UnicodeDecodeError:
                return None
            if len(self._whole_texts) < MAX_WHOLE_TEXTS:
                self._whole_texts[token_id] = text
        return text

    def special_text(self, token_id: int) -> str | None:
        """A control token as it is written; None for other tokens."""
        return self._special_texts.get(token_id)

    def is_missing(self, token_id: int) -> bool:
        """Whether the id stands for nothing."""
        return token_id in self._missing

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Text of a whole sequence; bytes that aren't UTF-8 read as U+FFFD."""
        parts: list[bytes] = []
        first = True
        for token_id in token_ids:
            if token_id in self._missing or (skip_special_tokens and token_id in self.special_ids):
                continue
            parts.append(self.token_bytes(token_id, first=first))
            first = False
        text = b"".join(parts).decode("utf-8", "replace")
        for _ in range(self.max_lead):
            text = text.removeprefix(self.lead)
        return text

    def close(self) -> None:
        """End what encoding needs (a child process); decoding goes on working."""
        self._encoder.close()


def load_tokenizer(spec: TokenizerSpec) -> Tokenizer:
    """Build the tokenizer that the spec names.

    Raises:
        CheckpointError: Its file can't be used.
    """
    if spec.kind == "builtin":
        return _load_builtin(spec)
    if spec.kind == "tiktoken":
        return _load_tiktoken(spec)
    if spec.kind == "huggingface":
        return _load_huggingface(spec)
    if spec.kind != "none":
        return _load_vocabulary(spec)
    return Tokenizer(
        spec,
        "none",
        _NoEncoder(),
        token_bytes=lambda token_id, first: b"",
        special_tokens={},
        invalid_token_ids=(),
    )


# --- token ids only ----------------------------------------------------------------------------


class _NoEncoder:
    def encode(self, pieces: Sequence[tuple[str, bool]], *, first: bool = True) -> list[int]:
        raise UnsupportedFeature(
            "this checkpoint has no known tokenizer, so text can't be read; send the prompt as token ids.",
            param="prompt",
        )

    def close(self) -> None:
        pass


# --- built-in vocabularies ---------------------------------------------------------------------


class _SplitEncoder:
    """Ordinary text through a library, control tokens by our own search, restricted to those the model has."""

    def __init__(self, encode_ordinary: Callable[[str], list[int]], special_tokens: dict[str, int]) -> None:
        self._encode_ordinary = encode_ordinary
        self._special_tokens = special_tokens
        self._control = ControlTokens(special_tokens)

    def encode(self, pieces: Sequence[tuple[str, bool]], *, first: bool = True) -> list[int]:
        ids: list[int] = []
        for text, parse_special in pieces:
            ids += self._encode_text(text, parse_special=parse_special)
        return ids

    def _encode_text(self, text: str, *, parse_special: bool) -> list[int]:
        if not parse_special or not self._control:
            return self._encode_ordinary(text)
        ids: list[int] = []
        for number, part in enumerate(self._control.split(text)):
            if number % 2:
                ids.append(self._special_tokens[part])
            elif part:
                ids += self._encode_ordinary(part)
        return ids

    def close(self) -> None:
        pass


def _load_builtin(spec: TokenizerSpec) -> Tokenizer:
    from splintr import Tokenizer as SplintrTokenizer

    if spec.name is None or spec.name not in VOCABULARIES:
        raise UnsupportedFormat(
            f"the vocabulary {str(spec.name)[:40]!r} is not built in; built in are {', '.join(sorted(VOCABULARIES))}.",
            param="tokenizer",
        )
    library = SplintrTokenizer.from_pretrained(spec.name)
    every_special: dict[str, int] = dict(library.special_tokens())
    special = {text: token_id for text, token_id in every_special.items() if token_id < spec.vocab_size}
    special_ids = set(special.values())
    table: list[bytes | None] = []
    for token_id in range(spec.vocab_size):
        try:
            table.append(b"" if token_id in special_ids else library.decode_token_bytes(token_id))
        except ValueError:  # a gap in the numbering
            table.append(None)
    anything_special = re.compile("|".join(map(re.escape, every_special)))

    def encode_ordinary(text: str) -> list[int]:
        # The library holds the interpreter's lock in encode_ordinary (0.9 s for 5 MB) but not in encode_batch;
        # that one recognises control tokens, so it is for long texts that have none.
        if len(text) > _LONG_TEXT_CHARS and not anything_special.search(text):
            batch: list[list[int]] = library.encode_batch([text])
            return batch[0]
        ids: list[int] = library.encode_ordinary(text)
        return ids

    return _from_table(spec, spec.name, table, special, encode_ordinary)


# --- .tiktoken files ---------------------------------------------------------------------------


def _load_tiktoken(spec: TokenizerSpec) -> Tokenizer:
    import tiktoken
    from splintr import O200K_BASE_PATTERN

    path = _file(spec)
    published = PUBLISHED_FILES.get(path.name)
    ranks = read_ranks(path, MAX_FILE_BYTES)
    special = _tiktoken_specials(spec, ranks)
    for text in special:
        ranks.pop(text.encode(), None)
    # How other files cut texts isn't known: as OpenAI's newest vocabulary does.
    pattern = O200K_BASE_PATTERN if published is None else published.pattern
    try:
        library = tiktoken.Encoding(path.name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a Rust panic is a BaseException
        raise CorruptCheckpoint(f"{path.name} can't be used: {error}.", param=path.name) from None
    table: list[bytes | None] = [None] * spec.vocab_size
    for token, token_id in ranks.items():
        if token_id < spec.vocab_size:
            table[token_id] = token
    special = {text: token_id for text, token_id in special.items() if token_id < spec.vocab_size}
    for token_id in special.values():
        table[token_id] = b""
    encode = library.encode_ordinary
    if published is not None and published.is_normalised:
        return _from_table(spec, path.name, table, special, lambda text: encode(unicodedata.normalize("NFC", text)))
    return _from_table(spec, path.name, table, special, encode)


def _tiktoken_specials(spec: TokenizerSpec, ranks: dict[bytes, int]) -> dict[str, int]:
    """Control tokens that the spec tells of: the added ones, BOS and EOS by their names.

    Some files list them among the ordinary tokens; an id that the file gives to another token stays that token's.
    """
    special = dict(spec.added_tokens)
    names = dict(spec.special_tokens)
    for key, token_id in (("bos_token", spec.bos_token_id), ("eos_token", next(iter(spec.eos_token_ids), None))):
        text = names.get(key)
        if text and token_id is not None and text not in special and token_id not in special.values():
            special[text] = token_id
    owners = {token_id: token for token, token_id in ranks.items()}
    return {
        text: token_id for text, token_id in special.items() if owners.get(token_id, text.encode()) == text.encode()
    }


def _from_table(
    spec: TokenizerSpec,
    name: str | None,
    table: list[bytes | None],
    special: dict[str, int],
    encode_ordinary: Callable[[str], list[int]],
) -> Tokenizer:
    def token_bytes(token_id: int, first: bool) -> bytes:
        return table[token_id] or b""

    longest = max((len(token) for token in table if token), default=1)
    return Tokenizer(
        spec,
        name or spec.kind,
        _SplitEncoder(encode_ordinary, special),
        token_bytes=token_bytes,
        special_tokens=special,
        invalid_token_ids=(token_id for token_id, token in enumerate(table) if token is None),
        longest_token_bytes=max(longest, max((len(text.encode()) for text in special), default=1)),
    )


# --- tokenizer.json, and vocabularies in other files -------------------------------------------


def _load_huggingface(spec: TokenizerSpec) -> Tokenizer:
    path = _file(spec)
    sandbox = Sandbox(
        "huggingface",
        memory_bytes=_HF_MEMORY_BYTES,
        first_call={"path": str(path), "max_bytes": MAX_FILE_BYTES},
        first_cpu_s=_HF_LOAD_CPU_S,
        readable=[path],
    )
    try:
        found = sandbox.call({"vocab_size": spec.vocab_size}, cpu_s=_HF_LOAD_CPU_S, max_reply_bytes=1 << 28)
        tokens: list[str | None] = found["tokens"]
        forms = TokenForms(tokens, found["decoder"])
    except SandboxFailure as failure:
        sandbox.close()
        raise CorruptCheckpoint(f"{path.name} can't be used: {failure.reason()}.", param=path.name) from None
    except BlazrError:
        sandbox.close()
        raise
    special = {text: token_id for token_id in found["special"] if (text := tokens[token_id]) is not None}
    return Tokenizer(
        spec,
        path.name,
        SandboxEncoder(sandbox),
        token_bytes=forms.token_bytes,
        special_tokens=special,
        invalid_token_ids=(token_id for token_id, token in enumerate(tokens) if token is None),
        lead=(forms.lead, forms.max_lead),
        longest_token_bytes=found["longest_token_bytes"],
    )


def _load_vocabulary(spec: TokenizerSpec) -> Tokenizer:
    path = _file(spec)
    sandbox = Sandbox(
        "vocabulary",
        memory_bytes=_HF_MEMORY_BYTES,
        first_call={"path": str(path), "kind": spec.kind, "added_tokens": dict(spec.added_tokens)},
        first_cpu_s=_VOCABULARY_LOAD_CPU_S,
        readable=[path],
    )
    try:
        found = sandbox.call({"vocab_size": spec.vocab_size}, cpu_s=_HF_LOAD_CPU_S, max_reply_bytes=1 << 28)
    except SandboxFailure as failure:
        sandbox.close()
        raise CorruptCheckpoint(
            f"the vocabulary of {path.name} can't be used: {failure.reason().rstrip('.')}.", param=path.name
        ) from None
    except BlazrError:
        sandbox.close()
        raise
    table = [None if token is None else token.encode("latin-1") for token in found["tokens"]]
    table += [None] * (spec.vocab_size - len(table))
    return Tokenizer(
        spec,
        path.name,
        SandboxEncoder(sandbox),
        token_bytes=lambda token_id, first: table[token_id] or b"",
        special_tokens=found["special"],
        invalid_token_ids=(token_id for token_id, token in enumerate(table) if token is None),
        lead=(" ", 1) if found["space_prefix"] else ("", 0),
        longest_token_bytes=found["longest_token_bytes"],
    )


def _file(spec: TokenizerSpec) -> Path:
    if spec.path is None:
        raise CorruptCheckpoint(f"the tokenizer of kind {spec.kind} names no file.", param="tokenizer")
    path = Path(spec.path)
    if not path.is_file():
        raise CorruptCheckpoint(f"the tokenizer file {path.name} is missing.", param=path.name)
    return path
