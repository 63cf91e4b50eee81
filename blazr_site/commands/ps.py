"""Run ``blazr ps``: print the models in memory, as the running workers report them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from blazr_site.commands.tables import output_console, table
from inference.errors import Unavailable
from inference.host.units import format_bytes
from inference.transport.worker_states import worker_states_sync
from models_registry.models import Adapter
from models_registry.selectors import checkpoint_list


def run(arguments: argparse.Namespace) -> int:
    """Print one row per model that is resident or loading."""
    console = output_console()
    try:
        workers = worker_states_sync()
    except Unavailable:
        console.print("No server is running on this data directory. Try: blazr serve")
        return 1
    names = {str(key): name for key, name in checkpoint_list().values_list("pk", "served_model_name")}
    columns = ("name", "state", "memory", "running", "waiting", "tokens/s", "prefix cache", "adapters")
    resident = table(*columns, "worker", "device")
    adapters = {str(key): name for key, name in Adapter.objects.values_list("pk", "name")}
    for worker in workers.values():
        for model in worker.models:
            state = model.status if model.status == "ready" else f"{model.status} {model.progress:.0%}"
            cells = (
                names.get(model.checkpoint_id, model.checkpoint_id),
                state,
                format_bytes(model.memory_bytes),
                model.num_running,
                model.num_waiting,
                f"{model.tokens_per_s:.1f}",
                _prefix_cache(model.stats),
                ", ".join(sorted(adapters.get(item.adapter_id, item.adapter_id) for item in model.adapters)),
                worker.worker_id,
                worker.device,
            )
            resident.add_row(*(Text(str(cell)) for cell in cells))
    if not resident.row_count:
        console.print(f"No model is in memory ({len(workers)} worker{'s' if len(workers) != 1 else ''} running).")
        return 0
    console.print(resident)
    return 0


def _prefix_cache(stats: Mapping[str, Any]) -> str:
    """Return a summary of the prefix cache: cached blocks, and used and available snapshots."""
    cache = stats.get("prefix_cache")
    if not cache:
        return ""
    parts = [f"{cache['num_idle_blocks']:,} blocks"] if stats["num_blocks_total"] else []
    if cache["num_snapshot_slots"]:
        parts.append(f"{cache['num_snapshots']}/{cache['num_snapshot_slots']} snapshots")
    return ", ".join(parts)
