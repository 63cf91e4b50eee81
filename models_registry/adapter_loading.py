"""Load LoRA adapters into memory ahead of their requests, and unload them."""

from __future__ import annotations

import uuid

from django.utils import timezone

from inference.errors import BlazrError, Conflict
from inference.values.states import ResidentAdapter
from models_registry import live
from models_registry.adapter_names import full_name
from models_registry.adapters import adapter_get
from models_registry.checkpoint_jobs import check_available
from models_registry.models import Adapter, Checkpoint


def adapter_load(*, checkpoint: Checkpoint, adapter_id: uuid.UUID) -> tuple[Adapter, ResidentAdapter | None]:
    """Load an adapter on the workers that hold its base, and with each load of the base, until ``adapter_unload``.

    Returns:
        The row, and the adapter in memory; None: no worker holds the base now, or one loads it again with room for it.

    Raises:
        NotFound: The checkpoint has none with this id.
        Conflict: Its files, or those of its base, are missing, adapters that were loaded ahead have all places, or it
            was removed meanwhile.
        Unavailable: No worker runs, or running requests of other adapters have all places.
        BlazrError: It can't be read.
    """
    row = adapter_get(checkpoint=checkpoint, adapter_id=adapter_id)
    check_available(checkpoint)
    if row.state != Adapter.State.AVAILABLE:
        raise Conflict(
            f"the files of the adapter {full_name(checkpoint.served_model_name, row.name)!r} are missing; restore "
            "them, or remove it.",
            param="adapter",
        )
    # First: a worker that loads the base meanwhile looks at the row.
    Adapter.objects.filter(pk=row.pk).update(is_pinned=True)
    try:
        found = live.load_adapter(str(checkpoint.pk), str(row.pk))
    except BlazrError:
        # What another load has reached, before or meanwhile, stays.
        Adapter.objects.filter(pk=row.pk, loaded_at=None).update(is_pinned=False)
        if not Adapter.objects.filter(pk=row.pk).exists():
            live.forget_adapter(str(row.pk))
        raise
    row.is_pinned, row.loaded_at = True, timezone.now()
    if not Adapter.objects.filter(pk=row.pk).update(is_pinned=True, loaded_at=row.loaded_at):
        # A worker may have read its files after the removal's order to forget it.
        live.forget_adapter(str(row.pk))
        name = full_name(checkpoint.served_model_name, row.name)
        raise Conflict(f"the adapter {name!r} was removed while it was loaded; register it again.", param="adapter")
    return row, found


def adapter_unload(*, checkpoint: Checkpoint, adapter_id: uuid.UUID) -> tuple[Adapter, ResidentAdapter | None]:
    """Let an adapter leave the memory; requests that go through it end first, and the next one loads it again.

    Returns:
        The row, and the adapter while it is still in memory.

    Raises:
        NotFound: The checkpoint has none with this id.
        Unavailable: Nobody knows whether it is in memory: Redis can't be reached, or a worker didn't reply in time.
            Its base comes without it from now on even so.
        BlazrError: A worker couldn't unload it.
    """
    row = adapter_get(checkpoint=checkpoint, adapter_id=adapter_id)
    row.is_pinned, row.loaded_at = False, None
    Adapter.objects.filter(pk=row.pk).update(is_pinned=False, loaded_at=None)
    return row, live.unload_adapter(str(checkpoint.pk), str(row.pk))
