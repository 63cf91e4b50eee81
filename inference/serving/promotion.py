"""Let aliases mean what a served name means: a checkpoint, or an adapter of one."""

from __future__ import annotations

from uuid import UUID

from inference.values.served_model import ServedModel
from models_registry.adapters import adapter_get
from models_registry.aliases import alias_promote
from models_registry.models import AliasRevision
from models_registry.selectors import checkpoint_get


def served_promote(*, name: str, served: ServedModel, author_name: str) -> None:
    """Let an alias mean a served model, as a new revision.

    Raises:
        BlazrError: As ``checkpoint_get``, ``adapter_get`` and ``alias_promote`` raise.
    """
    checkpoint = checkpoint_get(served.checkpoint_id)
    adapter = adapter_get(checkpoint=checkpoint, adapter_id=UUID(served.adapter)) if served.adapter else None
    alias_promote(name=name, checkpoint=checkpoint, adapter=adapter, author_name=author_name)


def revision_means(revision: AliasRevision | None, served: ServedModel) -> bool:
    """Whether a revision means a served model; what has been removed is meant by none."""
    if revision is None or not revision.is_available:
        return False
    return (str(revision.checkpoint_id), str(revision.adapter_id or "")) == (served.checkpoint_id, served.adapter)
