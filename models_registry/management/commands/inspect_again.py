"""Inspect all checkpoints again: ``python manage.py inspect_again``, after their files came back from a backup."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from inference.errors import BlazrError
from inference.models.readable_rows import readable_rows
from models_registry.models import Checkpoint
from models_registry.services import checkpoint_refresh


class Command(BaseCommand):
    help = "Inspect the files of all checkpoints again, as the button on each model's page does."

    def handle(self, *args: Any, **options: Any) -> None:
        """Inspect one after the other, and say at the end which can't be served.

        Raises:
            CommandError: At least one can't be served as it is.
        """
        num_refused, rows = 0, readable_rows(Checkpoint.objects.order_by("served_model_name"))
        for row in rows:
            try:
                checkpoint_refresh(checkpoint=row)
            except BlazrError as error:
                num_refused += 1
                self.stderr.write(f"{row.served_model_name}: {error.message}")
            else:
                self.stdout.write(f"{row.served_model_name}: available")
        if num_refused:
            raise CommandError(f"{num_refused} of {len(rows)} models can't be served; see above.")
