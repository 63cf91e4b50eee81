"""Load the model of ``--model`` in this process, for commands that run without a server."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.text import Text

from blazr_site.commands.models import progress_bar, resolve_model, stderr
from inference.errors import InvalidRequest
from inference.llm.draft_loading import DraftCheckpoint
from inference.llm.llm import LLM
from inference.llm.loading import choose_device
from inference.llm.merging import Merge
from inference.llm.options import LLMOptions
from inference.values.speculative_options import SpeculativeOptions
from inference.values.tokenizer_spec import MAX_TEMPLATE_CHARS
from models_registry.chat_templates import check_after_inspection
from models_registry.detection.child import inspect_in_child
from models_registry.detection.facts import CHAT_TEMPLATE, TOKENIZER_FROM
from models_registry.detection.inspection import Inspection
from models_registry.detection.json_file import read_text


def overrides_from(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return ``--override``, ``--vocab`` and ``--chat-template`` as facts; values are parsed as JSON if possible."""
    overrides: dict[str, Any] = {}
    for item in arguments.override:
        fact, separator, value = item.partition("=")
        if not separator:
            raise InvalidRequest(f"--override {item!r} must look like FACT=VALUE.", param="override")
        try:
            overrides[fact] = json.loads(value)
        except ValueError:
            overrides[fact] = value
    if arguments.vocab:
        overrides["vocabulary"] = arguments.vocab
    if isinstance(overrides.get(TOKENIZER_FROM), str):
        overrides[TOKENIZER_FROM] = str(resolve_model(overrides[TOKENIZER_FROM]).absolute())
    if arguments.chat_template:
        overrides[CHAT_TEMPLATE] = read_text(Path(arguments.chat_template).expanduser(), MAX_TEMPLATE_CHARS)
    return overrides


def inspect_model(arguments: argparse.Namespace) -> Inspection:
    """Find and inspect the checkpoint of ``--model``."""
    overrides = overrides_from(arguments)
    inspection = inspect_in_child(resolve_model(arguments.model), overrides)
    return check_after_inspection(inspection, overrides, is_new=True)


def inspect_to_run(arguments: argparse.Namespace) -> Inspection:
    """Inspect the checkpoint of ``--model``, and print its warnings to the error stream."""
    inspection = inspect_model(arguments)
    for warning in inspection.warnings:
        stderr.print(Text("note: ", style="yellow").append(warning, style="default"))
    return inspection


def load_to_run(
    arguments: argparse.Namespace,
    inspection: Inspection,
    *,
    max_num_seqs: int = 64,
    adapters: Mapping[str, Path] | None = None,
    merge: Merge | None = None,
) -> LLM:
    """Load the model as the options of ``add_loading_arguments`` say, with a progress bar.

    Args:
        adapters: LoRA adapters that requests may name.
        merge: LoRA adapters that become part of the weights.
    """
    options = LLMOptions(
        device=choose_device(force_cpu=arguments.cpu),
        dtype=arguments.dtype,
        quant=arguments.quant,
        state_dtype=arguments.state_dtype,
        speculative=None if arguments.speculative is None else SpeculativeOptions.parse(arguments.speculative),
        max_num_seqs=max_num_seqs,
    )
    with progress_bar("Loading weights") as report:
        return LLM.load(
            inspection.spec,
            inspection.tokenizer,
            inspection.weight_paths,
            options,
            progress=report,
            draft=_draft(options.speculative),
            adapters=adapters,
            merge=merge,
        )


def _draft(options: SpeculativeOptions | None) -> DraftCheckpoint | None:
    """Return the draft model of the options, found like ``--model``."""
    if options is None or not options.draft_model:
        return None
    found = inspect_in_child(resolve_model(options.draft_model))
    return DraftCheckpoint(options.draft_model, found.spec, found.tokenizer, found.weight_paths)
