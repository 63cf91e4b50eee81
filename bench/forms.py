"""Compare forms of codes by their squared error at equal bytes: ``python -m bench.forms CHECKPOINT.safetensors``.

For normal values and for some rows of each matrix of a checkpoint: bits per weight, squared error over that of zeros,
and the bits that a form takes beyond the least that normal values need at its error (log2(error) / 2 + bits). The
form of the fewest excess bits is the best one. Forms with offsets are fitted by least squares over several ranges.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open

from inference.modelling.layers.coded import rounded_to_form
from inference.modelling.quantisation import OWN_FORMS, Form

GROUPS = (32, 64, 128)
NUM_ROWS = 64
RANGES = (1.05, 1.0, 0.95, 0.9, 0.85, 0.8)
"""Of a group's values: the share that an affine form's codes cover."""


def matrices(path: Path) -> list[torch.Tensor]:
    """Return some rows of each matrix of a file."""
    with safe_open(path, framework="pt") as file:
        found = [file.get_slice(name) for name in file.keys()]  # noqa: SIM118
        return [
            one[:NUM_ROWS].float() for one in found if len(one.get_shape()) == 2 and one.get_shape()[1] >= GROUPS[-1]
        ]


def rounded_with_offsets(weight: torch.Tensor, form: Form) -> torch.Tensor:
    """Return the values that a weight has in evenly spaced codes with offsets."""
    grouped, steps = weight.view(-1, form.group), (1 << form.bits) - 1
    low, high = grouped.aminmax(dim=-1, keepdim=True)
    best = torch.zeros_like(grouped)
    for share in RANGES:
        scale = ((high - low) * share / steps).clamp_min(1e-30)
        offset = (high + low - scale * steps) / 2
        for _ in range(2):
            codes = ((grouped - offset) / scale).round().clamp(0, steps)
            centred = codes - codes.mean(-1, keepdim=True)
            scale = (centred * grouped).sum(-1, keepdim=True) / centred.square().sum(-1, keepdim=True).clamp_min(1e-30)
            scale = torch.where(scale == 0, 1e-30, scale).half().float().clamp_min(1e-30)
            offset = (grouped - scale * codes).mean(-1, keepdim=True).half().float()
        values = ((grouped - offset) / scale).round().clamp(0, steps) * scale + offset
        is_better = (values - grouped).square().sum(-1) < (best - grouped).square().sum(-1)
        best = torch.where(is_better.unsqueeze(-1), values, best)
    return best.view(weight.shape)


def loss(weights: Sequence[torch.Tensor], form: Form) -> float:
    """Return the binary logarithm of the squared error over that of zeros, the mean over matrices."""
    total = 0.0
    for weight in weights:
        whole = weight[:, : weight.shape[1] // form.group * form.group].contiguous()
        found = rounded_with_offsets(whole, form) if form.has_offset else rounded_to_form(whole, form)
        total += math.log2(float((found - whole).square().sum() / whole.square().sum()))
    return total / len(weights)


def candidates() -> list[Form]:
    """Return the forms of ``blazr quantise`` but int8, in several groups, with even steps and with offsets."""
    found = []
    for name, own in OWN_FORMS.items():
        if name != "int8":
            even = Form(own.bits, own.group, zero=1 << own.bits - 1, scales=own.scales)
            for form in (own, even) if own.levels else (own,):
                found += [dataclasses.replace(form, group=group) for group in GROUPS]
            found += [Form(own.bits, group, has_offset=True) for group in GROUPS]
    return found


def main() -> None:
    """Print a line for each form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    samples = {
        "normal": [torch.randn(256, 2048, generator=torch.Generator().manual_seed(0))],
        "checkpoint": matrices(parser.parse_args().checkpoint),
    }
    for form in candidates():
        kind = "offsets" if form.has_offset else "levels" if form.levels else "even steps"
        line = f"{form.bits} bits, {kind:10} groups of {form.group:3}: {form.bits_per_weight:.3f} bits per weight"
        for name, weights in samples.items():
            found = loss(weights, form)
            line += f"; {name}: error {2**found:.2e}, {found / 2 + form.bits_per_weight:.3f} bits too many"
        print(line, flush=True)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
