"""ConvolvedAttention: attention whose queries and keys pass a convolution of each channel, then one of each head.

Source: https://arxiv.org/abs/2510.04476 (CCA), and transformers' ``zaya``.

Shape letters: T rows, B decoding sequences, n rows of a chunk, h hidden, H query heads, V key/value heads, P head
width, C = (H + V) · P channels.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from inference.modelling.forward_batch import ForwardBatch, LayerState, PrefillChunk
from inference.modelling.layers.attention import Attention
from inference.modelling.layers.conv import CausalConv1d
from inference.modelling.layers.layer import Layer
from inference.modelling.layers.recurrent import run_batch
from inference.modelling.specs.zaya import ConvolvedAttentionSpec


class HeadConv1d(Layer):
    """y_t = bias + Σ_j W_j · x_{t-K+1+j} for each head alone, W_j (P, P).

    Before a sequence's start the inputs are what they are told to be: the layer before gives its bias there, not zeros.

    Args:
        num_heads: Heads, P channels each.
        head_dim: P.
        kernel_size: K.
    """

    float32_parameters: ClassVar[frozenset[str]] = frozenset({"weight", "bias"})

    def __init__(self, num_heads: int, head_dim: int, kernel_size: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.kernel_size = num_heads, head_dim, kernel_size
        width = num_heads * head_dim
        self.weight = nn.Parameter(torch.empty(width, head_dim, kernel_size), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(width), requires_grad=False)
        self._taps: tuple[nn.Parameter, torch.Tensor] | None = None

    def forward(
        self, rows: torch.Tensor, first: torch.Tensor, batch: ForwardBatch, conv_state: torch.Tensor
    ) -> torch.Tensor:
        """Convolve the batch's rows, each sequence behind its own tail.

        Args:
            rows: (T, C) float32.
            first: (C,), the inputs before a sequence's start.
            batch: The step.
            conv_state: (slots, K-1, C) float32; the tails of the batch's sequences are overwritten.

        Returns:
            (T, C) float32.
        """

        def decode(chosen: slice, slots: torch.Tensor) -> torch.Tensor:
            window = torch.cat((conv_state.index_select(0, slots), rows[chosen].unsqueeze(1)), 1)
            conv_state.index_copy_(0, slots, window[:, 1:])
            return self._sums([window[:, tap] for tap in range(self.kernel_size)])

        def prefill(chosen: slice, chunk: PrefillChunk) -> torch.Tensor:
            tail = conv_state[chunk.state_slot]
            if not chunk.context_len:
                tail.copy_(first.expand_as(tail))
            padded = torch.cat((tail, rows[chosen]))
            count = chosen.stop - chosen.start
            tail.copy_(padded[count:])
            return self._sums([padded[tap : tap + count] for tap in range(self.kernel_size)])

        return run_batch(batch, torch.empty_like(rows), decode, prefill)

    def _sums(self, shifted: list[torch.Tensor]) -> torch.Tensor:
        """(n, C) of each tap to (n, C)."""
        taps = self._matrices()
        # (heads, n, P): each head is a product of its own.
        parts = [part.view(-1, self.num_heads, self.head_dim).transpose(0, 1) for part in shifted]
        total = torch.bmm(parts[0], taps[0])
        for part, matrix in zip(parts[1:], taps[1:], strict=True):
            total = torch.baddbmm(total, part, matrix)
        return total.transpose(0, 1).flatten(1) + self.bias.float()

    def _matrices(self) -> torch.Tensor:
        """(K, heads, P in, P out) float32, computed at the first call: they don't change after the load."""
        if self._taps is None or self._taps[0] is not self.weight:
            by_head = self.weight.float().view(self.num_heads, self.head_dim, self.head_dim, self.kernel_size)
            self._taps = (self.weight, by_head.permute(3, 0, 2, 1).contiguous())
        return self._taps[1]


class ConvolvedAttention(Attention):
    """See ``ConvolvedAttentionSpec``.

    Args:
        spec: Sizes and rules.
        hidden_size: h.
    """

    float32_parameters: ClassVar[frozenset[str]] = Attention.float32_parameters | {"key_scale"}

    def __init__(self, spec: ConvolvedAttentionSpec, hidden_size: int) -> None:
        super().__init__(spec, hidden_size)
        self.convolved = spec
        self.conv1d = CausalConv1d(spec.conv_width, spec.channel_kernel, bias=True, activation=None)
        self.head_conv = HeadConv1d(spec.num_heads + spec.num_kv_heads, spec.head_dim, spec.head_kernel)
        self.key_scale = nn.Parameter(torch.empty(spec.num_kv_heads), requires_grad=False)

    def project(self, hidden: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """(T, h) to queries, keys and values side by side."""
        spec = self.convolved
        widths = [spec.conv_width, spec.delayed_width, spec.delayed_width]
        raw, current, delayed = torch.split(self.qkv_proj(hidden), widths, 1)
        assert self.conv1d.bias is not None
        convolved = self.conv1d(raw, batch, state["conv_state"])
        convolved = self.head_conv(convolved, self.conv1d.bias.float(), batch, state["head_conv_state"])
        heads = self._heads_of(raw, convolved).to(hidden.dtype)
        return torch.cat((heads, current, self._delayed(delayed, batch, state["delayed_state"])), 1)

    def _heads_of(self, raw: torch.Tensor, convolved: torch.Tensor) -> torch.Tensor:
        """(T, C) of projections and of the convolutions to the same of queries and keys, float32."""
        spec = self.convolved
        groups = spec.num_heads // spec.num_kv_heads
        own = raw.float().view(raw.shape[0], -1, spec.head_dim)
        key = own[:, spec.num_heads :].unsqueeze(2)
        means = (own[:, : spec.num_heads].unflatten(1, (-1, groups)) + key) * 0.5  # type: ignore[no-untyped-call]
        mixed = convolved.view_as(own) + torch.cat((means.flatten(1, 2), means.mean(2)), 1)
        least = torch.finfo(raw.dtype).eps
        units = mixed * (spec.head_dim**0.5 / mixed.norm(dim=-1, keepdim=True).clamp(min=least))
        units[:, spec.num_heads :] *= self.key_scale.float().unsqueeze(1)
        joined: torch.Tensor = units.flatten(1)
        return joined

    def _delayed(self, rows: torch.Tensor, batch: ForwardBatch, pool: torch.Tensor) -> torch.Tensor:
        """(T, W) of each token to those of the token before it: before the start, the projection of zeros."""

        def decode(chosen: slice, slots: torch.Tensor) -> torch.Tensor:
            before = pool.index_select(0, slots)
            pool.index_copy_(0, slots, rows[chosen].to(pool.dtype))
            return before.to(rows.dtype)

        def prefill(chosen: slice, chunk: PrefillChunk) -> torch.Tensor:
            last = pool[chunk.state_slot]
            if not chunk.context_len:
                last.zero_()
                if self.qkv_proj.bias is not None:
                    last.copy_(self.qkv_proj.bias[-rows.shape[1] :])
            before = torch.cat((last.to(rows.dtype).unsqueeze(0), rows[chosen][:-1]))
            last.copy_(rows[chosen][-1])
            return before

        return run_batch(batch, torch.empty_like(rows), decode, prefill)
