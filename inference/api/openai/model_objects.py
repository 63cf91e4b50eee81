"""Describe served models as OpenAI's model objects."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async

from inference.errors import UnknownModel
from inference.models.readable_rows import readable_rows
from inference.serving.served_models import available_checkpoints, max_model_len
from inference.values.principal import principal_current
from models_registry.adapter_names import full_name
from models_registry.adapters import adapters_available
from models_registry.aliases import aliases_of
from models_registry.models import Checkpoint
from models_registry.selectors import checkpoint_list


async def model_objects() -> list[dict[str, Any]]:
    """Return OpenAI's model objects of all checkpoints that can be served, by name, then of aliases and adapters."""
    return await sync_to_async(
        lambda: [
            *(_model_object(row) for row in readable_rows(available_checkpoints())),
            *_alias_objects(),
            *_adapter_objects(),
        ]
    )()


async def model_object(*, name: str) -> dict[str, Any]:
    """Return one model object.

    Raises:
        UnknownModel: No model has this name.
    """

    def read() -> dict[str, Any]:
        rows = [] if "\0" in name else readable_rows(available_checkpoints().filter(served_model_name=name), 1)
        row = next(iter(rows), None)
        if row is None:
            for item in (*_alias_objects(), *_adapter_objects()):
                if item["id"] == name:
                    return item
            raise UnknownModel(
                f"The model {name[:120]!r} does not exist; GET /v1/models lists the models that do.", param="model"
            )
        return _model_object(row)

    return await sync_to_async(read)()


def _alias_objects() -> list[dict[str, Any]]:
    """Return a model object per alias: ``root`` is what it means, ``parent`` the base of an adapter."""
    allowed = principal_current().models
    rows = {row.pk: row for row in readable_rows(checkpoint_list().filter(state=Checkpoint.State.AVAILABLE))}
    found = []
    for alias in aliases_of():
        if alias.current is None or alias.current.checkpoint_id is None:
            continue
        row = rows.get(alias.current.checkpoint_id)
        if row is None or (allowed is not None and alias.name not in allowed):
            continue
        root = row.served_model_name
        if alias.current.adapter_name:
            root = full_name(root, alias.current.adapter_name)
        item = {
            **_model_object(row),
            "id": alias.name,
            "created": int(alias.created_at.timestamp()),
            "root": root,
            "revision": alias.current.number,
        }
        found.append(item | ({"parent": row.served_model_name} if alias.current.adapter_name else {}))
    return found


def _adapter_objects() -> list[dict[str, Any]]:
    """Return a model object per adapter; ``parent`` is its base."""
    allowed = principal_current().models
    found = []
    for adapter in adapters_available():
        base = adapter.base
        name = full_name(base.served_model_name, adapter.name)
        if allowed is None or name in allowed:
            created = int(adapter.created_at.timestamp())
            found.append({**_model_object(base), "id": name, "created": created, "parent": base.served_model_name})
    return found


def _model_object(row: Checkpoint) -> dict[str, Any]:
    return {
        "id": row.served_model_name,
        "object": "model",
        "created": int(row.created_at.timestamp()),
        "owned_by": "local",
        "max_model_len": max_model_len(row),
    }
