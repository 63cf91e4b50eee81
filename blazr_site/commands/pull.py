"""Run ``blazr pull``: download a checkpoint from the HuggingFace hub and register it."""

from __future__ import annotations

import argparse

from blazr_site.commands.models import progress_bar, stderr
from models_registry.detection.child import inspect_in_child
from models_registry.hub import hub_pull
from models_registry.services import checkpoint_register


def run(arguments: argparse.Namespace) -> int:
    """Download with a progress bar, inspect, register."""
    with progress_bar(f"Downloading {arguments.repo}") as report:
        path = hub_pull(arguments.repo, revision=arguments.revision, progress=report)
    name = arguments.name or arguments.repo.rpartition("/")[2]
    row = checkpoint_register(
        path=path, served_model_name=name, source="hub", origin=arguments.repo, inspect=inspect_in_child
    )
    stderr.print(f"Registered {row.served_model_name}: {row.architecture}. Files are in {path}.")
    return 0
