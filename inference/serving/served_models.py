"""Look up served models for the web process, with a short cache; resolve plans for their model."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

from channels.db import database_sync_to_async
from django.conf import settings

from inference.errors import InvalidRequest, UnknownModel
from inference.host.coroutines import PerLoop
from inference.text.tool_calls.resolution import conversation, resolve
from inference.values.chat_options import ChatOptions
from inference.values.messages import PromptMessage
from inference.values.plan import GenerationPlan
from inference.values.principal import principal_current
from inference.values.served_model import ServedModel
from inference.values.tokenizer_spec import TokenizerSpec
from models_registry.aliases import alias_checkpoint_id
from models_registry.models import Checkpoint
from models_registry.selectors import checkpoint_get_by_name, checkpoint_list

CACHE_S = 3.0
"""How long a checkpoint's row is cached: a renamed or deleted model is served so much longer."""
MAX_CACHED_MODELS = 256

_lock = PerLoop(asyncio.Lock)
_cache: dict[str, tuple[float, ServedModel | None]] = {}
_version = 0
"""Of the cache: a row that was read before the cache was cleared isn't stored in it."""


def served_model_cache_clear() -> None:
    """Forget what this process read."""
    global _version
    _version += 1
    _cache.clear()


async def served_model_get(*, name: str) -> ServedModel:
    """The model served under ``name``.

    Raises:
        UnknownModel: There is none.
        PermissionRefused: The caller's key isn't for it.
    """
    principal_current().check_model(name)
    is_fresh, served = _cached(name)
    if not is_fresh:
        async with _lock():  # one query, however many requests wait for the row
            is_fresh, served = _cached(name)
            if not is_fresh:
                served = await _read_into_cache(name)
    if served is None:
        raise UnknownModel(
            f"The model {name[:120]!r} does not exist; GET /v1/models lists the models that do.", param="model"
        )
    return served


async def served_model_or_only(*, name: str | None) -> ServedModel:
    """The model served under ``name``; without a name the only one that is served.

    Raises:
        InvalidRequest: There is no name, and not exactly one model.
        UnknownModel, PermissionRefused: As ``served_model_get``.
    """
    if name is None:
        names = await database_sync_to_async(lambda: [row.served_model_name for row in available_checkpoints()])()
        if len(names) != 1:
            raise InvalidRequest(
                f"model is required, as {len(names)} models are served; GET /v1/models lists them.", param="model"
            )
        (name,) = names
    return await served_model_get(name=name)


def _cached(name: str) -> tuple[bool, ServedModel | None]:
    read_at, served = _cache.get(name, (-math.inf, None))
    return time.monotonic() - read_at <= CACHE_S, served


async def _read_into_cache(name: str) -> ServedModel | None:
    version, now = _version, time.monotonic()
    _, known = _cache.get(name, (now, None))
    served: ServedModel | None = await database_sync_to_async(_read)(name, known)
    if version == _version:
        if len(_cache) >= MAX_CACHED_MODELS:
            # Mostly names that nobody serves; the models in use come back with their next request.
            _cache.clear()
        _cache[name] = (now, served)
    return served


def _read(name: str, known: ServedModel | None) -> ServedModel | None:
    if "\0" in name:
        return None
    if known is not None:
        # The inspection of a large model is megabytes of JSON: not again unless the row has changed.
        row = checkpoint_list().filter(pk=known.checkpoint_id).first()
        is_same = row is not None and row.updated_at.isoformat() == known.version
        if row is not None and is_same and (row.served_model_name == name or alias_checkpoint_id(name) == row.pk):
            return known
    try:
        return served_model_read(name)
    except UnknownModel:
        return None


def served_model_read(name: str) -> ServedModel:
    """The model served under ``name``, from the database.

    Raises:
        UnknownModel: There is none.
        PermissionRefused: The caller's key isn't for it.
    """
    principal_current().check_model(name)
    return served_model(checkpoint_get_by_name(name))


def served_model(checkpoint: Checkpoint) -> ServedModel:
    """The API's view of a row (inspection included)."""
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
    )


def plan_for_model(plan: GenerationPlan, model: ServedModel) -> GenerationPlan:
    """The checked plan in terms of a model: tools in its prompt, the format of its output.

    Raises:
        UnsupportedFeature: The model's template can't express what was asked for.
    """
    model.check(plan)
    return resolve(plan, model.tokenizer, tool_format=model.tool_format, reasoning_format=model.reasoning_format)


def chat_prompt_for_model(prompt: PromptMessage, options: ChatOptions, model: ServedModel) -> PromptMessage:
    """A chat prompt with tools in the form that a model's template takes.

    Raises:
        UnsupportedFeature: The template can't express what was asked for.
    """
    return conversation(prompt, options, model.tokenizer, tool_format=model.tool_format)


def max_model_len(checkpoint: Checkpoint) -> int:
    """Longest prompt plus output: the least of the model's context, its setting and the server's."""
    limits = (
        checkpoint.max_position_embeddings,
        checkpoint.settings.get("max_model_len"),
        settings.BLAZR_MAX_MODEL_LEN,
    )
    return min(int(limit) for limit in limits if limit)


def available_checkpoints() -> Any:
    """Rows of the checkpoints that the caller may use now."""
    found = checkpoint_list().filter(state=Checkpoint.State.AVAILABLE)
    allowed = principal_current().models
    return found if allowed is None else found.filter(served_model_name__in=sorted(allowed))
