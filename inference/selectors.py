"""Reads of the web process: served models (cached for a few seconds) and what the workers say of them."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import InterfaceError, OperationalError, connections

from inference.coroutines import PerLoop
from inference.errors import InvalidRequest, InvalidTokenIds, PromptTooLong, UnknownModel, UnsupportedFeature
from inference.generation_plan import GenerationPlan
from inference.messages import PromptMessage
from inference.principal import principal_current
from inference.tokenisation.spec import TokenizerSpec
from inference.tool_calls.options import ChatOptions
from inference.tool_calls.resolution import conversation, resolve

if TYPE_CHECKING:
    from models_registry.models import Checkpoint

CACHE_S = 3.0
"""How long a checkpoint's row may be believed: a renamed or deleted model answers so much longer."""
MAX_CACHED_MODELS = 256
CONNECTION_S = 10.0
"""How long the connection that rows are read by is kept without a use."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What the API needs to know of a checkpoint.

    Attributes:
        checkpoint_id: Primary key.
        name: What the API calls it.
        created: Unix time of its registration.
        vocab_size: Token ids are below it.
        max_model_len: Prompt plus output, in tokens.
        tokenizer: Kind ``none``: token-id prompts only.
        version: Changes whenever the checkpoint's row does.
        hidden_size: Numbers in an embedding; 0: not known.
        tool_format, reasoning_format: As the operator set them; auto: what the template says.
    """

    checkpoint_id: str
    name: str
    created: int
    vocab_size: int
    max_model_len: int
    tokenizer: TokenizerSpec
    version: str
    hidden_size: int = 0
    tool_format: str = "auto"
    reasoning_format: str = "auto"

    def check(self, plan: GenerationPlan) -> None:
        """Refuse what this model can't do, as far as it shows without a tokenizer.

        Raises:
            UnsupportedFeature: Text or a grammar for a model without a tokenizer, chat without a template.
            InvalidTokenIds: An id outside of the vocabulary.
            PromptTooLong: More ids than the context holds.
        """
        without_tokenizer = self.tokenizer.kind == "none"
        prompt_name = "input" if plan.embedding is not None else "prompt"
        for prompt in (item for given in plan.prompts for item in given.get("inputs", [given])):
            token_ids = prompt.get("token_ids")
            if token_ids is not None:
                self.check_token_ids(token_ids, param=prompt_name)
                if len(token_ids) > self.max_model_len:
                    raise PromptTooLong(
                        f"The prompt has {len(token_ids):,} tokens, max_model_len is {self.max_model_len:,}; "
                        "shorten the prompt.",
                        param=prompt_name,
                    )
            elif without_tokenizer:
                raise UnsupportedFeature(
                    f"The model {self.name!r} has no tokenizer: it takes prompts as token ids only "
                    "(POST /v1/completions with a list of integers).",
                    param="messages" if "messages" in prompt else prompt_name,
                )
            elif "messages" in prompt and self.tokenizer.chat_template is None:
                raise UnsupportedFeature(
                    f"The model {self.name!r} has no chat template; use /v1/completions.", param="messages"
                )
        for name, ids in (("stop_token_ids", plan.params.stop_token_ids), ("logit_bias", plan.params.logit_bias)):
            self.check_token_ids(list(ids), param=name)
        dimensions = plan.embedding and plan.embedding["dimensions"]
        if dimensions and 0 < self.hidden_size < dimensions:
            raise InvalidRequest(
                f"dimensions is {dimensions}; {self.name!r} makes vectors of {self.hidden_size}, ask for at most that.",
                param="dimensions",
            )
        if without_tokenizer and plan.params.grammar is not None:
            raise UnsupportedFeature(
                f"The model {self.name!r} has no tokenizer, so that its output can't be made to follow a grammar.",
                param=plan.params.grammar.param,
            )
        if without_tokenizer and plan.params.stop:
            raise UnsupportedFeature(
                f"The model {self.name!r} has no tokenizer, so that stop strings can't be found in its output; "
                "use stop_token_ids.",
                param="stop",
            )

    def resolved(self, plan: GenerationPlan) -> GenerationPlan:
        """The checked plan in terms of this model: tools in its prompt, the format of its answers.

        Raises:
            UnsupportedFeature: The model's template can't express what was asked for.
        """
        self.check(plan)
        return resolve(plan, self.tokenizer, tool_format=self.tool_format, reasoning_format=self.reasoning_format)

    def conversation(self, prompt: PromptMessage, options: ChatOptions) -> PromptMessage:
        """A chat prompt with tools in the form that this model's template takes.

        Raises:
            UnsupportedFeature: The template can't express what was asked for.
        """
        return conversation(prompt, options, self.tokenizer, tool_format=self.tool_format)

    def check_token_ids(self, token_ids: list[int], *, param: str) -> None:
        """Refuse ids outside of the vocabulary.

        Raises:
            InvalidTokenIds: Names the first one.
        """
        if token_ids and (max(token_ids) >= self.vocab_size or min(token_ids) < 0):
            wrong = next(item for item in token_ids if not 0 <= item < self.vocab_size)
            raise InvalidTokenIds(
                f"{param} has the token id {wrong}; the model {self.name!r} has the ids 0 to {self.vocab_size - 1}.",
                param=param,
            )


class _Rows:
    """What an event loop reads of the served models: every row at most once at a time, however many ask for it.

    In a thread of its own that keeps its connection for a while: a request's own thread would have to start, connect,
    and end, which takes longer than all else that a short request costs this process.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="served-models")
        self._reading: dict[tuple[int, str], asyncio.Future[ServedModel | None]] = {}
        self._closing: asyncio.TimerHandle | None = None

    async def read(self, name: str, known: ServedModel | None) -> ServedModel | None:
        """The model under ``name`` as the database has it now; None: there is none."""
        what = _version, name
        reading = self._reading.get(what)
        if reading is None:
            loop = asyncio.get_running_loop()
            reading = self._reading[what] = loop.run_in_executor(self._thread, _read_again, name, known)
            reading.add_done_callback(lambda _: self._reading.pop(what))
            if self._closing is not None:
                self._closing.cancel()
            self._closing = loop.call_later(CONNECTION_S, self._thread.submit, connections.close_all)
        return await asyncio.shield(reading)  # others may wait for it, too


_rows = PerLoop(_Rows)
_cache: dict[str, tuple[float, ServedModel | None]] = {}
_version = 0
"""Of the cache: what was being read when it was cleared doesn't go into it."""


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
    read_at, served = _cache.get(name, (-CACHE_S, None))
    if time.monotonic() - read_at > CACHE_S:
        version, now = _version, time.monotonic()
        served = await _rows().read(name, served)
        if version == _version:
            if len(_cache) >= MAX_CACHED_MODELS:
                # Mostly names that nobody serves; the models in use come back with their next request.
                _cache.clear()
            _cache[name] = (now, served)
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
        names = await sync_to_async(lambda: [row.served_model_name for row in _available()])()
        if len(names) != 1:
            raise InvalidRequest(
                f"model is required, as {len(names)} models are served; GET /v1/models lists them.", param="model"
            )
        (name,) = names
    return await served_model_get(name=name)


def _read_again(name: str, known: ServedModel | None) -> ServedModel | None:
    """``_read``, once more if the connection that was kept is of no use any more."""
    try:
        return _read(name, known)
    except (InterfaceError, OperationalError):
        connections.close_all()
        return _read(name, known)


def _read(name: str, known: ServedModel | None) -> ServedModel | None:
    from models_registry.aliases import alias_checkpoint_id
    from models_registry.selectors import checkpoint_list

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
    from models_registry.selectors import checkpoint_get_by_name

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


def max_model_len(checkpoint: Checkpoint) -> int:
    """Longest prompt plus output: the least of the model's context, its setting and the server's."""
    from django.conf import settings

    limits = (
        checkpoint.max_position_embeddings,
        checkpoint.settings.get("max_model_len"),
        settings.BLAZR_MAX_MODEL_LEN,
    )
    return min(int(limit) for limit in limits if limit)


async def model_objects() -> list[dict[str, Any]]:
    """OpenAI's model objects of all checkpoints that can be served, by name."""
    return await sync_to_async(lambda: [*(_model_object(row) for row in _available()), *_alias_objects()])()


async def model_object(*, name: str) -> dict[str, Any]:
    """One of them.

    Raises:
        UnknownModel: There is none.
    """

    def read() -> dict[str, Any]:
        row = next(iter(_available().filter(served_model_name=name)), None) if "\0" not in name else None
        alias = next((item for item in _alias_objects() if item["id"] == name), None) if row is None else None
        if alias is not None:
            return alias
        if row is None:
            raise UnknownModel(
                f"The model {name[:120]!r} does not exist; GET /v1/models lists the models that do.", param="model"
            )
        return _model_object(row)

    return await sync_to_async(read)()


def _available() -> Any:
    from models_registry.models import Checkpoint
    from models_registry.selectors import checkpoint_list

    found = checkpoint_list().filter(state=Checkpoint.State.AVAILABLE)
    allowed = principal_current().models
    return found if allowed is None else found.filter(served_model_name__in=sorted(allowed))


def _alias_objects() -> list[dict[str, Any]]:
    """Aliases as models of their own, with the checkpoint and the revision that they mean."""
    from models_registry.aliases import aliases_of
    from models_registry.models import Checkpoint
    from models_registry.selectors import checkpoint_list

    allowed = principal_current().models
    rows = {row.pk: row for row in checkpoint_list().filter(state=Checkpoint.State.AVAILABLE)}
    found = []
    for alias in aliases_of():
        if alias.current is None or alias.current.checkpoint_id is None:
            continue
        row = rows.get(alias.current.checkpoint_id)
        if row is None or (allowed is not None and alias.name not in allowed):
            continue
        found.append(
            {
                **_model_object(row),
                "id": alias.name,
                "created": int(alias.created_at.timestamp()),
                "root": row.served_model_name,
                "revision": alias.current.number,
            }
        )
    return found


def _model_object(row: Checkpoint) -> dict[str, Any]:
    return {
        "id": row.served_model_name,
        "object": "model",
        "created": int(row.created_at.timestamp()),
        "owned_by": "local",
        "max_model_len": max_model_len(row),
    }
