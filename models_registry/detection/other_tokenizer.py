"""Take the tokenizer of another checkpoint: find its files, and check that its vocabulary fits the embedding."""

from __future__ import annotations

from pathlib import Path

from inference.errors import CheckpointError, InvalidRequest
from inference.modelling.families.config import Confidence, Facts
from inference.values.tokenizer_spec import VOCABULARIES, TokenizerSpec
from models_registry.detection.directory import CheckpointDirectory, CheckpointFile, resolve
from models_registry.detection.facts import TOKENIZER_FROM
from models_registry.detection.json_file import read_bytes
from models_registry.detection.tokenizer_files import MAX_TOKENIZER_BYTES, TokenizerFiles

MIN_SHARE = 0.9
"""A vocabulary of fewer tokens than this share of the embedding's rows is likely another model's."""


def find_other(resolved: CheckpointDirectory, facts: Facts) -> CheckpointDirectory | None:
    """Return the checkpoint of the override ``tokenizer_from``, which has its path; None: there is no such override.

    Raises:
        InvalidRequest: It can't be read, is the same checkpoint, or ``vocabulary`` is overridden too.
    """
    path = facts.overrides.get(TOKENIZER_FROM)
    if path is None:
        return None
    if "vocabulary" in facts.overrides:
        raise InvalidRequest(
            f"{TOKENIZER_FROM} and vocabulary can't both be set; take one of them away.", param=TOKENIZER_FROM
        )
    try:
        other = resolve(Path(path))
    except CheckpointError as error:
        raise InvalidRequest(f"{TOKENIZER_FROM}: {error.message}", param=TOKENIZER_FROM) from None
    if (other.directory, other.weight_files) == (resolved.directory, resolved.weight_files):
        raise InvalidRequest(f"{TOKENIZER_FROM} names the checkpoint itself; name another one.", param=TOKENIZER_FROM)
    return other


def check_other(
    other: CheckpointDirectory, found: TokenizerSpec | None, files: TokenizerFiles, facts: Facts
) -> TokenizerSpec:
    """Return the other checkpoint's tokenizer; the reason goes to ``facts``.

    Args:
        found: Its tokenizer, with the rows of this checkpoint's embedding; None: it has no files of one.
        files: The side files beside it.

    Raises:
        InvalidRequest: It has no tokenizer files, or more tokens than the embedding has rows.
        CorruptCheckpoint: Its file is too large.
    """
    place = other.directory.name
    if found is None:
        raise InvalidRequest(
            f"{TOKENIZER_FROM}: {place} has no tokenizer.json, .tiktoken file, tekken.json, tokenizer.model or GGUF "
            "file with tokens; name another model, or set vocabulary.",
            param=TOKENIZER_FROM,
        )
    name = found.name or Path(str(found.path)).name
    facts.add_override(TOKENIZER_FROM, str(facts.overrides[TOKENIZER_FROM]), f"set by a person; {name} of it is used")
    facts.add("vocabulary", name, f"{name} of the model that {TOKENIZER_FROM} names", Confidence.CERTAIN)
    num_tokens = _num_tokens(found, files)
    if num_tokens is None:  # read and compared with the rows by add_file_vocabulary
        return found
    if num_tokens > found.vocab_size:
        raise InvalidRequest(
            f"{TOKENIZER_FROM}: {name} of {place} has {num_tokens} tokens, but the embedding has {found.vocab_size} "
            "rows; name a model whose tokenizer has at most that many.",
            param=TOKENIZER_FROM,
        )
    if num_tokens < MIN_SHARE * found.vocab_size:
        facts.warn(
            f"{name} of {place} has {num_tokens} tokens, the embedding {found.vocab_size} rows: it may belong to "
            "another model."
        )
    return found


def files_of_other(found: TokenizerSpec) -> tuple[CheckpointFile, ...]:
    """Return the file that the other checkpoint's tokenizer is built of; a built-in one needs none."""
    if found.path is None:
        return ()
    return (CheckpointFile(found.path, Path(found.path).stat().st_size, "tokenizer"),)


def _num_tokens(found: TokenizerSpec, files: TokenizerFiles) -> int | None:
    """Number of ids from 0 on that the tokenizer uses; None: only a reader of the file can tell."""
    if found.kind == "builtin":
        return VOCABULARIES[str(found.name)][0]
    if found.kind == "huggingface":
        return files.num_ids
    if found.kind == "tiktoken":
        lines = read_bytes(Path(str(found.path)), MAX_TOKENIZER_BYTES).splitlines()
        ranks = [int(parts[1]) for parts in map(bytes.split, lines) if len(parts) == 2 and parts[1].isdigit()]
        return max(ranks, default=-1) + 1
    return None
