"""Read what the list of models shows of the stored inspections, which are long: once per version of a row."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import F

from inference.modelling.spec import LayerSpec
from inference.models.readable_rows import readable_rows
from models_registry import selectors
from models_registry.layer_ribbon import LayerRibbon, layer_ribbon
from models_registry.models import Checkpoint

_ROWS_AT_ONCE = 100
_MAX_CACHED = 5000


@dataclass(frozen=True, slots=True)
class ListFacts:
    """What the list shows of an inspection.

    Attributes:
        ribbon: None: the inspection is damaged.
        quantisation: In which codes the files hold the weights; empty: in none.
    """

    ribbon: LayerRibbon | None = None
    quantisation: str = ""


NOTHING = ListFacts()
_cached: dict[uuid.UUID, tuple[datetime, ListFacts]] = {}


def list_facts(rows: Sequence[Checkpoint]) -> dict[uuid.UUID, ListFacts]:
    """Return the facts of each row by its id; those of rows that have not changed are known already."""
    missing = [row.pk for row in rows if _cached.get(row.pk, (None, NOTHING))[0] != row.updated_at]
    if len(_cached) > _MAX_CACHED:
        for key in set(_cached) - {row.pk for row in rows}:
            _cached.pop(key, None)  # of a row that is gone; another thread may do the same
    for begin in range(0, len(missing), _ROWS_AT_ONCE):
        keys = missing[begin : begin + _ROWS_AT_ONCE]
        # The database reads the members out of the inspections.
        annotated: Any = (
            selectors.checkpoint_list()
            .filter(pk__in=keys)
            .annotate(stored_layers=F("inspection__spec__layers"), stored_facts=F("inspection__facts"))
        )
        for row in readable_rows(annotated):
            _cached[row.pk] = (row.updated_at, ListFacts(_ribbon(row.stored_layers), _quantisation(row.stored_facts)))
    return {row.pk: _cached.get(row.pk, (None, NOTHING))[1] for row in rows}


def _ribbon(stored: Any) -> LayerRibbon | None:
    """Return the ribbon of stored layers; most of a model's layers are alike, and are decoded once."""
    known: dict[str, LayerSpec] = {}
    layers = []
    try:
        for item in stored:
            text = json.dumps(item)
            if text not in known:
                known[text] = LayerSpec.from_dict(item)
            layers.append(known[text])
        return layer_ribbon(layers)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _quantisation(stored: Any) -> str:
    kept = [fact for fact in stored if isinstance(fact, Mapping)] if isinstance(stored, list) else []
    facts = {name: fact.get("value") for fact in kept if isinstance(name := fact.get("name"), str)}
    found = facts.get("gguf.file_type") or facts.get("quantisation")
    return found if isinstance(found, str) else ""
