"""Rotary position embedding in all the stretched forms that checkpoints use.

Cosines and sines are made once per step and spec, in float32, and shared by all layers through the
batch; no table has to grow and no position has to come back from the device.

Shape letters: T rows of the step, n heads, D rotated values of a head.

Sources: Su et al. 2021, https://arxiv.org/abs/2104.09864 (rotation); Peng et al. 2023,
https://arxiv.org/abs/2309.00071 (YaRN); Ding et al. 2024, https://arxiv.org/abs/2402.13753 (LongRoPE);
https://github.com/huggingface/transformers/blob/main/src/transformers/modeling_rope_utils.py (the
conventions of checkpoints: which lengths, rounding and factors they mean).
"""

from __future__ import annotations

import math
from functools import cache
from typing import cast

import torch

from inference.modelling.forward_batch import ForwardBatch
from inference.modelling.specs.parts import RopeScaling, RopeSpec

CosSin = tuple[torch.Tensor, torch.Tensor]


def inverse_frequencies(spec: RopeSpec, *, long: bool = False) -> torch.Tensor:
    """The rotation per position of each pair.

    Args:
        spec: The embedding.
        long: Which of longrope's two lists to use.

    Returns:
        (D/2,) float32, on the CPU. For ``dynamic`` those of a sequence within the trained context.
    """
    # The device is named because networks are built under a default of "meta".
    exponents = torch.arange(0, spec.rotary_dim, 2, dtype=torch.int64, device="cpu").float() / spec.rotary_dim
    powers = spec.theta**exponents
    if spec.turning_pairs is not None:
        powers[spec.turning_pairs :] = math.inf  # their frequency is 0
    scaling = spec.scaling
    if scaling is None or scaling.kind == "dynamic":
        return 1.0 / powers
    if scaling.kind == "linear":
        return 1.0 / powers / scaling.factor
    if scaling.kind == "llama3":
        return _llama3(1.0 / powers, scaling)
    if scaling.kind == "yarn":
        return _yarn(powers, spec, scaling)
    factors = torch.tensor(scaling.long_factor if long else scaling.short_factor, dtype=torch.float32, device="cpu")
    return 1.0 / (factors * powers)


def attention_factor(spec: RopeSpec) -> float:
    """What cosines and sines are multiplied by; 1 for most kinds."""
    scaling = spec.scaling
    if scaling is None or scaling.kind not in ("yarn", "longrope"):
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.kind == "yarn":
        if scaling.mscale and scaling.mscale_all_dim:
            return _yarn_magnitude(scaling.factor, scaling.mscale) / _yarn_magnitude(
                scaling.factor, scaling.mscale_all_dim
            )
        return _yarn_magnitude(scaling.factor, 1.0)
    if scaling.factor <= 1.0:
        return 1.0
    return math.sqrt(1 + math.log(scaling.factor) / math.log(scaling.original_max_position_embeddings))


def _yarn_magnitude(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0


def _llama3(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Long wavelengths are divided by the factor, short ones kept, those between blended."""
    low, high, original = scaling.low_freq_factor, scaling.high_freq_factor, scaling.original_max_position_embeddings
    wavelengths = 2 * math.pi / frequencies
    # Where the bands meet (Llama 4), there is nothing to blend.
    share = ((original / wavelengths - low) / max(high - low, 1e-9)).clamp(0.0, 1.0)
    return frequencies * (share + (1 - share) / scaling.factor)


def _yarn(powers: torch.Tensor, spec: RopeSpec, scaling: RopeScaling) -> torch.Tensor:
    """NTK by parts: pairs that turn often keep their frequency, slow ones are divided by the factor."""
    dim, original = spec.rotary_dim, scaling.original_max_position_embeddings

    def pair_with_rotations(rotations: float) -> float:
        """The (fractional) pair that turns this often within the trained context."""
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(spec.theta))

    low, high = pair_with_rotations(scaling.beta_fast), pair_with_rotations(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = (torch.arange(dim // 2, dtype=torch.float32, device="cpu") - low) / (high - low if high != low else 0.001)
    divided = ramp.clamp(0.0, 1.0)
    return divided / (scaling.factor * powers) + (1 - divided) / powers


class RotaryEmbedding:
    """Cosines and sines of one spec. Get it from ``rotary_embedding``, so that layers share the step's values."""

    def __init__(self, spec: RopeSpec) -> None:
        self.spec = spec
        self.factor = attention_factor(spec)
        self._frequencies: dict[tuple[torch.device, bool], torch.Tensor] = {}

    def step(self, batch: ForwardBatch) -> CosSin:
        """What ``rotate`` needs for the rows of this step; computed by the first layer that asks."""
        found = cast("CosSin | None", batch.shared.get(self))
        if found is None:
            found = self.cos_sin(batch.positions, batch.rope_lengths)
            batch.shared[self] = found
        return found

    def cos_sin(
        self, positions: torch.Tensor, lengths: torch.Tensor | None = None, factors: torch.Tensor | None = None
    ) -> CosSin:
        """Cosines and signed sines.

        Args:
            positions: (T,) int64.
            lengths: ``ForwardBatch.rope_lengths``; None: each sequence ends with its row.
            factors: (D/2,) float32, of the frequencies; None: 1.

        Returns:
            Two (T, 1, D) float32, laid out as the rotated values are. The sine of the first of a pair is
            negative: rotated = x · cos + partner(x) · sin.
        """
        if self.spec.depends_on_length:
            frequencies = self._frequencies_at(positions + 1 if lengths is None else lengths)
        else:
            frequencies = self._on(positions.device)
        if factors is not None:
            frequencies = frequencies * factors
        angles = positions.unsqueeze(-1).float() * frequencies
        cos, sin = angles.cos() * self.factor, angles.sin() * self.factor
        if self.spec.is_reversed:
            sin = -sin
        if self.spec.interleaved:
            cos, sin = torch.stack((cos, cos), -1).flatten(-2), torch.stack((-sin, sin), -1).flatten(-2)
        else:
            cos, sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        return cos.unsqueeze(1), sin.unsqueeze(1)

    def _frequencies_at(self, lengths: torch.Tensor) -> torch.Tensor:
        """(T, D/2), for the kinds whose frequencies depend on the length."""
        device, scaling = lengths.device, self.spec.scaling
        assert scaling is not None
        if scaling.kind == "longrope":
            is_long = (lengths > scaling.original_max_position_embeddings).unsqueeze(-1)
            return torch.where(is_long, self._on(device, long=True), self._on(device))
        # NTK: the base grows with the length, so that the slowest pair never turns further than in training.
        trained, dim = self.spec.max_position_embeddings, self.spec.rotary_dim
        stretch = scaling.factor * lengths.clamp(min=trained).float() / trained - (scaling.factor - 1)
        exponents = torch.arange(0, dim, 2, device=device).float() / dim
        bases = self.spec.theta * stretch ** (dim / (dim - 2))
        frequencies: torch.Tensor = bases.unsqueeze(-1) ** -exponents
        return frequencies

    def _on(self, device: torch.device, *, long: bool = False) -> torch.Tensor:
        """``inverse_frequencies`` on a device, copied there once."""
        found = self._frequencies.get((device, long))
        if found is None:
            found = inverse_frequencies(self.spec, long=long).to(device)
            self._frequencies[device, long] = found
        return found


@cache
def rotary_embedding(spec: RopeSpec) -> RotaryEmbedding:
    """The one ``RotaryEmbedding`` of a spec in this process."""
    return RotaryEmbedding(spec)


def rotate(values: torch.Tensor, cos_sin: CosSin, *, interleaved: bool) -> torch.Tensor:
    """Rotate the pairs of each head by the row's position, in float32.

    Args:
        values: (T, n, D).
        cos_sin: From ``RotaryEmbedding``.
        interleaved: As in the spec.

    Returns:
        (T, n, D), in the dtype of ``values``.
    """
    cos, sin = cos_sin
    if interleaved:
        partner = values.reshape(*values.shape[:-1], -1, 2).flip(-1).flatten(-2)
    else:
        partner = values.roll(values.shape[-1] // 2, -1)
    return torch.addcmul(values * cos, partner, sin).to(values.dtype)


def rotate_last(values: torch.Tensor, cos_sin: CosSin, spec: RopeSpec) -> torch.Tensor:
    """``rotate`` over the last ``rotary_dim`` values of each head (T, n, ≥ D); the others pass through."""
    if values.shape[-1] == spec.rotary_dim:
        return rotate(values, cos_sin, interleaved=spec.interleaved)
    turned = rotate(values[..., -spec.rotary_dim :], cos_sin, interleaved=spec.interleaved)
    return torch.cat((values[..., : -spec.rotary_dim], turned), -1)


def rotate_first(values: torch.Tensor, cos_sin: CosSin, spec: RopeSpec) -> torch.Tensor:
    """``rotate`` over the first ``rotary_dim`` values of each head (T, n, ≥ D); the others pass through."""
    if values.shape[-1] == spec.rotary_dim:
        return rotate(values, cos_sin, interleaved=spec.interleaved)
    turned = rotate(values[..., : spec.rotary_dim], cos_sin, interleaved=spec.interleaved)
    return torch.cat((turned, values[..., spec.rotary_dim :]), -1)
