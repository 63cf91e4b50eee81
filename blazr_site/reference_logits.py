"""Compute a checkpoint's logits and token ids with transformers, where it is installed and knows the type."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from models_registry.detection.inspection import Inspection

SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")


def reason_against(inspection: Inspection) -> str:
    """Return why transformers can't be the reference for a checkpoint; empty: it can."""
    if importlib.util.find_spec("transformers") is None:
        return "transformers isn't installed here; pip install transformers."
    if inspection.spec.format != "huggingface":
        return f"transformers doesn't read checkpoints of the format {inspection.spec.format}."
    if not any((inspection.directory / name).is_file() for name in SAFETENSORS):
        return "transformers reads a directory with model.safetensors only."
    if inspection.spec.encoded:
        return "the weights are codes, which transformers needs other packages for."
    kind = _model_type(inspection.directory)
    if kind not in _known_types():
        return (
            f"this version of transformers doesn't know the type {kind[:40]!r}, and a checkpoint's code is never run."
        )
    return ""


def reference_logits(directory: Path, texts: Sequence[Sequence[int]], dtype: torch.dtype) -> list[torch.Tensor]:
    """Return float32 logits (n, V) for each text; code of the checkpoint is not run, and nothing is fetched.

    Raises:
        Exception: Whatever transformers raises.
    """
    from transformers import AutoModelForCausalLM  # it imports torch's compilers and takes seconds

    transformers_class: Any = AutoModelForCausalLM
    model = transformers_class.from_pretrained(
        str(directory),
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        dtype=dtype,
        attn_implementation="eager",
    )
    model.eval()
    found = []
    with torch.inference_mode():
        for text in texts:
            found.append(model(torch.tensor([list(text)]), use_cache=False).logits[0].float())
    return found


def reference_ids(directory: Path, texts: Sequence[str]) -> list[list[int]]:
    """Return the token ids of texts without special tokens, as transformers makes them.

    Raises:
        Exception: Whatever transformers raises.
    """
    from transformers import AutoTokenizer  # as above

    tokenizer: Any = AutoTokenizer.from_pretrained(  # nosec B615 - a directory on this disk
        str(directory), local_files_only=True, trust_remote_code=False
    )
    return [list(tokenizer.encode(text, add_special_tokens=False)) for text in texts]


def _model_type(directory: Path) -> str:
    """The type in config.json, which inspection has read; a type of text within one of several media is its own."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8-sig"))
    return str(config.get("model_type", "")) if isinstance(config, dict) else ""


def _known_types() -> set[str]:
    from transformers import AutoModelForCausalLM  # as above

    mapping: Any = AutoModelForCausalLM._model_mapping
    return {str(config.model_type) for config in mapping}
