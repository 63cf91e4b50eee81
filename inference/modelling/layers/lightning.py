"""LightningAttention: MiniMax's linear attention, whose state decays by a fixed rate for each head.

Source: https://arxiv.org/abs/2501.08313, section 2.2. It is the recurrence of Mamba-2 without step sizes: values enter,
keys are B and queries are C (``ssd_scan``).

Shape letters: T rows, H heads, P their width.
"""

from __future__ import annotations

import torch

from inference.modelling.forward_batch import ForwardBatch, LayerState
from inference.modelling.layers.layer import Layer
from inference.modelling.layers.linear import Linear
from inference.modelling.layers.mlp import ACTIVATION_FUNCTIONS
from inference.modelling.layers.norm import Norm
from inference.modelling.layers.recurrent import run_recurrence
from inference.modelling.layers.scan import ssd_scan, ssd_step
from inference.modelling.specs.linear import LightningSpec


class LightningAttention(Layer):
    """out_proj(σ(gate) · norm(o)), o_t = q_t S_t, S_t = e^(-s) S_{t-1} + k_tᵀ v_t, with q, k, v = act(in_proj(hidden)).

    Args:
        spec: Sizes, slopes and norm.
        hidden_size: h.
    """

    def __init__(self, spec: LightningSpec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        self.in_proj = Linear(hidden_size, 3 * spec.width)
        self.gate_proj = Linear(hidden_size, spec.width)
        self.norm = Norm(spec.norm, spec.width)
        self.out_proj = Linear(spec.width, hidden_size)
        self._log_decays: torch.Tensor | None = None

    def forward(self, hidden: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """(T, h) to (T, h); the states of the batch's sequences advance."""
        mixed = self.norm(self.mix(self.in_proj(hidden), batch, state).to(hidden.dtype))
        out: torch.Tensor = self.out_proj(mixed * self.gate_proj(hidden).sigmoid())
        return out

    def mix(self, qkv: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """(T, 3 H P) before the activation to (T, H P) float32."""
        query, key, value = self.heads(qkv)
        log_decay = self.log_decays(qkv.device).expand(value.shape[:2])
        return run_recurrence(
            batch, torch.empty_like(value), [state["linear_state"]], (value, log_decay, key, query), ssd_step, ssd_scan
        ).flatten(1)

    def heads(self, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(T, 3 H P) before the activation to queries, keys and values (T, H, P) float32, contiguous."""
        activated = ACTIVATION_FUNCTIONS[self.spec.activation](qkv.float())
        shape = (-1, self.spec.num_heads, self.spec.head_dim)
        query, key, value = (part.reshape(shape).contiguous() for part in activated.chunk(3, 1))
        return query, key, value

    def log_decays(self, device: torch.device) -> torch.Tensor:
        """(H,) -s float32, made at the first call."""
        if self._log_decays is None or self._log_decays.device != device:
            heads = torch.arange(1, self.spec.num_heads + 1, device=device)
            slopes = 2.0 ** (-8.0 * heads.double() / self.spec.num_heads)
            self._log_decays = (-slopes * self.spec.decay_factor).float()
        return self._log_decays
