"""Watch the layers of a plain network: which decays they compute, and how far their attention reaches.

A layer computes its recurrence, its decays, and the attention of a chunk, in methods with names. ``Observers`` puts a
recording method in front of each of them, and takes it away again. A recurrence is computed piece by piece, as the
engine computes a long prompt, so that its state can be read between the pieces. Layers that share one block of weights
are told apart by the layer that runs.

Shape letters: T rows, H heads, C channels of a head with decays of their own, P head width, N pieces of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MethodType, TracebackType
from typing import Any, Self, cast

import torch
from torch import nn

from inference.modelling.forward_batch import ForwardBatch, LayerState, PrefillChunk
from inference.modelling.layers.attention import Attention, chunk_bias, chunk_slots
from inference.modelling.layers.compressed_attention import CompressedAttention
from inference.modelling.layers.gated_delta import GatedDelta
from inference.modelling.layers.indexer import Queries
from inference.modelling.layers.kimi_delta import KimiDelta
from inference.modelling.layers.lightning import LightningAttention
from inference.modelling.layers.mamba1 import Mamba1Mixer
from inference.modelling.layers.mamba2 import Mamba2Mixer
from inference.modelling.layers.mamba3 import Mamba3Mixer
from inference.modelling.layers.mla import MultiHeadLatentAttention
from inference.modelling.layers.mlstm import MLSTM
from inference.modelling.layers.relative_attention import RelativeAttention
from inference.modelling.layers.rg_lru import RGLRU
from inference.modelling.layers.rwkv import TimeMix
from inference.modelling.network import HybridForCausalLM

ROW_BLOCK = 128
"""Rows whose attention weights are there at once: 128 · 4,096 columns · 32 heads in float32 are 64 MiB."""
MAX_NORMS = 32
"""Positions of a text at which a state's norm is taken."""


@dataclass(slots=True)
class Recording:
    """What one mixer of one layer did.

    Attributes:
        module: The mixer.
        log_decays: (T, H, C) logarithms of the decays; one row for each piece where they don't depend on the input.
        state_norms: (N, H) Euclidean norms of the heads' states after each piece of the text.
        distances: (H,) mean distance in tokens from a row to the rows that it attends to.
        sink_shares: (H,) mean weight that goes to the sink instead of to tokens; None: there is no sink.
    """

    module: nn.Module
    log_decays: torch.Tensor | None = None
    state_norms: torch.Tensor | None = None
    distances: torch.Tensor | None = None
    sink_shares: torch.Tensor | None = None


def _of_mamba1(layer: Mamba1Mixer, delta: torch.Tensor) -> torch.Tensor:
    """One head, whose channels have the median of their states' decay rates."""
    return (delta * layer.decay_rates().median(1).values).unsqueeze(1)


def _of_heads(layer: nn.Module, log_decays: torch.Tensor) -> torch.Tensor:
    return log_decays.reshape(-1, log_decays.shape[-1], 1)


def _second_of_heads(layer: nn.Module, gates: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return gates[1].unsqueeze(2)


def _of_kimi_delta(layer: KimiDelta, log_decays: torch.Tensor) -> torch.Tensor:
    return log_decays.view(-1, layer.spec.num_heads, layer.spec.head_dim)


def _of_time_mix(layer: TimeMix, log_decays: torch.Tensor) -> torch.Tensor:
    """One head: RWKV-4 has none, each channel decays by itself."""
    return log_decays.view(1, 1, -1)


def _of_rg_lru(layer: RGLRU, log_decays: torch.Tensor) -> torch.Tensor:
    return log_decays.view(log_decays.shape[0], layer.spec.num_blocks, -1)


@dataclass(frozen=True, slots=True)
class Recurrence:
    """How a type of recurrent layer is watched.

    Attributes:
        method: The method that computes the decays.
        shaped: Makes (T, H, C) of the layer and the method's result.
        state: Name of the state tensor that the decays apply to.
    """

    method: str
    shaped: Callable[[Any, Any], torch.Tensor]
    state: str


RECURRENCES: Mapping[type[nn.Module], Recurrence] = {
    Mamba1Mixer: Recurrence("step_sizes", _of_mamba1, "ssm_state"),
    Mamba2Mixer: Recurrence("gates", _second_of_heads, "ssm_state"),
    Mamba3Mixer: Recurrence("log_decays", _of_heads, "ssm_state"),
    GatedDelta: Recurrence("gates", _second_of_heads, "delta_state"),
    KimiDelta: Recurrence("log_decays", _of_kimi_delta, "delta_state"),
    LightningAttention: Recurrence("log_decays", _of_heads, "linear_state"),
    RGLRU: Recurrence("log_decays", _of_rg_lru, "lru_state"),
    MLSTM: Recurrence("gate_values", _second_of_heads, "memory_state"),
    TimeMix: Recurrence("log_decays", _of_time_mix, "wkv_state"),
}
"""By layer type. The method is called within ``mix``, whose last arguments are the batch and the layer's state."""


@dataclass(slots=True)
class Observers:
    """Records what the layers of a network do, within a ``with`` block.

    Args:
        network: Whose layers have no faster forms bound.

    Attributes:
        layer: Number of the layer that runs; set it before each.
        recordings: For each layer its mixers in the order in which they ran.
    """

    network: HybridForCausalLM
    layer: int = field(default=0, init=False)
    recordings: list[list[Recording]] = field(init=False)
    _undo: list[Callable[[], None]] = field(default_factory=list, init=False)

    def __enter__(self) -> Self:
        self.recordings = [[] for _ in self.network.layers]
        for module in self.network.modules():
            if (found := RECURRENCES.get(type(module))) is not None:
                self._replace(
                    module, "mix", self._in_pieces(cast("Callable[..., torch.Tensor]", module.mix), found.state)
                )
                self._wrap(module, found.method, self._decays(found.shaped))
            elif isinstance(module, RelativeAttention):
                self._wrap(module, "attend", self._relative_attention)
            elif isinstance(module, CompressedAttention):
                self._wrap(module, "attend_chunk", self._compressed_attention)
            elif isinstance(module, MultiHeadLatentAttention):
                self._wrap(module, "attend_chunk", self._latent_attention)
            elif isinstance(module, Attention):
                self._wrap(module, "attend_chunk", self._attention)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._undo:
            self._undo.pop()()

    def _wrap(self, module: nn.Module, name: str, record: Callable[..., None]) -> None:
        method = getattr(module, name)

        def recorded(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            record(layer, result, *args)
            return result

        self._replace(module, name, recorded)

    def _replace(self, module: nn.Module, name: str, method: Callable[..., Any]) -> None:
        setattr(module, name, MethodType(method, module))
        self._undo.append(lambda: delattr(module, name))

    def _recording(self, module: nn.Module) -> Recording:
        recording = Recording(module)
        self.recordings[self.layer].append(recording)
        return recording

    def _in_pieces(self, mix: Callable[..., torch.Tensor], state_name: str) -> Callable[..., torch.Tensor]:
        def mix_in_pieces(layer: nn.Module, *args: Any) -> torch.Tensor:
            *rows, batch, state = args
            recording = self._recording(layer)
            mixed, decays, norms = [], [], []
            for piece, part in _pieces(batch):
                mixed.append(mix(*(values[piece] for values in rows), part, state))
                assert recording.log_decays is not None
                decays.append(recording.log_decays)
                norms.append(_head_norms(state, state_name, part, recording.log_decays.shape[1]))
            recording.log_decays, recording.state_norms = torch.cat(decays), torch.stack(norms).cpu()
            return torch.cat(mixed)

        return mix_in_pieces

    def _decays(self, shaped: Callable[[Any, Any], torch.Tensor]) -> Callable[..., None]:
        def record(layer: nn.Module, result: Any, *args: Any) -> None:
            self.recordings[self.layer][-1].log_decays = shaped(layer, result).float().cpu()

        return record

    def _attention(
        self,
        layer: Attention,
        result: torch.Tensor,
        chunk: PrefillChunk,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        batch: ForwardBatch,
        state: LayerState,
        index: torch.Tensor | None = None,
    ) -> None:
        if key is None:  # it reads another layer's
            key = state["k"].index_select(0, chunk_slots(batch, chunk))
        mask = layer.chunk_mask(chunk, 0, query.dtype, batch, state, index)
        spec = layer.spec
        self._record(layer, query, key, scale=spec.scale, softcap=spec.softcap, sinks=layer.sinks, mask=mask)

    def _latent_attention(
        self,
        layer: MultiHeadLatentAttention,
        result: torch.Tensor,
        chunk: PrefillChunk,
        q_nope: torch.Tensor,
        q_rope: torch.Tensor,
        latent: torch.Tensor | None,
        batch: ForwardBatch,
        state: LayerState,
        bias: torch.Tensor | None = None,
    ) -> None:
        if latent is None:  # it reads another layer's
            latent = state["latent"].index_select(0, chunk_slots(batch, chunk))
        query, (key, _) = torch.cat((q_nope, q_rope), -1), layer.expand(latent)
        if bias is None:
            bias = chunk_bias(batch, chunk, 0, layer.spec.sliding_window, query.dtype)
        self._record(layer, query, key, scale=layer.spec.scale, softcap=None, sinks=layer.sinks, mask=bias)

    def _record(
        self,
        layer: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        *,
        scale: float,
        softcap: float | None,
        sinks: torch.Tensor | None,
        mask: torch.Tensor | None,
    ) -> None:
        def bias(part: slice) -> torch.Tensor:
            assert mask is not None
            return mask[..., part, :]

        recording = self._recording(layer)
        recording.distances, shares = attended_distances(
            query, key, scale=scale, softcap=softcap, sinks=sinks, bias=None if mask is None else bias
        )
        recording.sink_shares = None if sinks is None else shares

    def _compressed_attention(
        self,
        layer: CompressedAttention,
        result: torch.Tensor,
        chunk: PrefillChunk,
        query: torch.Tensor,
        batch: ForwardBatch,
        state: LayerState,
        index: Queries | None,
    ) -> None:
        recording, sums = self._recording(layer), []
        for rows, keys, mask, places in layer.seen(chunk, batch, state, index, ROW_BLOCK):
            scores = torch.matmul(query[rows].float().transpose(0, 1), keys.float().t()) * layer.spec.scale + mask
            own = torch.arange(rows.start, rows.stop, device=query.device)
            sums.append(_weighted(scores, own[:, None] - places, layer.sinks[:, None]))
        distances, shares = (torch.stack(found).sum(0) / len(query) for found in zip(*sums, strict=True))
        recording.distances, recording.sink_shares = distances.cpu(), shares.cpu()

    def _relative_attention(
        self,
        layer: RelativeAttention,
        result: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        relative: torch.Tensor,
        batch: ForwardBatch,
        state: LayerState,
        sinks: torch.Tensor | None = None,
    ) -> None:
        query, relative = layer.grown(query, relative, batch)
        rows = torch.arange(len(query), device=query.device)

        def bias(part: slice) -> torch.Tensor:
            return layer.bias(relative[part], rows[part, None] - rows).transpose(0, 1)

        recording = self._recording(layer)
        recording.distances, shares = attended_distances(
            query, key, scale=layer.spec.scale, softcap=None, sinks=sinks, bias=bias
        )
        recording.sink_shares = None if sinks is None else shares


def norm_positions(num_tokens: int) -> list[int]:
    """Tokens that were read at each taking of the norms: evenly spaced, the last one after the whole text."""
    count = min(MAX_NORMS, num_tokens)
    return [num_tokens * number // count for number in range(1, count + 1)]


def _pieces(batch: ForwardBatch) -> Iterator[tuple[slice, ForwardBatch]]:
    """The rows of each piece of a batch with one whole text, and the piece as a batch."""
    (chunk,) = batch.prefills
    first = 0
    for stop in norm_positions(batch.num_tokens):
        rows = slice(first, stop)
        part = PrefillChunk(0, stop - first, first, chunk.sequence, chunk.state_slot)
        yield (
            rows,
            replace(
                batch,
                input_ids=batch.input_ids[rows],
                positions=batch.positions[rows],
                slot_mapping=batch.slot_mapping[rows],
                prefills=(part,),
                shared={},
            ),
        )
        first = stop


def _head_norms(state: LayerState, name: str, batch: ForwardBatch, num_heads: int) -> torch.Tensor:
    """(H,) Euclidean norms of the heads' parts of a sequence's state."""
    entry = state[name][batch.prefills[0].state_slot]
    norms: torch.Tensor = entry.float().reshape(num_heads, -1).norm(dim=1)
    return norms


def attended_distances(
    query: torch.Tensor,
    key: torch.Tensor,
    *,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
    bias: Callable[[slice], torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean distances of causal attention over a text from its beginning.

    Args:
        query: (T, H, P).
        key: (T, V, P), V dividing H.
        softcap: cap · tanh(score / cap).
        sinks: Scores of a column without a token, (H,) or for each row (T, H); None: there is none.
        bias: What is added to the scores of some rows, broadcast to (H, n, T), -inf where a row doesn't see a column;
            None: nothing.

    Returns:
        (H,) mean over the rows of Σ w (row - column), with weights w over tokens that sum to 1; and (H,) mean weight
        of the sinks.
    """
    count, heads = query.shape[:2]
    repeats = heads // key.shape[1]
    key = key.float().permute(1, 2, 0).repeat_interleave(repeats, 0)  # (H, P, T)
    columns = torch.arange(count, device=query.device)
    sums = []
    for first in range(0, count, ROW_BLOCK):
        part = slice(first, first + ROW_BLOCK)
        scores = torch.matmul(query[part].float().transpose(0, 1), key) * scale
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        if bias is not None:
            scores = scores + bias(part).float()
        distances = columns[part, None] - columns
        of_rows = None
        if sinks is not None:
            of_rows = sinks[part].t() if sinks.dim() == 2 else sinks[:, None]
        sums.append(_weighted(scores.masked_fill(distances < 0, -torch.inf), distances, of_rows))
    found, shares = (torch.stack(parts).sum(0) / count for parts in zip(*sums, strict=True))
    return found.cpu(), shares.cpu()


def _weighted(
    scores: torch.Tensor, distances: torch.Tensor, sinks: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums over rows of the distances attended to and of the sinks' weights, (H,) float64 each.

    Args:
        scores: (H, n, m), -inf where a row doesn't see a column.
        distances: (n, m).
        sinks: (H, n), or (H, 1) for all rows; None: there is none.
    """
    distance = (scores.softmax(-1) * distances.clamp(min=0)).sum((1, 2)).double()
    if sinks is None:
        return distance, torch.zeros_like(distance)
    return distance, torch.sigmoid(sinks.float() - scores.logsumexp(-1)).sum(1).double()
