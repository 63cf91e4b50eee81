"""python -m bench.gpu_products: products of few rows with quantised weights on a CUDA device, one kernel at a time.

Each time is that of a captured graph of such products, over several weights in turn, so that they come from memory and
no launch is waited for. Beside it: the time in which the device can read the weight, and the library's product of the
same matrix in bfloat16.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch.nn import functional

from bench.gpu import measure_bandwidth, timed
from inference.modelling.backends.triton.quantised import quantise_for_device
from inference.modelling.quantisation import Kind

SHAPES = ((12288, 4096), (4096, 4096), (22016, 4096), (4096, 11008), (32000, 4096))
"""Outputs and inputs of a llama 7B: q, k and v; o; gate and up; down; the head."""
CACHED_BYTES = 150e6
"""More than any device's cache holds."""
PRODUCTS, REPLAYS = 48, 5


def measure_graph(products: Sequence[Callable[[], object]]) -> float:
    """Median seconds of a product, from replays of a graph that runs them in turn."""
    for run in products:
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(PRODUCTS):
            products[number % len(products)]()
    return timed(graph.replay, REPLAYS) / PRODUCTS


@torch.inference_mode()
def measure_shape(kind: Kind, outputs: int, inputs: int, rows: int) -> tuple[float, float, int]:
    """Seconds of a quantised product, of the library's in bfloat16, and the bytes of the quantised weight."""
    count = 2 + int(CACHED_BYTES / (outputs * inputs / 2))
    dense = [torch.randn(outputs, inputs, dtype=torch.bfloat16, device="cuda") / 64 for _ in range(count)]
    packed = [quantise_for_device(weight, kind) for weight in dense]
    hidden = torch.randn(rows, inputs, dtype=torch.bfloat16, device="cuda")
    ours = measure_graph([lambda weight=weight: weight.linear(hidden, None) for weight in packed])
    library = measure_graph([lambda weight=weight: functional.linear(hidden, weight) for weight in dense])
    return ours, library, packed[0].nbytes


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_products", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8], help="rows of a product (1 8)")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench.gpu_products measures a CUDA device, and torch sees none here.")
    bandwidth = measure_bandwidth()
    print(f"{torch.cuda.get_device_name()}: {bandwidth / 1e9:.0f} GB/s")
    for kind in cast("tuple[Kind, ...]", ("int4", "int8")):
        for rows in arguments.rows:
            for outputs, inputs in SHAPES:
                ours, library, nbytes = measure_shape(kind, outputs, inputs, rows)
                what = f"{kind}, {rows} x {inputs} to {outputs}"
                read = nbytes / bandwidth
                figures = f"{ours * 1e6:6.1f} us, to read {read * 1e6:5.1f}, bfloat16 {library * 1e6:6.1f}"
                print(f"{what:32} {figures}", flush=True)


if __name__ == "__main__":
    main()
