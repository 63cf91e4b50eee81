"""Modules that add adapters to their rows: each takes the place of a module's class while an adapter changes it.

A step without adapters runs the module's own methods. One with adapters computes the base product once for all rows,
then changes the rows of each adapter.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import MethodType
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional

from inference.modelling.adapters.deltas import ModuleDelta, add_terms
from inference.modelling.adapters.products import DeltaTable
from inference.modelling.forward_batch import AdapterRows, ForwardBatch, LayerState
from inference.modelling.layers.linear import Embedding, Linear
from inference.modelling.layers.mamba1 import StepProjection
from inference.modelling.layers.mla import Choice, HeadExpansion, MultiHeadLatentAttention
from inference.modelling.layers.moe import Experts, Router


class ActiveRows:
    """The rows of the step that runs now; one for all modules of a network.

    Attributes:
        rows: None: no row has an adapter.
    """

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows: AdapterRows | None = None


class Adapted:
    """What an adapted module has besides its own attributes.

    Attributes:
        active: The rows of the step.
        deltas: What is resident of the module, by slot.
        head_deltas: Of a tied embedding, what is resident of its product.
    """

    active: ActiveRows
    deltas: DeltaTable
    head_deltas: DeltaTable | None

    def rows_with_deltas(self) -> AdapterRows | None:
        """The step's rows; None: no adapter of the step changes the module."""
        rows = self.active.rows
        return rows if rows is not None and self.deltas.has_any(rows) else None


class AdaptedLinear(Adapted, Linear):
    """A product to which adapters are added."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        out = Linear.forward(self, hidden)
        rows = self.active.rows
        return out if rows is None else self.deltas.add(out, hidden, rows, self.bias)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = self.active.rows
        if self.packed is None:
            out = Linear.forward(self, hidden).float()
        else:
            out = self.packed.wide_linear(hidden, self.bias)
        return out if rows is None else self.deltas.add(out, hidden, rows, self.bias)

    @property
    def has_argmax(self) -> bool:
        return self.active.rows is None and hasattr(self.packed, "argmax")


class AdaptedEmbedding(Adapted, Embedding):
    """A table whose rows, and whose product, adapters change."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out = Embedding.forward(self, ids)
        rows = self.rows_with_deltas()
        if rows is None:
            return out
        for slot, delta in self.deltas.of(rows):
            chosen = rows.rows_of(slot)
            out[chosen] = _changed_table(delta, out[chosen], ids[chosen], rows.scalings_of(slot))
        return out

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        out = Embedding.logits(self, hidden)
        rows = self.active.rows
        return out if rows is None or self.head_deltas is None else self.head_deltas.add(out, hidden, rows, None)

    @property
    def has_argmax(self) -> bool:
        is_changed = self.active.rows is not None and self.head_deltas is not None
        return not is_changed and hasattr(self.packed, "argmax")


def _changed_table(
    delta: ModuleDelta, found: torch.Tensor, ids: torch.Tensor, scalings: torch.Tensor | None
) -> torch.Tensor:
    """(n, h) rows of a table as an adapter has them."""
    values = found.float() if delta.whole is None else functional.embedding(ids, delta.whole).float()
    if delta.gain is not None:
        values = values + values * delta.gain
    for term in delta.terms:
        # A term's B has a column for each row of the table.
        low = term.b.index_select(1, ids).mT.float() * term.scale
        values = values + term.scaled(low, scalings) @ term.a.float()
    return values.to(found.dtype)


class AdaptedRouter(Adapted, Router):
    """A router whose logits adapters change."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        entering = self.entering(hidden)
        out = functional.linear(entering, self.weight.float(), self.bias)
        rows = self.active.rows
        return out if rows is None else self.deltas.add(out, entering.to(hidden.dtype), rows, self.bias)


class AdaptedStepProjection(Adapted, StepProjection):
    """Mamba-1's step sizes, which adapters change; the bias is added later."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        out = StepProjection.forward(self, hidden)
        rows = self.active.rows
        return out if rows is None else self.deltas.add(out, hidden, rows, None)


class AdaptedExperts(Adapted, Experts):
    """Experts of which adapters change some; the rows of other adapters and of none run as they do without."""

    def forward(self, hidden: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        rows = self.rows_with_deltas()
        if rows is None:
            return self.mix(hidden, weights, chosen)
        if len(rows.slots) != len(hidden):  # each row stands there once for each of its experts
            rows = rows.repeat(len(hidden) // len(rows.slots), is_outer=False)
        found = self.deltas.of(rows)
        is_changed = torch.zeros(len(hidden), dtype=torch.bool, device=hidden.device)
        out = torch.empty_like(hidden)
        for slot, delta in found:
            own = rows.rows_of(slot)
            is_changed[own] = True
            out[own] = self._mix_changed(delta, hidden[own], weights[own], chosen[own])
        others = (~is_changed).nonzero().flatten()
        if len(others):
            out[others] = self.mix(hidden[others], weights[others], chosen[others])
        return out

    def _mix_changed(
        self, delta: ModuleDelta, hidden: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor
    ) -> torch.Tensor:
        """The weighted sums of one adapter's rows."""
        first, second = self.stacks
        parts = torch.empty(*chosen.shape, hidden.shape[-1], dtype=hidden.dtype, device=hidden.device)
        for expert in sorted(set(chosen.flatten().tolist())):
            row, place = (chosen == expert).nonzero(as_tuple=True)
            values = hidden[row]
            inner = add_terms(self.product(first, expert, values), values, delta.experts.get((first, expert), []))
            entering = self.activate(inner)
            left = add_terms(self.product(second, expert, entering), entering, delta.experts.get((second, expert), []))
            parts[row, place] = left
        return self.weighted(parts, weights)


class AdaptedHeadExpansion(Adapted, HeadExpansion):
    """A matrix of latent attention; ``AdaptedLatentAttention`` has a copy of its layer for each adapter."""


class AdaptedLatentAttention(MultiHeadLatentAttention):
    """Latent attention with an expansion that adapters change: each adapter's sequences run through a copy of it.

    The absorbed form multiplies queries by the expansion's matrix, so that a change isn't a product of the rows alone.
    """

    active: ActiveRows
    copies: dict[int, MultiHeadLatentAttention]
    plain_mix: Any

    def mix(
        self,
        q_nope: torch.Tensor,
        q_rope: torch.Tensor,
        rows: torch.Tensor | None,
        batch: ForwardBatch,
        state: LayerState,
        choice: Choice | None = None,
    ) -> torch.Tensor:
        assert choice is None and rows is not None  # ``loading`` refuses expansions of layers that aren't plain
        active = self.active.rows
        present = [] if active is None else [slot for slot in active.present if slot in self.copies]
        if active is None or not present:
            return cast("torch.Tensor", self.plain_mix(q_nope, q_rope, rows, batch, state))
        slots = active.slots_of_sequences(batch)
        mixed: torch.Tensor | None = None
        for slot in (0, *present):
            sequences = [at for at, own in enumerate(slots) if (own if own in self.copies else 0) == slot]
            if not sequences:
                continue
            chosen, part = batch.rows_of(sequences), batch.part(sequences)
            run = self.plain_mix if slot == 0 else self.copies[slot].mix
            found = run(q_nope[chosen], q_rope[chosen], rows[chosen], part, state)
            mixed = found.new_empty(len(rows), found.shape[1]) if mixed is None else mixed
            mixed[chosen] = found
        assert mixed is not None
        return mixed


def adapt_latent_attention(layer: MultiHeadLatentAttention, active: ActiveRows) -> AdaptedLatentAttention:
    """Make a layer adaptable in place; a backend's form of ``mix`` stays what computes it."""
    plain = layer.__dict__.pop("mix", None) or MethodType(MultiHeadLatentAttention.mix, layer)
    layer.__class__ = AdaptedLatentAttention
    adapted = cast("AdaptedLatentAttention", layer)
    adapted.active, adapted.copies, adapted.plain_mix = active, {}, plain
    return adapted


def copy_with(layer: AdaptedLatentAttention, matrices: Mapping[str, torch.Tensor]) -> MultiHeadLatentAttention:
    """A copy of a layer that shares everything but the named expansions' matrices."""
    made = copy.copy(layer)
    made.__class__ = MultiHeadLatentAttention  # type: ignore[assignment]
    made._modules = dict(layer._modules)
    for name, matrix in matrices.items():
        own = getattr(layer, name)
        expansion = copy.copy(own)
        expansion.__class__ = HeadExpansion
        expansion._parameters = {"weight": nn.Parameter(matrix, requires_grad=False)}
        expansion.__dict__.pop("weight", None)
        made._modules[name] = expansion
        if name in made.__dict__:
            made.__dict__[name] = expansion
    if not isinstance(layer.plain_mix, MethodType):
        raise TypeError(f"{layer.plain_mix!r} is no method")
    made.__dict__["mix"] = MethodType(layer.plain_mix.__func__, made)
    return made


ADAPTED: Mapping[type[nn.Module], type[nn.Module]] = {
    Linear: AdaptedLinear,
    Embedding: AdaptedEmbedding,
    Router: AdaptedRouter,
    StepProjection: AdaptedStepProjection,
    Experts: AdaptedExperts,
    HeadExpansion: AdaptedHeadExpansion,
}
"""Layer type to the type that adds adapters."""
