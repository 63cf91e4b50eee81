"""ClippedAttention: relative attention with vectors cut at a length, a sink for each row, and taps by token.

Source: transformers' ``inkling2``.

Shape letters: T rows, h hidden, H query heads, V key/value heads, P head width, r learned profiles of the bias, K taps.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from inference.modelling.forward_batch import ForwardBatch, LayerState
from inference.modelling.layers.attention import Attention
from inference.modelling.layers.dynamic_conv import DynamicConv1d
from inference.modelling.layers.layer import Layer
from inference.modelling.layers.linear import Linear
from inference.modelling.layers.relative_attention import RelativeAttention
from inference.modelling.specs.inkling2 import ClippedAttentionSpec


def clip(vectors: torch.Tensor, limit: float, scale: torch.Tensor | None = None) -> torch.Tensor:
    """Vectors (…, n), times ``scale``, shortened to the length ``limit`` where they are longer; in float32 within."""
    values = vectors.float() if scale is None else vectors.float() * scale.float()
    lengths = torch.linalg.vector_norm(values, dim=-1, keepdim=True)
    shortened: torch.Tensor = values * (limit / (lengths + 1e-6)).clamp(max=1.0)
    return shortened.to(vectors.dtype)


class ClippedAttention(RelativeAttention):
    """See ``ClippedAttentionSpec``.

    Args:
        spec: Sizes and rules.
        hidden_size: h.
    """

    float32_parameters: ClassVar[frozenset[str]] = Attention.float32_parameters | {"query_scale", "relative_scale"}

    def __init__(self, spec: ClippedAttentionSpec, hidden_size: int) -> None:
        super().__init__(spec, hidden_size)
        self.clipped = spec
        self.query_scale = nn.Parameter(torch.empty(spec.num_heads, spec.head_dim), requires_grad=False)
        self.relative_scale = nn.Parameter(torch.empty(spec.num_heads, spec.relative_width), requires_grad=False)
        self.sink_proj = Linear(hidden_size, spec.num_heads)
        if spec.has_three_inputs:
            width, taps = spec.conv_width // 2, spec.num_kv_heads * spec.conv_kernel
            self.key_proj, self.value_proj = Linear(hidden_size, width), Linear(hidden_size, width)
            self.key_taps_proj, self.value_taps_proj = Linear(hidden_size, taps), Linear(hidden_size, taps)

    def _make_conv(self) -> Layer:
        spec = self.relative
        if isinstance(spec, ClippedAttentionSpec) and spec.has_three_inputs:
            return DynamicConv1d(spec.conv_width, spec.conv_kernel, spec.conv_scale)
        return super()._make_conv()

    def forward(self, hidden: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """(T, h), or (3, T, h) of queries, keys and values, to (T, h); their keys and values are cached."""
        spec = self.clipped
        rows = hidden[0] if spec.has_three_inputs else hidden
        query, key, value = self._heads(self.project(hidden, batch, state), batch)
        assert self.v_norm is not None
        query, key, value = clip(query, spec.qk_limit, self.query_scale), clip(key, spec.qk_limit), self.v_norm(value)
        relative = self.relative_proj(rows).view(*query.shape[:2], -1)
        relative = clip(relative, spec.relative_limit, self.relative_scale)
        mixed = self.attend(query, key, value, relative, batch, state, self.sink_proj(rows))
        assert self.gate_proj is not None
        out: torch.Tensor = self.o_proj(self._gated(mixed, self.gate_proj(rows)))
        return out

    def project(self, hidden: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """Rows as of ``forward`` to queries, keys and values side by side, the latter two convolved."""
        if not self.clipped.has_three_inputs:
            return super().project(hidden, batch, state)
        queries, keys, values = hidden.unbind()
        others = torch.cat((self.key_proj(keys), self.value_proj(values)), 1)
        taps = torch.cat((self.key_taps_proj(keys), self.value_taps_proj(values)), 1)
        groups = taps.view(len(taps), 2 * self.spec.num_kv_heads, self.clipped.conv_kernel)
        return torch.cat((self.qkv_proj(queries), self.conv(others, groups, batch, state["dynamic_conv_state"])), 1)
