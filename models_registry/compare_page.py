"""Serve the page that compares two checkpoints."""

from __future__ import annotations

from typing import Any

from inference.models.readable_rows import readable_rows
from models_registry import comparison, selectors
from models_registry.api.views import checkpoint_inspection
from models_registry.models import Checkpoint
from models_registry.views import StaffPage

WHOLE = ("Sizes", "Measured", "Layers")
"""Parts that show what is the same, too."""


class ComparePage(StaffPage):
    """Two checkpoints side by side."""

    template_name = "registry/compare.html"
    section = "models"
    permission_required = "models_registry.view_checkpoint"

    def page_context(self, **kwargs: Any) -> dict[str, Any]:
        """Return the choice of checkpoints, and what differs between the two that the address names."""
        first, second = self._chosen()
        context: dict[str, Any] = {
            "choices": readable_rows(selectors.checkpoint_list()),
            "first": first,
            "second": second,
        }
        if first is None or second is None:
            return context
        one, other = checkpoint_inspection(first), checkpoint_inspection(second)
        parts = {
            "Sizes": comparison.size_lines(one, other),
            "Measured": comparison.measured_lines(first, second),
            "Layers": comparison.layer_lines(one, other),
            "config.json": comparison.config_lines(first, second),
            "Facts": comparison.fact_lines(one, other),
        }
        return context | {
            "parts": [
                {
                    "title": title,
                    "lines": lines,
                    "num_different": sum(line.differs for line in lines),
                    "shown": [line for line in lines if line.differs or title in WHOLE],
                    "alike": [line for line in lines if not line.differs and title not in WHOLE],
                }
                for title, lines in parts.items()
            ],
            "tensors": comparison.tensor_lines(one, other),
        }

    def _chosen(self) -> tuple[Checkpoint | None, Checkpoint | None]:
        """Return the checkpoints of ``a`` and ``b``, or the first two of ``pick``, as ticked in the list.

        Raises:
            UnknownModel: There is no such checkpoint.
        """
        query = self.request.GET
        names = [query.get("a", ""), query.get("b", "")]
        if not any(names):
            names = [*query.getlist("pick")[:2], "", ""][:2]
        first, second = (selectors.checkpoint_get(name) if name else None for name in names)
        return first, second
