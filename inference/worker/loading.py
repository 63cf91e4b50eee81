"""From a checkpoint's row to a plan of how to load it. Reads the database; torch comes with ``inference.llm``."""

from __future__ import annotations

from typing import Any, cast

from django.conf import settings
from django.db import DatabaseError, close_old_connections

from inference.errors import ModelLoadFailed
from inference.llm import LLM, LLMOptions, needed_bytes
from inference.worker.residency import LoadPlan, Progress


def plan_load(checkpoint_id: str, *, device: str) -> LoadPlan:
    """How to load a checkpoint with its own settings, or the server's where it has none.

    Raises:
        UnknownModel: It was deleted in the meantime.
        CheckpointError: Its files aren't the inspected ones any more.
        ModelLoadFailed: The database can't be reached.
    """
    from models_registry.detection.inspection import Inspection
    from models_registry.selectors import checkpoint_get
    from models_registry.services import checkpoint_files_verify

    close_old_connections()
    try:
        checkpoint = checkpoint_get(checkpoint_id)
        checkpoint_files_verify(checkpoint)
    except DatabaseError as error:
        raise ModelLoadFailed("The database can't be reached; try again.", retry_after_s=5) from error
    finally:
        close_old_connections()
    inspection = Inspection.from_dict(checkpoint.inspection)
    own = checkpoint.settings
    options = LLMOptions(
        device=device,
        dtype=cast("Any", own.get("dtype") or settings.BLAZR_DTYPE),  # both are checked where they are set
        max_model_len=own.get("max_model_len") or settings.BLAZR_MAX_MODEL_LEN,
        max_num_seqs=own.get("max_num_seqs") or settings.BLAZR_MAX_NUM_SEQS,
        max_num_batched_tokens=max(settings.BLAZR_MAX_NUM_BATCHED_TOKENS, settings.BLAZR_MAX_NUM_SEQS),
        cache_bytes=settings.BLAZR_CACHE_BYTES,
        num_threads=settings.BLAZR_NUM_THREADS,
    )
    keep_alive_s = own.get("keep_alive_s")

    def load(progress: Progress) -> LLM:
        return LLM.load(inspection.spec, inspection.tokenizer, inspection.weight_paths, options, progress)

    return LoadPlan(
        name=checkpoint.served_model_name,
        needed_bytes=needed_bytes(inspection.spec, options),
        keep_alive_s=settings.BLAZR_KEEP_ALIVE_S if keep_alive_s is None else keep_alive_s,
        max_num_seqs=options.max_num_seqs,
        load=load,
    )
