"""The recurrent layers alone, natively and in PyTorch: ``python -m bench.kernels_recurrent [--only NAME]``.

Each line is what one layer does between its projections (milliseconds, median), for the rows of a decode step or a
prefill, in bfloat16, in turns. "GB/s" counts what a decode step must move: each state read and written once. The
layers of a set take turns and together exceed the caches, as the layers of a model do.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from inference.host.machine import keep_freed_memory
from inference.modelling.backends.backend import choose_backend
from inference.modelling.backends.native import library
from inference.modelling.forward_batch import ForwardBatch, LayerState, PrefillChunk
from inference.modelling.layers.linear import Linear
from inference.modelling.layers.mamba1 import Mamba1Mixer, StepProjection
from inference.modelling.layers.mamba2 import Mamba2Mixer
from inference.modelling.layers.mamba3 import Mamba3Mixer
from inference.modelling.layers.mlstm import MLSTM
from inference.modelling.layers.recurrent import RecurrentMixer
from inference.modelling.layers.rg_lru import RGLRU
from inference.modelling.layers.rwkv import ChannelMix, TimeMix
from inference.modelling.specs.layers import Mamba1Spec, Mamba2Spec
from inference.modelling.specs.linear import Mamba3Spec, MLSTMSpec, RGLRUSpec
from inference.modelling.specs.parts import NormSpec
from inference.modelling.specs.rwkv import ChannelMixSpec, TimeMixSpec

RMS = NormSpec("rms", 1e-5)
Spec = Mamba1Spec | Mamba2Spec | Mamba3Spec | RGLRUSpec | MLSTMSpec | TimeMixSpec | ChannelMixSpec
SPECS: dict[str, tuple[Spec, int]] = {
    "mamba2 129M (24 × 64, state 128, 1 group)": (Mamba2Spec(1536, 24, 64, 128, 1, 4, 1536, RMS), 768),
    "nemotron-like (64 × 64, state 128, 8 groups)": (Mamba2Spec(4096, 64, 64, 128, 8, 4, 512, RMS), 2048),
    "oxidizr nano-like (8 × 64, state 64)": (Mamba2Spec(512, 8, 64, 64, 1, 4, 512, RMS), 256),
    "mamba1 130M (1536 channels, state 16)": (Mamba1Spec(1536, 16, 4, 48), 768),
    "mamba3 (24 × 64, state 128, rotated)": (Mamba3Spec(1536, 24, 64, 128, 1, None, True, 0, RMS, RMS), 768),
    "rg-lru of RecurrentGemma-2B (10 × 256)": (RGLRUSpec(2560, 10, 4), 2560),
    "mlstm of xLSTM-7B (8 × 256 × 512)": (MLSTMSpec(8, 256, 512, 15.0, 1e-6, 1e-6), 4096),
    "time mix of RWKV-4 169M (768)": (TimeMixSpec(768, 768), 768),
    "channel mix of RWKV-4 169M (768, 3072)": (ChannelMixSpec(768, 3072), 768),
}
MIXERS = {
    Mamba1Spec: Mamba1Mixer, Mamba2Spec: Mamba2Mixer, Mamba3Spec: Mamba3Mixer, RGLRUSpec: RGLRU, MLSTMSpec: MLSTM,
    TimeMixSpec: TimeMix, ChannelMixSpec: ChannelMix,
}  # fmt: skip
LAYERS = 12
STEPS = {"decode 1": [1], "decode 32": [1] * 32, "prefill 512": [512], "prefill 4 × 128": [128] * 4}


def make_layer(spec: Spec, hidden_size: int, seed: int) -> RecurrentMixer:
    """A layer with random weights: bfloat16, except those that stay float32."""
    layer: RecurrentMixer = MIXERS[type(spec)](spec, hidden_size)
    generator = torch.Generator().manual_seed(seed)
    for child in layer.modules():
        kept = getattr(child, "float32_parameters", frozenset())
        for name, parameter in child.named_parameters(recurse=False):
            scale = 1.0 if parameter.dim() < 2 else parameter.shape[-1] ** -0.5
            values = torch.randn(parameter.shape, generator=generator) * scale
            parameter.data = values if name in kept else values.bfloat16()
    return layer


def make_batch(lengths: list[int]) -> ForwardBatch:
    """One sequence per length; those of one row decode."""
    decodes, row, chunks = sum(length == 1 for length in lengths), 0, []
    for index, length in enumerate(lengths):
        if index >= decodes:
            chunks.append(PrefillChunk(row, row + length, 0, index, index + 1))
        row += length
    zeros = torch.zeros(row, dtype=torch.int64)
    slots = torch.arange(1, len(lengths) + 1)
    return ForwardBatch(zeros, zeros, zeros, slots, decodes, tuple(chunks))


def without_projections(layer: RecurrentMixer, num_rows: int) -> None:
    """Replace the projections by results made once: what remains is what is measured."""
    for child in layer.children():
        if isinstance(child, StepProjection):
            width = child.weight.shape[0]
        elif isinstance(child, Linear):
            width = child.out_features
        else:
            continue
        # A layer's call is the ``forward`` of its type.
        given = partial(_given, torch.randn(num_rows, width).bfloat16())
        child.__class__ = type("Given", (type(child),), {"forward": staticmethod(given)})


def _given(result: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return result


def median_ms(run: Callable[[int], object], rounds: int) -> float:
    """Median time of a layer's call; the layers take turns."""
    times = []
    for number in range(rounds):
        started = time.perf_counter()
        run(number % LAYERS)
        times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times[LAYERS:] or times)


def measure(name: str, step: str, rounds: int) -> str:
    spec, hidden_size = SPECS[name]
    lengths = STEPS[step]
    batch = make_batch(lengths)
    hidden = torch.randn(batch.num_tokens, hidden_size).bfloat16()
    layers = [make_layer(spec, hidden_size, seed) for seed in range(LAYERS)]
    states: list[LayerState] = [
        {part.name: torch.zeros(len(lengths) + 1, *part.shape) for part in spec.state()} for _ in layers
    ]
    for layer in layers:
        without_projections(layer, batch.num_tokens)

    def call(number: int) -> torch.Tensor:
        result: torch.Tensor = layers[number](hidden, batch, states[number])
        return result

    native_rounds, plain_rounds = (rounds, rounds) if max(lengths) == 1 else (LAYERS + 8, LAYERS + 4)
    with torch.inference_mode():
        plain = median_ms(call, plain_rounds)
        for layer in layers:
            choose_backend("cpu", torch.bfloat16).bind(layer)
        native = median_ms(call, native_rounds)
    moved = 2 * sum(tensor[0].numel() * 4 for tensor in states[0].values()) * len(lengths)
    rate = f"{moved / native / 1e6:6.1f} GB/s" if max(lengths) == 1 else ""
    return f"{name:46} {step:16} {plain:9.3f} {native:9.3f} {plain / native:6.1f}× {rate}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60, help="calls per decode measurement")
    parser.add_argument("--only", default="", help="only the layers whose name contains this")
    given = parser.parse_args()
    if not library.is_available():
        raise SystemExit("no native kernels here: python -m inference.modelling.backends.native.build")
    keep_freed_memory()  # as the engine does
    print(f"{torch.get_num_threads()} threads; ms per layer: PyTorch, native")
    for name in SPECS:
        for step in STEPS if given.only in name else ():
            print(measure(name, step, given.rounds), flush=True)


if __name__ == "__main__":
    main()
