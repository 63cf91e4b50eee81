"""What several commands share: finding the checkpoint that ``--model`` names, and loading it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from inference.errors import InvalidRequest

if TYPE_CHECKING:
    from inference.llm.llm import LLM
    from models_registry.detection.inspection import Inspection

DtypeChoice = Literal["auto", "float32", "bfloat16", "float16"]
QuantChoice = Literal["none", "int8", "int4"]
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
stderr = Console(stderr=True)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """``--model``, ``--vocab`` and ``--override``."""
    parser.add_argument("--model", required=True, help="a directory, a .safetensors file, or a HuggingFace id; 'demo'")
    parser.add_argument(
        "--vocab", help="cl100k_base, o200k_base, llama3, deepseek_v3, or a .tiktoken file (default: detected)"
    )
    parser.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="FACT=VALUE",
        help="set a detected fact by hand, e.g. top_k=1 (repeatable)",
    )


def resolve_model(name: str) -> Path:
    """The checkpoint's path: the shipped demo, an existing path, or a download from the hub.

    Raises:
        InvalidRequest: Nothing of that name is here, and it isn't a hub id.
        BlazrError: The download failed.
    """
    from inference.demo.paths import PREBUILT_DIRECTORY, SERVED_MODEL_NAME

    path = Path(name).expanduser()
    if path.exists():
        return path
    if name == SERVED_MODEL_NAME:
        return PREBUILT_DIRECTORY
    if HUB_ID.fullmatch(name) and not name.startswith((".", "/")):
        from models_registry.hub import hub_pull

        with progress_bar(f"Downloading {name}") as report:
            return hub_pull(name, progress=report)
    raise InvalidRequest(
        f"model {name!r} is neither an existing path nor a HuggingFace id (owner/name); check the spelling.",
        param="model",
    )


def overrides_from(arguments: argparse.Namespace) -> dict[str, Any]:
    """``--override`` and ``--vocab`` as facts; values are read as JSON where they can be."""
    import json

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
    return overrides


def inspect_model(arguments: argparse.Namespace) -> Inspection:
    """Find and inspect what ``--model`` names."""
    from models_registry.detection.inspection import inspect_checkpoint

    return inspect_checkpoint(resolve_model(arguments.model), overrides=overrides_from(arguments))


def inspect_to_run(arguments: argparse.Namespace) -> Inspection:
    """``inspect_model``; what is doubtful about it goes to the terminal's error stream."""
    inspection = inspect_model(arguments)
    for warning in inspection.warnings:
        stderr.print(f"[yellow]note:[/] {warning}", highlight=False)
    return inspection


def load_to_run(arguments: argparse.Namespace, inspection: Inspection, *, max_num_seqs: int = 64) -> LLM:
    """``load_model`` as ``--cpu``, ``--dtype``, ``--quant`` and ``--speculative`` say."""
    return load_model(
        inspection,
        device=choose_device(force_cpu=arguments.cpu),
        dtype=arguments.dtype,
        quant=arguments.quant,
        speculative=arguments.speculative,
        max_num_seqs=max_num_seqs,
    )


def load_model(
    inspection: Inspection,
    *,
    device: str,
    dtype: DtypeChoice = "auto",
    quant: QuantChoice = "none",
    speculative: str | None = None,
    max_num_seqs: int = 64,
) -> LLM:
    """Load an inspected checkpoint for this process, with a progress bar.

    Args:
        speculative: As ``SpeculativeOptions.parse`` reads it; a draft model is found as ``resolve_model`` does.
        max_num_seqs: Most sequences that are computed together.
    """
    from inference.llm.draft_loading import DraftCheckpoint
    from inference.llm.llm import LLM
    from inference.llm.options import LLMOptions
    from inference.values.speculative_options import SpeculativeOptions
    from models_registry.detection.inspection import inspect_checkpoint

    guessing = None if speculative is None else SpeculativeOptions.parse(speculative)
    draft = None
    if guessing is not None and guessing.draft_model:
        found = inspect_checkpoint(resolve_model(guessing.draft_model))
        draft = DraftCheckpoint(guessing.draft_model, found.spec, found.tokenizer, found.weight_paths)

    with progress_bar("Loading weights") as report:
        return LLM.load(
            inspection.spec,
            inspection.tokenizer,
            [inspection.directory / name for name in inspection.weight_files],
            LLMOptions(device=device, dtype=dtype, quant=quant, speculative=guessing, max_num_seqs=max_num_seqs),
            progress=report,
            draft=draft,
        )


def choose_device(*, force_cpu: bool) -> str:
    """``cuda:0`` when there is one, unless the CPU is asked for."""
    if force_cpu:
        return "cpu"
    import torch

    return "cuda:0" if torch.cuda.is_available() else "cpu"


@contextmanager
def progress_bar(title: str) -> Iterator[Any]:
    """A bar on the error stream; yields ``report(share, detail)``."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=stderr, transient=True) as bar:
        task = bar.add_task(title, total=1.0)

        def report(share: float, detail: str = "") -> None:
            bar.update(task, completed=share)

        yield report


@contextmanager
def step_bar(title: str, total: int) -> Iterator[tuple[Progress, Any]]:
    """A bar that counts steps and shows a text beside it; yields the bar and its task."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=stderr) as bar:
        yield bar, bar.add_task(title, total=total, note="")
