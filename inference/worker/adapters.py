"""Make the LoRA adapters that requests name known to the models that are here.

A request names an adapter by the key of its row. The first one that does has its files found and checked; an adapter
that was removed and registered again has another key, so that nothing is served under an earlier one's name.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.errors import (
    BlazrError,
    CheckpointError,
    ChecksumMismatch,
    CorruptCheckpoint,
    InvalidRequest,
    UnknownModel,
)
from inference.values.messages import GenerateMessage
from inference.values.states import ResidentAdapter
from inference.worker.interfaces import ServedLLM

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """An adapter as its row says.

    Attributes:
        name: By which people know it.
        digest: SHA-256 of the files' content.
    """

    name: str
    path: Path
    digest: str


FindAdapter = Callable[[str, str], AdapterFile]
"""From the ids of a checkpoint and of its adapter; raises ``BlazrError``, ``UnknownModel`` if there is no such row."""


PinnedAdapters = Callable[[str], Sequence[str]]
"""From the id of a checkpoint; the ids of its adapters that are loaded with it; raises ``BlazrError``."""


class NeedsReload(Exception):
    """The model must be loaded again with room for an adapter of ``num_bytes``."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__(num_bytes)
        self.num_bytes = num_bytes


class ServedAdapters:
    """Adds adapters to models; thread-safe.

    Args:
        find: Finds an adapter.
    """

    def __init__(self, find: FindAdapter) -> None:
        self._find = find
        self._lock = threading.Lock()

    def ensure(self, llm: ServedLLM, message: GenerateMessage) -> None:
        """Make the adapter that a message names known to its model, as ``ensure_known``."""
        adapter_id = message.get("adapter")
        if adapter_id is not None:
            self.ensure_known(llm, message["model"], adapter_id)

    def ensure_known(self, llm: ServedLLM, checkpoint_id: str, adapter_id: str) -> None:
        """Make an adapter known to its model; the first time reads all of the files.

        Raises:
            NeedsReload: The model has been loaded with none, or with too little.
            UnknownModel: The adapter was removed.
            ChecksumMismatch: Its files aren't those that were registered.
            CheckpointError: As ``llm.adapters.add``, without the path: callers don't see paths of the server.
            BlazrError: The database can't be reached.
        """
        if knows(llm, adapter_id):
            return
        with self._lock:  # several requests come with a new adapter, and its files are read once
            if knows(llm, adapter_id):
                return
            file = self._find(checkpoint_id, adapter_id)
            try:
                registry = llm.adapters
            except InvalidRequest:
                raise NeedsReload(1) from None
            with _hidden_path(file):
                facts = registry.check(file.path, adapter_id)
            if facts.digest != file.digest:
                raise ChecksumMismatch(
                    f"The files of the adapter {file.name} have changed since it was registered; remove it and "
                    "register it again.",
                    param="model",
                )
            if registry.budget_bytes is not None and facts.num_bytes > registry.budget_bytes:
                raise NeedsReload(facts.num_bytes)
            with _hidden_path(file):
                registry.add(adapter_id, file.path)
            self._check_row(registry, checkpoint_id, adapter_id)

    def _check_row(self, registry: Any, checkpoint_id: str, adapter_id: str) -> None:
        """Forget an adapter that was removed while its files were read: the order to forget it came too early."""
        try:
            self._find(checkpoint_id, adapter_id)
        except BlazrError:
            with suppress(UnknownModel):
                registry.remove(adapter_id)
            raise


@contextmanager
def _hidden_path(file: AdapterFile) -> Iterator[None]:
    try:
        yield
    except (CheckpointError, OSError) as error:
        logger.warning("The adapter %s at %s can't be read: %s", file.name, file.path, error)
        raise _without_path(file, error) from None


def _without_path(file: AdapterFile, error: CheckpointError | OSError) -> CheckpointError:
    """Return what a caller is told of an adapter that can't be read; the path is for the log and the model's page."""
    if isinstance(error, CheckpointError) and os.path.exists(file.path):  # noqa: PTH110 - False without permission
        message = error.message
        for shown in (str(file.path), str(file.path)[:200]):  # messages cut long paths
            message = message.replace(shown, f"the adapter {file.name}")
        param = error.param if error.param and "/" not in error.param else "model"
        return type(error)(message, param=param)
    return CorruptCheckpoint(
        f"The files of the adapter {file.name} are gone; restore them, or remove the adapter on its model's page.",
        param="model",
    )


def knows(llm: ServedLLM, adapter_id: str) -> bool:
    """Whether requests to a model may name an adapter."""
    try:
        llm.adapters.get(adapter_id)
    except (InvalidRequest, UnknownModel):
        return False
    return True


def resident_adapters(llm: ServedLLM) -> tuple[ResidentAdapter, ...]:
    """Return the adapters that a model has in memory."""
    try:
        found = llm.adapters.facts()
    except InvalidRequest:  # it has no room for any
        return ()
    return tuple(
        ResidentAdapter(
            name,
            memory_bytes=facts.num_bytes,
            num_requests=facts.num_requests,
            last_used_at=facts.last_used_at,
            is_pinned=facts.is_pinned,
        )
        for name, facts in found.items()
        if facts.is_resident
    )


def no_adapters(checkpoint_id: str, adapter_id: str) -> AdapterFile:
    """Find nothing, where there are no rows.

    Raises:
        UnknownModel: Always.
    """
    raise UnknownModel(f"There is no adapter {adapter_id[:60]!r}.", param="model")
