"""End dead uploads and jobs on checkpoints, and remove their files; the supervisor runs this before the web starts."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from models_registry.sweep import storage_sweep


class Command(BaseCommand):
    """``manage.py sweep_uploads``."""

    help = "End uploads and jobs that nobody goes on with, and remove their files."

    def handle(self, *args: Any, **options: Any) -> None:
        """Sweep once and report the numbers."""
        report = storage_sweep()
        self.stdout.write(
            f"ended {report.ended_uploads} uploads and {report.ended_jobs} jobs, removed "
            f"{report.removed_directories} directories and {report.removed_blobs} blobs"
        )
