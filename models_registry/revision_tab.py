"""What the revisions' tab of a model's page shows: where its aliases pointed, its training, and what changed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.http import QueryDict

from inference.errors import BlazrError
from inference.models.readable_rows import readable_rows
from models_registry import selectors
from models_registry.models import AliasRevision, Checkpoint, ModelAlias, RunStep, TrainingRun
from models_registry.runs.loss_curve import draw_losses
from models_registry.runs.services import run_steps
from models_registry.tensor_index import layers_of_tensors
from models_registry.tensor_values import tensor_changes

MAX_REVISIONS = 200
"""Of an alias."""
MAX_CHANGES_SHOWN = 100
MAX_CHOICES = 200


@dataclass(frozen=True, slots=True)
class Revision:
    """A revision of an alias as the page shows it.

    Attributes:
        step: The checkpoint of a training run that made it; None: a person did.
        before: The revision before it, whose checkpoint is still there; None: there is none.
        is_this: Whether the page is this checkpoint's.
    """

    row: AliasRevision
    step: RunStep | None
    before: AliasRevision | None
    is_current: bool
    is_this: bool

    @property
    def name(self) -> str:
        """Name of what it means, with the checkpoint's name of today."""
        checkpoint = self.row.checkpoint
        if checkpoint is None:
            return self.row.meaning
        adapter = self.row.adapter_name
        return f"{checkpoint.served_model_name}:{adapter}" if adapter else checkpoint.served_model_name


def revisions_context(checkpoint: Checkpoint, query: QueryDict) -> dict[str, Any]:
    """Return the aliases of a checkpoint with their revisions, and the changes since the one that ``from`` names."""
    aliases = ModelAlias.objects.filter(revisions__checkpoint=checkpoint).distinct().order_by("name")
    return {
        "histories": [_history(alias, checkpoint) for alias in aliases],
        "choices": _choices(checkpoint),
        **changes_context(checkpoint, query),
    }


def changes_context(checkpoint: Checkpoint, query: QueryDict) -> dict[str, Any]:
    """Return what changed from the checkpoint that the address names to this one; empty: it names none."""
    name = query.get("from", "")[:64]
    if not name:
        return {}
    try:
        before = selectors.checkpoint_get(name)
        found = tensor_changes(before, checkpoint)
    except BlazrError as error:
        return {"changes_problem": error.message, "from_id": name}
    changes = found["changes"]
    changed = sorted((item for item in changes if not item["is_equal"]), key=_by_size)
    most = max((item["relative"] or 0.0 for item in changed), default=0.0)
    return {
        "from_id": str(before.pk),
        "before": before,
        "changed": changed[:MAX_CHANGES_SHOWN],
        "num_changed": len(changed),
        "num_equal": len(changes) - len(changed),
        "num_others": found["num_others"],
        "num_unread": found["num_unread"],
        "is_sampled": any(item["num_read"] < item["count"] for item in changes),
        "whole": _relative(changes),
        "most": most,
        "by_layer": _by_layer(changes, layers_of_tensors(checkpoint.pk)),
    }


def _history(alias: ModelAlias, checkpoint: Checkpoint) -> dict[str, Any]:
    rows = list(alias.revisions.select_related("checkpoint").defer("checkpoint__inspection")[:MAX_REVISIONS])
    run = TrainingRun.objects.filter(name=alias.name).first()
    steps = run_steps(run) if run else []
    by_number = {step.revision: step for step in steps if step.revision is not None}
    revisions = []
    for position, row in enumerate(rows):
        older = (other for other in rows[position + 1 :] if other.checkpoint_id not in (None, row.checkpoint_id))
        revisions.append(
            Revision(
                row=row,
                step=by_number.get(row.number),
                before=next(older, None),
                is_current=row.pk == alias.current_id,
                is_this=row.checkpoint_id == checkpoint.pk,
            )
        )
    return {
        "alias": alias,
        "revisions": revisions,
        "count": alias.revisions.count(),
        "run": run,
        "curve": draw_losses(steps) if run else None,
    }


def _choices(checkpoint: Checkpoint) -> list[Checkpoint]:
    """Return the checkpoints of the same family and size: their tensors may have the same names."""
    rows = selectors.checkpoint_list().filter(
        model_type=checkpoint.model_type, num_layers=checkpoint.num_layers, num_parameters=checkpoint.num_parameters
    )
    return readable_rows(rows.exclude(pk=checkpoint.pk), MAX_CHOICES)


def _by_size(change: Mapping[str, Any]) -> tuple[bool, float, str]:
    """Sort changes that have no figure first: they have values that aren't finite, or were zero."""
    return (change["relative"] is not None, -(change["relative"] or 0.0), change["name"])


def _relative(changes: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the norm of all changes over that of all values; what was read in part counts for the whole."""
    difference = norm = 0.0
    for change in changes:
        if change["squares"] is None:
            return None
        scale = change["count"] / max(1, change["num_read"])
        difference += change["squares"][0] * scale
        norm += change["squares"][1] * scale
    return math.sqrt(difference / norm) if norm else None


def _by_layer(changes: Sequence[Mapping[str, Any]], layers: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the relative change of each layer, and of what is outside of them."""
    groups: dict[int, list[Mapping[str, Any]]] = {}
    for change in changes:
        groups.setdefault(layers.get(change["name"], -1), []).append(change)
    found = [
        (f"layer {layer}" if layer >= 0 else "outside of the layers", _relative(group))
        for layer, group in sorted(groups.items(), key=lambda item: (item[0] < 0, item[0]))
    ]
    most = max((relative or 0.0 for _, relative in found), default=0.0) or 1.0
    return [{"label": label, "relative": relative, "share": (relative or 0.0) / most} for label, relative in found]
