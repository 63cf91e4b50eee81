"""The permissions of replays, and what requests can be replayed on."""

from __future__ import annotations

from models_registry.adapter_names import full_name
from models_registry.adapters import adapters_available
from models_registry.models import AliasRevision, Checkpoint
from models_registry.selectors import checkpoint_list

VIEW = "inference.view_usagerecord"
REPLAY = "inference.scope_files"
PROMOTE = "models_registry.change_checkpoint"
MAX_REVISIONS = 100


def replay_targets() -> list[str]:
    """Return the names of models, adapters, aliases and their newest revisions."""
    models = checkpoint_list().filter(state=Checkpoint.State.AVAILABLE).values_list("served_model_name", flat=True)
    revisions = AliasRevision.objects.filter(checkpoint__isnull=False).select_related("alias").order_by("-pk")
    shown = [item for item in revisions[:MAX_REVISIONS] if item.is_available]
    found = [(item.alias.name, f"{item.alias.name}@{item.number}") for item in shown]
    adapters = [full_name(row.base.served_model_name, row.name) for row in adapters_available()]
    return [*sorted(models), *adapters, *sorted({name for name, _ in found}), *(exact for _, exact in found)]
