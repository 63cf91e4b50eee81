"""StoredTensor: what the loader reads, whether a file holds its values or codes that are decoded on the way."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch

from inference.modelling.layers.coded import Codes


class StoredTensor(Protocol):
    """A tensor that can be read piece by piece.

    Attributes:
        file: Name of the file where it begins.
        start: Where it begins there, in bytes.
        shape: Its shape.
        stored: dtype of what is read; None: none of torch's.
        size: Bytes of what is read.
    """

    @property
    def file(self) -> str: ...
    @property
    def start(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def stored(self) -> torch.dtype | None: ...
    @property
    def size(self) -> int: ...

    def fill(self, target: memoryview, begin: int) -> None:
        """Read the tensor's bytes from ``begin`` on; called by several threads, in any order.

        Raises:
            CorruptCheckpoint: The file ends too early, or the disk fails.
        """
        ...


@runtime_checkable
class CodedPlace(StoredTensor, Protocol):
    """A tensor whose codes can be read, too."""

    def codes(self, first: int, count: int) -> Codes:
        """Rows in codes, as ``inference.modelling.quantisation.stored_form`` says; called by several threads.

        Raises:
            CorruptCheckpoint: The file ends too early, or the disk fails.
        """
        ...
