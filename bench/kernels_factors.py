"""Products of GGUF types whose scales keep their factors against the same with scales that are multiplied out.

    python -m bench.kernels_factors [--types Q2_K,Q3_K] [--outputs 2048] [--inputs 2048] [--rows 1,8,64,512]

Both are measured in turns: one row on as many matrices as no cache holds, more rows, which arithmetic bounds, on fewer.
Each line: the type; rows; bits per weight of both; how much faster products are with factors, the median of the turns
and their quartiles.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import replace

import torch

from bench.kernels_products import RING_BYTES, multiply_all
from inference.modelling.backends.native import library
from inference.modelling.backends.native.packing import NativePacked, NativeStore
from inference.modelling.layers.coded import Codes
from inference.modelling.quantisation import FACTOR_INPUTS, GGUF_FORMS, Form

TURNS = 15


def random_ring(form: Form, outputs: int, inputs: int) -> list[NativePacked]:
    """Matrices of any codes."""
    kinds = form.num_scales
    whole = torch.randint(-32, 32, (kinds, outputs, inputs // form.group)).float()
    factors = torch.full((outputs, inputs // FACTOR_INPUTS, kinds), 1e-3) if form.has_factors else None
    codes = torch.randint(0, 1 << form.bits, (outputs, inputs), dtype=torch.uint8)
    rows = Codes(codes, whole[0], whole[1] if form.has_offset else None, form, factors=factors)
    stores = [NativeStore((outputs, inputs), form) for _ in range(int(8 * RING_BYTES / codes.nbytes / form.bits) + 1)]
    for store in stores:
        store.put(rows, 0)
    return [store.packed for store in stores]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", default="Q2_K,Q3_K")
    parser.add_argument("--outputs", type=int, default=2048)
    parser.add_argument("--inputs", type=int, default=2048)
    parser.add_argument("--rows", default="1,8,64,512")
    options = parser.parse_args()
    assert library.is_available()
    for name in options.types.split(","):
        forms = [replace(GGUF_FORMS[name], has_factors=has_factors) for has_factors in (True, False)]
        rings = [random_ring(form, options.outputs, options.inputs) for form in forms]
        for rows in map(int, options.rows.split(",")):
            hidden, ratios = torch.randn(rows, options.inputs).bfloat16(), []
            for _ in range(TURNS):
                times = [time.perf_counter()]
                for ring in rings:
                    multiply_all(ring[: max(2, 4 * len(ring) // (3 + rows))], hidden)
                    times.append(time.perf_counter())
                ratios.append((times[2] - times[1]) / (times[1] - times[0]))
            low, middle, high = statistics.quantiles(ratios[1:], n=4)
            bits = ", ".join(f"{form.bits_per_weight:.3f}" for form in forms)
            sys.stdout.write(f"{name}, {rows} rows, {bits} bits: {middle:.3f} ({low:.3f} to {high:.3f})\n")
            sys.stdout.flush()


if __name__ == "__main__":
    with torch.inference_mode():
        main()
