"""Find codes and scales of the least squared error for groups of weights, in any form without offsets."""

from __future__ import annotations

import functools
import itertools

import torch
from torch.nn import functional

from inference.modelling.quantisation import INT4_LEVELS, Form

_TINY = 1e-30
_INT4_ENDS = (-127.0, -118.0, -136.0, -110.0, -145.0, 113.0, 104.0, 121.0, 97.0)
"""Where among the levels of int4 a group's value of the greatest magnitude is tried, as the native kernels do."""
_END_STEPS = (0.0, 0.375, -0.375, 0.75, -0.75)
"""The same for the other forms: so many steps inside of the last level, at both ends."""


def nearest_codes(values: torch.Tensor, form: Form) -> torch.Tensor:
    """Return the codes of the levels that are nearest to float32 values, uint8."""
    if not form.levels:
        return (_nearest_levels(values, form) + form.zero).to(torch.uint8)
    return _sum_of_steps(values, form.levels, [0] + [1] * (len(form.levels) - 1)).to(torch.uint8)


def find_codes(weight: torch.Tensor, form: Form) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes (…, K) uint8 and scales (…, groups) of the least squared error for (…, K) of a weight."""
    inputs = weight.shape[-1]
    grouped = in_groups(weight, form.group)
    is_real = torch.arange(grouped.shape[-2:].numel(), device=weight.device).view(grouped.shape[-2:]) < inputs
    scales = best_scales(grouped, is_real, form).to(scales_dtype(form))
    return nearest_codes(grouped * inverse(scales), form).flatten(-2)[..., :inputs], scales


def in_groups(weight: torch.Tensor, group: int) -> torch.Tensor:
    """(…, K) to (…, groups, group) float32, with zeros behind the last input."""
    padded = functional.pad(weight.float(), (0, -weight.shape[-1] % group))
    return padded.view(*weight.shape[:-1], padded.shape[-1] // group, group)


def scales_dtype(form: Form) -> torch.dtype:
    """Return the dtype of a form's scales and offsets."""
    return torch.float16 if form.scales == "float16" else torch.bfloat16


def best_scales(grouped: torch.Tensor, is_real: torch.Tensor, form: Form) -> torch.Tensor:
    """Return the scales of groups, float32.

    A group's value of the greatest magnitude is tried at both ends of the levels, and a little before and beyond them.
    For the levels that are nearest then, the best scale is Σ value · level / Σ level², and the error Σ value² less its
    product with Σ value · level.

    Args:
        grouped: (…, groups, size) float32.
        is_real: (groups, size) which inputs there are.
        form: One without offsets.
    """
    extreme = grouped.gather(-1, grouped.abs().argmax(-1, keepdim=True))
    is_nothing = extreme.abs() < _TINY
    relative = grouped * (1.0 / torch.where(is_nothing, 1.0, extreme))
    weights = is_real.float()
    best = torch.zeros_like(extreme[..., 0])
    best_gain = torch.zeros_like(best)
    for end in _ends(form):
        nearest = _nearest_levels(relative * end, form) * weights
        product = (relative * nearest).sum(-1)
        scale = product / nearest.square().sum(-1)
        is_better = product * scale > best_gain
        best = torch.where(is_better, scale, best)
        best_gain = torch.where(is_better, product * scale, best_gain)
    return torch.where(is_nothing, 0.0, best.unsqueeze(-1) * extreme)[..., 0]


def inverse(scales: torch.Tensor) -> torch.Tensor:
    """(…, groups) to (…, groups, 1) float32; 0 for a group of nothing."""
    wide = scales.float()
    return torch.where(wide == 0, 0.0, torch.ones_like(wide) / wide).unsqueeze(-1)


def _nearest_levels(values: torch.Tensor, form: Form) -> torch.Tensor:
    """Return the levels that are nearest to float32 values."""
    if not form.levels:
        return values.round().clamp_(-form.zero, (1 << form.bits) - 1 - form.zero)
    gaps = [above - below for below, above in itertools.pairwise(form.levels)]
    return _sum_of_steps(values, form.levels, [form.levels[0], *gaps])


def _sum_of_steps(values: torch.Tensor, levels: tuple[int, ...], heights: list[int]) -> torch.Tensor:
    """Return the first height, and of the others those whose steps, half-way between two levels, lie below a value.

    A comparison for each level takes a third of the time of ``torch.bucketize``.
    """
    found = torch.full_like(values, heights[0])
    is_above = torch.empty_like(values)
    for (below, above), height in zip(itertools.pairwise(levels), heights[1:], strict=True):
        found.add_(torch.gt(values, (below + above) / 2, out=is_above), alpha=height)
    return found


@functools.cache
def _ends(form: Form) -> tuple[float, ...]:
    if form.levels == INT4_LEVELS:
        return _INT4_ENDS
    first, second, *_, last_but_one, last = form.levels or range(-form.zero, (1 << form.bits) - form.zero)
    lower = [first + (second - first) * step for step in _END_STEPS]
    return (*lower, *(last - (last - last_but_one) * step for step in _END_STEPS))
