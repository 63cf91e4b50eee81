"""Look up served models for the web process, with a short cache; resolve plans for their model."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import replace
from typing import Any

from channels.db import database_sync_to_async
from django.conf import settings
from django.db import transaction
from django.db.models.signals import post_delete, post_save
from django.dispatch import receiver

from inference.errors import Conflict, InvalidRequest, UnknownModel
from inference.host.coroutines import PerLoop
from inference.modelling.vision.specs import image_input
from inference.models.readable_rows import readable_rows
from inference.text.tool_calls.resolution import conversation, resolve
from inference.values.chat_options import ChatOptions
from inference.values.messages import PromptMessage
from inference.values.plan import GenerationPlan
from inference.values.principal import principal_current
from inference.values.served_model import ServedModel
from inference.values.tokenizer_spec import TokenizerSpec
from models_registry.aliases import alias_checkpoint_id
from models_registry.models import Adapter, AliasRevision, Checkpoint, ModelAlias
from models_registry.selectors import (
    adapter_key,
    adapter_name,
    checkpoint_get,
    checkpoint_get_by_name,
    checkpoint_list,
)

CACHE_S = 3.0
"""Seconds that a checkpoint's row is cached; a renamed or deleted model is served that much longer."""
MAX_CACHED_MODELS = 256

_lock = PerLoop(asyncio.Lock)
_cache: dict[str, tuple[float, ServedModel | UnknownModel]] = {}
_version = 0
"""Version of the cache: a row that was read before the cache was cleared isn't stored after it."""


def served_model_cache_clear() -> None:
    """Clear this process's cache of served models."""
    global _version
    _version += 1
    _cache.clear()


@receiver([post_save, post_delete], sender=Checkpoint)
@receiver([post_save, post_delete], sender=ModelAlias)
@receiver([post_save, post_delete], sender=Adapter)
def _clear_after_change(**_: Any) -> None:
    """Serve what has changed at once in this process; other processes read it again after ``CACHE_S``."""
    transaction.on_commit(served_model_cache_clear)


async def served_model_get(*, name: str) -> ServedModel:
    """Return the model served under ``name``.

    Raises:
        UnknownModel: No model has this name.
        PermissionRefused: The caller's key doesn't allow the model.
    """
    principal_current().check_model(name)
    served = _cached(name)
    if served is None:
        async with _lock():  # one query, however many requests wait for the row
            served = _cached(name) or await _read_into_cache(name)
    if isinstance(served, UnknownModel):
        raise UnknownModel(served.message, param="model")
    return served


async def served_model_or_only(*, name: str | None) -> ServedModel:
    """Return the model served under ``name``; without a name, the only served model.

    Raises:
        InvalidRequest: ``name`` is None, and the number of served models is not one.
        UnknownModel, PermissionRefused: As in ``served_model_get``.
    """
    if name is None:
        rows = available_checkpoints().values_list("served_model_name", flat=True)
        names = await database_sync_to_async(lambda: list(rows))()
        if len(names) != 1:
            raise InvalidRequest(
                f"model is required, as {len(names)} models are served; GET /v1/models lists them.", param="model"
            )
        (name,) = names
    return await served_model_get(name=name)


def _cached(name: str) -> ServedModel | UnknownModel | None:
    """Return what was found under a name less than ``CACHE_S`` ago."""
    read_at, served = _cache.get(name, (-math.inf, None))
    return served if time.monotonic() - read_at <= CACHE_S else None


async def _read_into_cache(name: str) -> ServedModel | UnknownModel:
    version, now = _version, time.monotonic()
    _, known = _cache.get(name, (now, None))
    served: ServedModel | UnknownModel = await database_sync_to_async(_read)(name, known)
    if version == _version:
        if len(_cache) >= MAX_CACHED_MODELS:
            # Most entries are unknown names; the next requests read the models in use again.
            _cache.clear()
        _cache[name] = (now, served)
    return served


def _read(name: str, known: ServedModel | UnknownModel | None) -> ServedModel | UnknownModel:
    if isinstance(known, ServedModel):
        # The inspection of a large model is megabytes of JSON: read it again only if the row has changed.
        row = next(iter(readable_rows(checkpoint_list().filter(pk=known.checkpoint_id), 1)), None)
        is_same = row is not None and row.updated_at.isoformat() == known.version
        if row is not None and is_same and _still_means(name, known, row):
            return known
    try:
        return served_model_read(name)
    except UnknownModel as error:
        return UnknownModel(error.message, param="model")  # without the frames of this one


def _still_means(name: str, known: ServedModel, row: Checkpoint) -> bool:
    """Whether ``name`` means what it meant, ``row`` being the checkpoint of ``known``."""
    if known.adapter:
        try:
            found = adapter_key(name)
        except UnknownModel:
            return False
        return found is not None and (found[0], str(found[1])) == (row.pk, known.adapter)
    return row.served_model_name == name or alias_checkpoint_id(name) == row.pk


def served_model_read(name: str) -> ServedModel:
    """Read the model served under ``name`` from the database.

    Raises:
        UnknownModel: No model has this name.
        PermissionRefused: The caller's key doesn't allow the model.
    """
    principal_current().check_model(name)
    try:
        return served_model(checkpoint_get_by_name(name))
    except UnknownModel:
        found = adapter_key(name)
        if found is None:
            raise
    base, adapter = found
    return replace(served_model(checkpoint_get(base)), name=adapter_name(adapter), adapter=str(adapter))


def served_model_of_checkpoint(name: str, checkpoint_id: str) -> ServedModel:
    """Read the model that ``name`` meant when work was stored for a checkpoint; an alias may mean another one since.

    Args:
        checkpoint_id: The checkpoint for which the work was stored.

    Raises:
        UnknownModel: No model has this name, or the checkpoint was deleted.
        Conflict: What the name meant can't be told: an adapter of the checkpoint perhaps.
    """
    found = served_model_read(name)
    if found.checkpoint_id == checkpoint_id:
        return found
    revisions = AliasRevision.objects.filter(alias__name=name, checkpoint_id=checkpoint_id)
    if set(revisions.values_list("adapter_name", flat=True)) != {""}:
        raise Conflict(
            f"{name!r} means another model since this request was stored; submit the request again.", param="model"
        )
    return served_model(checkpoint_get(checkpoint_id))


def checkpoint_key_of(served: ServedModel, *, param: str) -> str:
    """Return the id of the checkpoint that a name means, for orders that concern its files.

    Args:
        param: The request's member that has the name.

    Raises:
        InvalidRequest: The name means a LoRA adapter, which is only a part of what its requests go through.
    """
    if served.adapter:
        raise InvalidRequest(
            f"{served.name!r} is a LoRA adapter; name its base, or a checkpoint that blazr merge has made of both.",
            param=param,
        )
    return served.checkpoint_id


def served_model(checkpoint: Checkpoint) -> ServedModel:
    """Return the ``ServedModel`` of a checkpoint row that includes its inspection."""
    tokenizer = TokenizerSpec.from_dict(checkpoint.inspection["tokenizer"])
    return ServedModel(
        checkpoint_id=str(checkpoint.pk),
        name=checkpoint.served_model_name,
        created=int(checkpoint.created_at.timestamp()),
        vocab_size=checkpoint.vocab_size,
        max_model_len=max_model_len(checkpoint),
        tokenizer=tokenizer,
        version=checkpoint.updated_at.isoformat(),
        hidden_size=checkpoint.inspection.get("spec", {}).get("hidden_size", 0),
        tool_format=checkpoint.settings.get("tool_format", "auto"),
        reasoning_format=checkpoint.settings.get("reasoning_format", "auto"),
        images=image_input(checkpoint.inspection.get("spec", {}).get("vision")),
        parameters=tuple(checkpoint.settings.get("parameters", {}).items()),
    )


def plan_for_model(plan: GenerationPlan, model: ServedModel) -> GenerationPlan:
    """Check a plan against a model, and fill in the model's tool prompt, output format and adapter.

    Raises:
        UnsupportedFeature: The model's template can't express the request.
    """
    model.check(plan)
    resolved = resolve(plan, model.tokenizer, tool_format=model.tool_format, reasoning_format=model.reasoning_format)
    return replace(resolved, adapter=model.adapter)


def chat_prompt_for_model(prompt: PromptMessage, options: ChatOptions, model: ServedModel) -> PromptMessage:
    """Return a chat prompt with its tools in the form that the model's template takes.

    Raises:
        UnsupportedFeature: The template can't express the request.
    """
    return conversation(prompt, options, model.tokenizer, tool_format=model.tool_format)


def max_model_len(checkpoint: Checkpoint) -> int:
    """Return the most tokens of prompt and output: the minimum of model context, model setting and server setting."""
    limits = (
        checkpoint.max_position_embeddings,
        checkpoint.settings.get("max_model_len"),
        settings.BLAZR_MAX_MODEL_LEN,
    )
    return min(int(limit) for limit in limits if limit)


def available_checkpoints() -> Any:
    """Return the rows of the available checkpoints that the caller may use."""
    found = checkpoint_list().filter(state=Checkpoint.State.AVAILABLE)
    allowed = principal_current().models
    return found if allowed is None else found.filter(served_model_name__in=sorted(allowed))
