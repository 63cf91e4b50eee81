"""ResidualStream: what the layers of a network read and add to."""

from __future__ import annotations

import torch

from inference.modelling.layers.norm import Norm, add_scaled


class ResidualStream:
    """The residual stream, and the sublayer's result that is still to be added to it.

    The addition waits for the next norm, so that both are one pass over the rows.

    Args:
        hidden: (T, h), overwritten; (P, T, h) or (T, P, h) where there are several streams.
        embedding: (T, h), the embedding for layers that read it again.
        layer_inputs: (T, L, p), the inputs of the layers that have one of their own.

    Attributes:
        shortcut: (T, h) of the last layer's experts, for the end of the next one.
        router_memory: (T, r) that the last layer's router leaves for the next one's.
    """

    __slots__ = ("_hidden", "_mixed", "_multiplier", "embedding", "layer_inputs", "router_memory", "shortcut")

    def __init__(
        self, hidden: torch.Tensor, embedding: torch.Tensor | None = None, layer_inputs: torch.Tensor | None = None
    ) -> None:
        self._hidden = hidden
        self.embedding = embedding
        self.layer_inputs = layer_inputs
        self.shortcut: torch.Tensor | None = None
        self.router_memory: torch.Tensor | None = None
        self._mixed: torch.Tensor | None = None
        self._multiplier = 1.0

    def copy(self) -> ResidualStream:
        """The same stream in memory of its own, to compute what follows several times."""
        copied = ResidualStream(self._hidden.clone(), self.embedding, self.layer_inputs)
        copied._mixed = None if self._mixed is None else self._mixed.clone()
        copied._multiplier = self._multiplier
        copied.shortcut, copied.router_memory = self.shortcut, self.router_memory
        return copied

    def enter(self, norm: Norm | None, *, replaces: bool = False) -> torch.Tensor:
        """(T, h) as the next sublayer sees it: the stream, normalised where there is a norm.

        Args:
            replaces: The stream goes on from these rows, in the same memory.
        """
        rows = self._enter(norm)
        if replaces:
            self._hidden = rows
        return rows

    def _enter(self, norm: Norm | None) -> torch.Tensor:
        mixed, self._mixed = self._mixed, None
        if norm is None:
            return self._hidden if mixed is None else add_scaled(self._hidden, mixed, self._multiplier)
        if mixed is None:
            return norm.normalise(self._hidden)
        return norm.add_normalise(self._hidden, mixed, self._multiplier)

    def leave(self, mixed: torch.Tensor, multiplier: float) -> None:
        """Add a sublayer's result (T, h), times ``multiplier``."""
        assert self._mixed is None, "a sublayer left the stream without entering it"
        self._mixed, self._multiplier = mixed, multiplier

    def replace(self, streams: torch.Tensor) -> None:
        """Go on from several streams."""
        self._hidden = streams

    def scale(self, factor: torch.Tensor) -> None:
        """Multiply the stream by a number (1,)."""
        self.enter(None).mul_(factor)
