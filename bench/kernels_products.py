"""Products of a step's rows with packed weights that stream from memory, against the machine's limits and oneDNN.

    python -m bench.kernels_products [--shapes 135m,1b] [--forms bfloat16,int8] [--rows 8,16,32,64] [--no-onednn]
                                     [--without-tiles]

Each shape has as many matrices as no cache holds, and they are multiplied one after the other as a replayed decode step
does it. Each line: milliseconds of a product; its operations as a share of the peak, measured as ``bench.machine``
does; the time that reading its weights takes at least as a share of its own; milliseconds of oneDNN's prepacked
product on as many matrices (bfloat16 only, where oneDNN multiplies it on this processor; called from Python, some
microseconds each), and how much longer it takes; with --without-tiles the same of our product by vector instructions
alone, on processors with matrix tiles (AMX).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial

import torch

from bench.kernels_attention import median_ms
from bench.machine import Machine, multiplication_rate
from inference.modelling.backends.native import library
from inference.modelling.backends.native.packing import NativePacked, pack_native
from inference.modelling.backends.native.program import Program, record
from inference.modelling.backends.plain import OneDnnPacked, onednn_serves, pack_onednn

SHAPES = {
    "135m": {"qkv": (960, 576), "o": (576, 576), "gate-up": (3072, 576), "down": (576, 1536)},
    "1b": {"qkv": (3072, 2048), "o": (2048, 2048), "gate-up": (16384, 2048), "down": (2048, 8192)},
}
"""(outputs, inputs) of the matrices of a layer."""
RING_BYTES = 128 << 20
"""Of the matrices that take turns: four times the last cache."""


def make_ring(shape: tuple[int, int], form: str) -> list[NativePacked]:
    """The same random values in many places: rates don't depend on them."""
    weight = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * shape[1] ** -0.5).bfloat16()
    first = pack_native(weight, form)
    return [first, *(pack_native(weight, form) for _ in range(RING_BYTES // first.nbytes))]


def make_onednn_ring(shape: tuple[int, int]) -> list[OneDnnPacked]:
    """As many bfloat16 matrices in oneDNN's layout."""
    weight = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * shape[1] ** -0.5).bfloat16()
    return [pack_onednn(weight) for _ in range(1 + RING_BYTES // weight.nbytes)]


def multiply_all(ring: Sequence[NativePacked | OneDnnPacked], hidden: torch.Tensor) -> torch.Tensor:
    """One product with each matrix; the last one."""
    product = hidden
    for matrix in ring:
        product = matrix.linear(hidden, None)
    return product


def make_program(ring: list[NativePacked], hidden: torch.Tensor) -> Callable[[], object]:
    """The same, replayed without Python between them."""
    _, recording = record(lambda: multiply_all(ring, hidden), [hidden])
    program = Program(recording)
    return lambda: program.run([hidden])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="135m,1b")
    parser.add_argument("--matrices", default="qkv,o,gate-up,down")
    parser.add_argument("--forms", default="bfloat16")
    parser.add_argument("--rows", default="8,16,32,64")
    parser.add_argument("--budget", type=float, default=0.3, help="seconds for each figure")
    parser.add_argument("--no-onednn", action="store_true")
    parser.add_argument("--without-tiles", action="store_true", help="measure the vector instructions too")
    options = parser.parse_args()
    if not library.is_available():
        sys.stderr.write("The native kernels are not built: python -m inference.modelling.backends.native.build\n")
        return 1
    if options.without_tiles and not torch.ops.blazr.use_amx():
        sys.stderr.write("There are no matrix tiles here\n")
        return 1
    machine = Machine()
    peaks, bandwidth = machine.gemm(), machine.read()["bytes_per_s"]
    peaks["int4"] = peaks["int8"]
    write = sys.stdout.write
    rates = ", ".join(f"{form} {rate / 1e12:.2f}" for form, rate in peaks.items() if form != "int4")
    write(f"peak, 10^12 operations/s: {rates}; read {bandwidth / 1e9:.0f} GB/s\n")
    write(f"float32 with other instructions beside: {multiplication_rate(beside=True) / 1e12:.2f}\n")
    # Without an instruction for pairs of bfloat16 our products are float32's.
    peaks["bfloat16"] = max(peaks["bfloat16"], peaks["float32"])
    write(f"{'matrix':<14} {'form':<9} {'rows':>4} {'ms':>8} {'of peak':>8} {'of read':>8}")
    write(f" {'oneDNN ms':>10} {'x':>5}" + (f" {'vectors ms':>10} {'x':>5}" if options.without_tiles else "") + "\n")
    has_onednn = onednn_serves(torch.device("cpu"), torch.bfloat16) and not options.no_onednn
    for form in options.forms.split(","):
        for model in options.shapes.split(","):
            for name in options.matrices.split(","):
                shape = SHAPES[model][name]
                ring = make_ring(shape, form)
                other = make_onednn_ring(shape) if form == "bfloat16" and has_onednn else None
                for rows in map(int, options.rows.split(",")):
                    hidden = torch.randn(rows, shape[1]).bfloat16()
                    program = make_program(ring, hidden)
                    ms = median_ms(program, options.budget) / len(ring)
                    of_peak = 2 * rows * shape[0] * shape[1] / ms * 1e3 / peaks[form]
                    of_read = ring[0].nbytes / bandwidth * 1e3 / ms
                    write(f"{model + ' ' + name:<14} {form:<9} {rows:>4} {ms:>8.4f} {of_peak:>8.2f} {of_read:>8.2f}")
                    if other is not None:
                        theirs = median_ms(partial(multiply_all, other, hidden), options.budget) / len(other)
                        write(f" {theirs:>10.4f} {theirs / ms:>5.2f}")
                    elif options.without_tiles:
                        write(f" {'':>10} {'':>5}")
                    if options.without_tiles:
                        with library.matrix_tiles(False):
                            theirs = median_ms(program, options.budget) / len(ring)
                        write(f" {theirs:>10.4f} {theirs / ms:>5.2f}")
                    write("\n")
                    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    with torch.inference_mode():
        sys.exit(main())
