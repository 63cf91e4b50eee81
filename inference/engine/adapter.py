"""Adapter: a LoRA adapter, or an X-LoRA, that requests may name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from inference.errors import Conflict
from inference.modelling.lora.plan import AdapterPlan
from inference.modelling.lora.xlora_plan import XLoraPlan


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """An adapter that requests may name.

    Attributes:
        digest: Of its files' content; requests with the same digest share state.
        plan: What it changes.
        weights: Its safetensors file; of an X-LoRA the classifier's, then those of its adapters.
        num_bytes: Memory that it takes while it is resident.
        modified_ns: When each file was written last, as the digest was made.
    """

    digest: str
    plan: AdapterPlan | XLoraPlan
    weights: tuple[Path, ...]
    num_bytes: int
    modified_ns: tuple[int, ...]

    @property
    def is_xlora(self) -> bool:
        """Whether each token is computed twice, with a second set of states."""
        return isinstance(self.plan, XLoraPlan)

    def check_unchanged(self) -> None:
        """Refuse files that aren't those with this digest any more.

        Raises:
            Conflict: One was written again, or is gone.
        """
        for path, modified_ns in zip(self.weights, self.modified_ns, strict=True):
            try:
                is_same = path.stat().st_mtime_ns == modified_ns
            except OSError:
                is_same = False
            if not is_same:
                raise Conflict(
                    f"{path.parent.name}/{path.name} has changed or is gone since the adapter was added; add it again.",
                    param="adapter",
                )
