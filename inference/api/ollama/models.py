"""Describe registered models in Ollama's shapes; uses the database, so call it off the event loop."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from inference.models.readable_rows import readable_rows
from inference.serving.served_models import max_model_len
from inference.values.principal import principal_current
from inference.values.states import WorkerState
from models_registry.adapter_names import full_name
from models_registry.adapters import adapters_available
from models_registry.aliases import aliases_of
from models_registry.models import Checkpoint
from models_registry.selectors import checkpoint_get
from models_registry.settings_schema import PARAMETERS

_FOR_EVER = datetime(2318, 1, 1, tzinfo=UTC)
"""Ollama reports a far year for models without an expiry."""


def tags() -> list[dict[str, Any]]:
    """Return the models that the caller may use, by name; a key may be for an alias or an adapter without its base."""
    rows = _rows()
    found = [(row.served_model_name, row) for row in rows]
    by_id, allowed = {row.pk: row for row in rows}, principal_current().models
    for alias in aliases_of():
        checkpoint_id = None if alias.current is None else alias.current.checkpoint_id
        if checkpoint_id is not None and checkpoint_id in by_id:
            found.append((alias.name, by_id[checkpoint_id]))
    for adapter in adapters_available():
        meant = by_id.get(adapter.base_id)
        if meant is not None:
            found.append((full_name(meant.served_model_name, adapter.name), meant))
    return [
        {**_entry(row), "name": name, "model": name, "modified_at": _time(row.updated_at), "size": row.size_bytes}
        for name, row in found
        if allowed is None or name in allowed
    ]


def running(workers: Mapping[str, WorkerState]) -> list[dict[str, Any]]:
    """Return the models in memory of all workers that the caller may use by their own names."""
    allowed = principal_current().models
    rows = {str(row.pk): row for row in _rows() if allowed is None or row.served_model_name in allowed}
    found: dict[str, dict[str, Any]] = {}
    for worker in workers.values():
        for model in worker.models:
            row = rows.get(model.checkpoint_id)
            if row is None or model.status != "ready":
                continue
            entry = found.setdefault(
                model.checkpoint_id,
                {**_entry(row), "size": 0, "size_vram": 0, "expires_at": "", "context_length": max_model_len(row)},
            )
            entry["size"] += model.memory_bytes
            entry["size_vram"] += model.memory_bytes if worker.device.startswith("cuda") else 0
            entry["context_length"] = model.max_model_len or entry["context_length"]
            leaves = _FOR_EVER
            if model.keep_alive_s >= 0:
                leaves = datetime.fromtimestamp(model.last_used_at + model.keep_alive_s, UTC)
            entry["expires_at"] = max(entry["expires_at"], _time(leaves))
    return list(found.values())


def shown(checkpoint_id: str) -> dict[str, Any]:
    """Return the full description of a model.

    Raises:
        UnknownModel: The model was deleted meanwhile.
    """
    row = checkpoint_get(checkpoint_id)
    tokenizer, spec = row.inspection["tokenizer"], row.inspection.get("spec", {})
    template, family = tokenizer.get("chat_template") or "", row.model_type
    capabilities = ["completion", "embedding"]
    if "tools" in template:
        capabilities.append("tools")
    if "enable_thinking" in template or "reasoning_effort" in template:
        capabilities.append("thinking")
    if spec.get("vision") is not None:
        capabilities.append("vision")
    info = {
        "general.architecture": family,
        "general.basename": row.served_model_name,
        "general.parameter_count": row.num_parameters,
        f"{family}.block_count": row.num_layers,
        f"{family}.context_length": max_model_len(row),
        f"{family}.vocab_size": row.vocab_size,
    }
    if spec.get("hidden_size"):
        info[f"{family}.embedding_length"] = spec["hidden_size"]
    return {
        "modelfile": f"FROM {row.served_model_name}\n",
        "parameters": "\n".join(f"{name} {json.dumps(value)}" for name, value in _parameters_of(row)),
        "template": template,
        "details": _details(row),
        "model_info": info,
        "capabilities": capabilities,
        "modified_at": _time(row.updated_at),
    }


def _parameters_of(row: Checkpoint) -> list[tuple[str, Any]]:
    """Return the settings, and the parameters of /api/create in their own names."""
    settings = {name: value for name, value in row.settings.items() if name != PARAMETERS}
    return sorted((settings | row.settings.get(PARAMETERS, {})).items())


def _rows() -> list[Checkpoint]:
    return readable_rows(Checkpoint.objects.defer("inspection").filter(state=Checkpoint.State.AVAILABLE))


def _entry(row: Checkpoint) -> dict[str, Any]:
    return {
        "name": row.served_model_name,
        "model": row.served_model_name,
        "digest": _digest(row),
        "details": _details(row),
    }


def _digest(row: Checkpoint) -> str:
    """Return a name of the files' state; their permissions and links, which change the ctime, don't count."""
    stamps = [{name: value for name, value in stamp.items() if name != "ctime_ns"} for stamp in row.file_stamps]
    return hashlib.sha256(json.dumps([str(row.pk), stamps], sort_keys=True).encode()).hexdigest()


def _details(row: Checkpoint) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "safetensors",
        "family": row.model_type,
        "families": [row.model_type],
        "parameter_size": _parameter_count(row.num_parameters),
        "quantization_level": str(row.settings.get("quant") or row.dtype),
    }


def _parameter_count(count: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return str(count)


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
