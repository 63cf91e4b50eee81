"""Run ``blazr merge``: merge LoRA adapters into a base and write the checkpoint that this makes."""

from __future__ import annotations

import argparse
from pathlib import Path

from blazr_site.commands.loading import inspect_model
from blazr_site.commands.models import detailed_bar, stderr
from inference.host.units import format_bytes
from inference.llm.checkpoint_writing import SourceFiles
from inference.llm.merging import Merge, merge_checkpoint, parse_weighted
from inference.modelling.adapters.merging import MergeRule


def run(arguments: argparse.Namespace) -> int:
    """Merge and print where the checkpoint is."""
    adapters = tuple(map(parse_weighted, arguments.adapter))
    merge = Merge(adapters, MergeRule(arguments.method, arguments.density, arguments.share))
    inspection = inspect_model(arguments)
    with detailed_bar("Merging") as report:
        size = merge_checkpoint(
            inspection.spec,
            inspection.weight_paths,
            SourceFiles(inspection.directory, inspection.tensors, inspection.other_files),
            Path(arguments.output),
            merge,
            progress=report,
        )
    noun = "adapter" if len(adapters) == 1 else "adapters"
    stderr.print(
        f"Wrote {arguments.output}: {format_bytes(size)}, {len(adapters)} {noun} merged by {arguments.method}.",
        highlight=False,
        markup=False,
    )
    return 0
