"""Build the load plan of a checkpoint from its row, its inspection and the settings."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import DatabaseError, close_old_connections

from inference.engine.device import is_memory_error, return_device_memory
from inference.errors import BlazrError, ModelLoadFailed, OutOfCacheBlocks, UnknownModel
from inference.llm.draft_loading import DraftCheckpoint
from inference.llm.llm import LLM
from inference.llm.loading import choose_dtype
from inference.llm.options import LLMOptions
from inference.llm.sizes import load_sizes, needed_bytes, plan_states
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.parts import DTYPE_BYTES
from inference.values.speculative_options import SpeculativeOptions
from inference.worker.adapters import AdapterFile
from inference.worker.interfaces import LoadPlan, LoadSizes, Progress
from models_registry.detection.inspection import Inspection
from models_registry.models import Adapter, Checkpoint
from models_registry.selectors import checkpoint_get, checkpoint_get_by_name
from models_registry.services import checkpoint_files_verify

MODEL_OPTIONS = ("dtype", "quant", "state_dtype", "max_model_len", "max_num_seqs", "pooling")
"""Fields of ``LLMOptions`` that a model's settings may replace."""
DEFAULT_MAX_ADAPTERS = 8
"""LoRA adapters that are resident at once, where a model has any and doesn't set it."""


def plan_load(
    checkpoint_id: str, sizes: LoadSizes | None = None, *, device: str, memory_bytes: int | None = None
) -> LoadPlan:
    """Plan the load of a checkpoint with its own settings; the server's settings are the defaults.

    Args:
        sizes: Sizes in place of the checkpoint's settings; None: these.
        device: Device to load to.
        memory_bytes: Memory budget of all models there; limits the states on a CUDA device.

    Raises:
        UnknownModel: The checkpoint was deleted.
        CheckpointError: The checkpoint's files have changed since their inspection.
        ModelLoadFailed: The database can't be reached.
    """
    checkpoint, inspection = _verified(lambda: checkpoint_get(checkpoint_id))
    own = checkpoint.settings
    speculative: SpeculativeOptions | None = settings.BLAZR_LLM_OPTIONS["speculative"]
    if own.get("speculative"):
        speculative = SpeculativeOptions.from_dict(own["speculative"])
    draft = None
    if speculative is not None and speculative.draft_model == checkpoint.served_model_name:
        speculative = None  # the server's draft model itself
    elif speculative is not None and speculative.draft_model:
        draft = _draft(speculative.draft_model)
    set_here = {name: own[name] for name in MODEL_OPTIONS if own.get(name)}
    chosen = {**settings.BLAZR_LLM_OPTIONS, **set_here, "speculative": speculative, "max_adapters": 0}
    options = LLMOptions(**chosen, device=device, memory_bytes=memory_bytes)
    needs = _adapter_needs(checkpoint)

    def plan_with(sizes: LoadSizes | None) -> LoadPlan:
        given = options if sizes is None else _with_sizes(options, sizes)
        return _plan(checkpoint, inspection, _with_adapters(given, inspection.spec, needs), draft, plan_with)

    return plan_with(sizes)


def _with_sizes(options: LLMOptions, sizes: LoadSizes) -> LLMOptions:
    cache_bytes = options.cache_bytes if sizes.cache_bytes is None else sizes.cache_bytes
    return replace(options, max_model_len=sizes.max_model_len, max_num_seqs=sizes.max_num_seqs, cache_bytes=cache_bytes)


def _plan(
    checkpoint: Checkpoint,
    inspection: Inspection,
    options: LLMOptions,
    draft: DraftCheckpoint | None,
    resized: Callable[[LoadSizes], LoadPlan],
) -> LoadPlan:
    """Return the plan of a load with these options."""
    own = checkpoint.settings
    keep_alive_s = own.get("keep_alive_s")

    def load(progress: Progress) -> LLM:
        try:
            checkpoint_files_verify(checkpoint)  # evictions may have taken a minute since the plan was made
            parts = (inspection.spec, inspection.tokenizer, inspection.weight_paths)
            llm = LLM.load(*parts, options, progress, draft=draft)
            try:
                checkpoint_files_verify(checkpoint)
            except BlazrError:
                llm.close()
                raise
            return llm
        except BaseException as error:
            # The error's frames hold the loaded tensors, and a caller may keep the error.
            traceback.clear_frames(error.__traceback__)
            return_device_memory()
            if is_memory_error(error):
                raise ModelLoadFailed("The model does not fit into this worker's memory.") from error
            raise

    return LoadPlan(
        name=checkpoint.served_model_name,
        needed_bytes=needed_bytes(inspection.spec, options, draft),
        keep_alive_s=settings.BLAZR_KEEP_ALIVE_S if keep_alive_s is None else keep_alive_s,
        max_num_seqs=options.max_num_seqs,
        load=load,
        pinned=own.get("pinned") == "yes",
        adapter_bytes=options.adapter_bytes or 0,
        sizes=load_sizes(inspection.spec, options),
        resized=resized,
    )


class _AdapterNeeds(NamedTuple):
    """How many LoRA adapters may be resident, the values of the largest ones, and whether an X-LoRA is among all."""

    most: int
    num_values: int
    has_xlora: bool


def _adapter_needs(checkpoint: Checkpoint) -> _AdapterNeeds:
    """Look up what the checkpoint's adapters need.

    Raises:
        ModelLoadFailed: The database can't be reached.
    """
    most = checkpoint.settings.get("max_adapters")
    most = DEFAULT_MAX_ADAPTERS if most is None else most
    try:
        values = checkpoint.adapters.order_by("-num_values").values_list("num_values", flat=True)
        num_values = sum(values[:most])
        has_xlora = checkpoint.adapters.filter(kind=Adapter.Kind.XLORA).exists()
    except DatabaseError as error:
        raise _no_database() from error
    finally:
        close_old_connections()
    return _AdapterNeeds(most, num_values, has_xlora)


def _with_adapters(options: LLMOptions, spec: ModelSpec, needs: _AdapterNeeds) -> LLMOptions:
    """Return ``options`` with room for as many of the checkpoint's LoRA adapters as may be resident, the largest ones.

    The X-LoRAs among them have states beside the model's, all of them together as many bytes.

    Raises:
        OutOfCacheBlocks: The memory is too small for the states of one sequence, or for both of them with an X-LoRA.
    """
    if not needs.num_values:
        return options
    width = DTYPE_BYTES[choose_dtype(spec, options)]
    found = replace(options, max_adapters=needs.most, adapter_bytes=needs.num_values * width)
    return _with_second_states(found, spec) if needs.has_xlora else found


def _with_second_states(options: LLMOptions, spec: ModelSpec) -> LLMOptions:
    """Return ``options`` with room among the adapters for as many states as the model has."""
    alone_bytes, own_bytes = plan_states(spec, options).total_bytes, options.adapter_bytes or 0
    beside = replace(options, adapter_bytes=own_bytes + alone_bytes)
    with suppress(OutOfCacheBlocks):
        if plan_states(spec, beside).total_bytes >= alone_bytes:
            return beside
    # Both share the memory that the model's states would have had alone.
    halved = replace(options, cache_bytes=alone_bytes // 2)
    return replace(halved, adapter_bytes=own_bytes + plan_states(spec, halved).total_bytes)


def find_adapter(checkpoint_id: str, adapter_id: str) -> AdapterFile:
    """Return the files of a checkpoint's LoRA adapter.

    Raises:
        UnknownModel: The adapter was removed.
        ModelLoadFailed: The database can't be reached.
    """
    close_old_connections()
    try:
        row = Adapter.objects.filter(base__pk=checkpoint_id, pk=adapter_id).first()
    except (ValidationError, ValueError):
        row = None
    except DatabaseError as error:
        raise _no_database() from error
    finally:
        close_old_connections()
    if row is None:
        raise UnknownModel("The adapter was removed; GET /v1/models lists the models that are there.", param="model")
    return AdapterFile(row.name, Path(row.path), row.digest)


def pinned_adapters(checkpoint_id: str) -> list[str]:
    """Return the ids of the LoRA adapters that are loaded with a checkpoint, ahead of their requests.

    Raises:
        ModelLoadFailed: The database can't be reached.
    """
    close_old_connections()
    try:
        keys = Adapter.objects.filter(base__pk=checkpoint_id, is_pinned=True).values_list("pk", flat=True)
        return [str(key) for key in keys]
    except DatabaseError as error:
        raise _no_database() from error
    finally:
        close_old_connections()


def _draft(name: str) -> DraftCheckpoint:
    """Return the registered draft model.

    Raises:
        UnknownModel: No model has this name.
        CheckpointError: The checkpoint's files have changed since their inspection.
        ModelLoadFailed: The database can't be reached.
    """
    _, found = _verified(lambda: checkpoint_get_by_name(name))
    return DraftCheckpoint(name, found.spec, found.tokenizer, found.weight_paths)


def _no_database() -> ModelLoadFailed:
    return ModelLoadFailed("The database can't be reached; try again.", retry_after_s=5)


def _verified(read: Callable[[], Checkpoint]) -> tuple[Checkpoint, Inspection]:
    """Return a checkpoint's row and inspection, after a check that its files haven't changed.

    Raises:
        UnknownModel: ``read`` finds no row.
        CheckpointError: The checkpoint's files have changed since their inspection.
        ModelLoadFailed: The database can't be reached.
    """
    close_old_connections()
    try:
        checkpoint = read()
        checkpoint_files_verify(checkpoint)
    except DatabaseError as error:
        raise _no_database() from error
    finally:
        close_old_connections()
    return checkpoint, Inspection.from_dict(checkpoint.inspection)
