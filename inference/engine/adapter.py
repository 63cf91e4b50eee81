"""Adapter: a LoRA adapter that requests may name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from inference.errors import Conflict
from inference.modelling.lora.plan import AdapterPlan


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """An adapter that requests may name.

    Attributes:
        digest: Of its files' content; requests with the same digest share state.
        plan: What it changes.
        weights: Its safetensors file.
        num_bytes: Memory that it takes while it is resident.
        modified_ns: When the file was written last, as the digest was made.
    """

    digest: str
    plan: AdapterPlan
    weights: Path
    num_bytes: int
    modified_ns: int

    def check_unchanged(self) -> None:
        """Refuse a file that isn't the one with this digest any more.

        Raises:
            Conflict: It was written again, or is gone.
        """
        try:
            is_same = self.weights.stat().st_mtime_ns == self.modified_ns
        except OSError:
            is_same = False
        if not is_same:
            raise Conflict(
                f"{self.weights.parent.name}/{self.weights.name} has changed or is gone since the adapter was added; "
                "add it again.",
                param="adapter",
            )
