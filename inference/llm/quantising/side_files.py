"""Find the files that belong beside a written checkpoint's weights: config, tokenizer and chat template.

A GGUF file has them in it: its metadata become config.json, and its vocabulary a GGUF file without tensors. A tokenizer
that another checkpoint lends, or that a person chose, is copied, so that the result needs nothing else.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inference.errors import CorruptCheckpoint
from inference.llm.checkpoint_writing import CONFIG_FILE, SourceFiles, json_content
from inference.modelling.encodings.quantisation_config import SIDE_FILES
from inference.modelling.families.config import Confidence
from inference.modelling.gguf.architectures import read_checkpoint
from inference.modelling.gguf.container import read_gguf
from inference.modelling.gguf.ggjt import has_ggml_suffix
from inference.modelling.gguf.vocabulary_file import VOCABULARY_FILE, Value, copied_vocabulary, vocabulary_content
from inference.text.tokenisation.ggjt_vocabulary import read_ggjt_vocabulary
from inference.values.tokenizer_spec import TokenizerSpec
from models_registry.detection.directory import CheckpointFile, resolve
from models_registry.detection.facts import TOKENIZER_FROM
from models_registry.detection.inspection import Inspection

TEMPLATE_FILE = "chat_template.jinja"
_GENERATION_FILE = "generation_config.json"
_TOKENIZER_ROLES = ("tokenizer", "tokenizer_config")
_NAMES = {"huggingface": "tokenizer.json", "tekken": "tekken.json", "sentencepiece": "tokenizer.model"}
"""Kinds of tokenizers to the name by which a checkpoint's directory has their file."""


def side_files(inspection: Inspection) -> SourceFiles:
    """Return a checkpoint's headers, and what is copied or written beside its weights.

    Raises:
        CheckpointError: A file can't be read any more.
    """
    copied = [name for name in inspection.other_files if name not in SIDE_FILES]
    made: dict[str, bytes] = {}
    config = _config_of_gguf(inspection)
    tokenizer, lender = inspection.tokenizer, _lender(inspection)
    is_replaced = lender is not None or _is_chosen(inspection)
    if is_replaced or config is not None:
        roles = _TOKENIZER_ROLES if lender is not None else ("tokenizer",)
        left_out = {file.path for file in inspection.files if file.role in roles}
        copied = [name for name in copied if name not in left_out]
        made |= _tokenizer_files(tokenizer)
        for file in lender or ():
            made.setdefault(Path(file.path).name, _read(Path(file.path)))
        if is_replaced:  # the files that are left out may have named some
            ends = {"eos_token_id": list(tokenizer.eos_token_ids)}
            made[_GENERATION_FILE] = json_content(_object(inspection, _GENERATION_FILE) | ends)
        if tokenizer.kind == "builtin":
            config = (_object(inspection, CONFIG_FILE) if config is None else config) | {
                "tokenizer_vocab": tokenizer.name
            }
    if tokenizer.chat_template and (made or config is not None or _is_own_template(tokenizer)):
        made[TEMPLATE_FILE] = tokenizer.chat_template.encode()
    if config is not None:
        made[CONFIG_FILE] = json_content(config)
    return SourceFiles(inspection.directory, inspection.tensors, [name for name in copied if name not in made], made)


def _config_of_gguf(inspection: Inspection) -> dict[str, Any] | None:
    """Return what config.json would have; None: the checkpoint is no GGUF or ggjt file."""
    if not has_ggml_suffix(inspection.weight_files[0]):
        return None
    return dict(read_checkpoint(inspection.weight_paths).config)


def _lender(inspection: Inspection) -> list[CheckpointFile] | None:
    """Return the tokenizer's side files of the checkpoint that lends its tokenizer; None: none does."""
    path = next((fact.value for fact in inspection.facts if fact.name == TOKENIZER_FROM), None)
    if not isinstance(path, str):
        return None
    other = resolve(Path(path))
    return [
        CheckpointFile(str(other.directory / file.path), file.size_bytes, file.role)
        for file in other.files
        if file.role == "tokenizer_config"
    ]


def _is_chosen(inspection: Inspection) -> bool:
    """Whether a person set the vocabulary to one that can be written."""
    return inspection.tokenizer.kind != "none" and any(
        fact.name == "vocabulary" and fact.confidence is Confidence.OVERRIDE for fact in inspection.facts
    )


def _is_own_template(tokenizer: TokenizerSpec) -> bool:
    """Whether a person set the chat template."""
    return tokenizer.chat_template_origin == "set by a person"


def _tokenizer_files(tokenizer: TokenizerSpec) -> dict[str, bytes]:
    """Return the file of a tokenizer under the name by which a checkpoint's directory has it."""
    if tokenizer.path is None:
        return {}
    path = Path(tokenizer.path)
    if tokenizer.kind == "gguf":
        return {VOCABULARY_FILE: copied_vocabulary(read_gguf(path))}
    if tokenizer.kind == "ggjt":
        return {VOCABULARY_FILE: _ggjt_vocabulary(path)}
    return {_NAMES.get(tokenizer.kind, path.name): _read(path)}


def _ggjt_vocabulary(path: Path) -> bytes:
    """Return the vocabulary of a ggjt file as GGUF has it."""
    found = read_ggjt_vocabulary(path)
    tokens = found.vocabulary
    keys: dict[str, Value] = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [token.encode() for token in tokens.tokens],
        "tokenizer.ggml.scores": ("float32", tokens.scores),
        "tokenizer.ggml.token_type": ("int32", tokens.types),
        "tokenizer.ggml.add_bos_token": True,
    }
    return vocabulary_content(keys | {f"tokenizer.ggml.{name}_token_id": found.ids[name] for name in found.ids})


def _object(inspection: Inspection, name: str) -> dict[str, Any]:
    """Return a JSON file of the checkpoint; empty: there is none."""
    if name not in inspection.other_files:
        return {}
    found = json.loads(_read(inspection.directory / name))
    return found if isinstance(found, dict) else {}


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CorruptCheckpoint(f"{path} can't be read: {error.strerror}.", param=path.name) from None
