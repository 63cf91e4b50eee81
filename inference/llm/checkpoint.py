"""Find and inspect the checkpoint that a program names, and check the options of its load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from inference.errors import InvalidRequest
from inference.llm.draft_loading import DraftCheckpoint
from inference.llm.loading import choose_device
from inference.llm.options import LLMOptions
from inference.values.speculative_options import SpeculativeOptions
from models_registry.chat_templates import check_after_inspection
from models_registry.detection.child import inspect_in_child
from models_registry.detection.facts import TOKENIZER_FROM
from models_registry.detection.inspection import Inspection
from models_registry.model_paths import resolve_model


def checkpoint_to_load(
    model: str | Path,
    device: str | None,
    speculative: str | None,
    overrides: Mapping[str, Any],
    options: Mapping[str, Any],
) -> tuple[Inspection, DraftCheckpoint | None, LLMOptions]:
    """Return what ``LLM.load`` takes; see ``LLM.from_pretrained``.

    Raises:
        InvalidRequest: There is no such model, or an option is unknown or wrong.
        BlazrError: The model can't be downloaded or read.
    """
    names = {item.name for item in fields(LLMOptions)} - {"device", "speculative"}
    unknown = options.keys() - names
    if unknown:
        raise InvalidRequest(
            f"{min(unknown)} is no option of a load; known are {', '.join(sorted(names))}.", param=min(unknown)
        )
    drafting = None if speculative is None else SpeculativeOptions.parse(speculative)
    checked = LLMOptions(device=device or choose_device(force_cpu=False), speculative=drafting, **options)
    facts = dict(overrides)
    if isinstance(facts.get(TOKENIZER_FROM), str):
        facts[TOKENIZER_FROM] = str(resolve_model(facts[TOKENIZER_FROM]).absolute())
    found = inspect_in_child(resolve_model(str(model)), facts)
    found = check_after_inspection(found, facts, is_new=True)
    draft = None
    if drafting is not None and drafting.draft_model:
        other = inspect_in_child(resolve_model(drafting.draft_model))
        draft = DraftCheckpoint(drafting.draft_model, other.spec, other.tokenizer, other.weight_paths)
    return found, draft, checked
