"""Attention between its projections, one layer: the native kernels against the PyTorch form that defines them.

    python -m bench.kernels_attention [--shapes 135m,1b] [--dtype bfloat16] [--cases decode,prefill] [--no-before]
        [--decodes 32x128,32x512] [--cold] [--without-tiles]

Each line: milliseconds of the PyTorch form and of the native one, their ratio, and the native one's bytes or
operations per second: of the keys and values that a decoding step must read, as a share of the read bandwidth that was
measured just before; of a prefill's products, as a share of the rate of a large matrix product. Small contexts fit the
caches, so their share of the memory's bandwidth can exceed 1. With ``--cold`` decodes are also timed over as many
layers' keys and values in turn as no cache holds, as a model's step reads them; rate and share are then of that time.
With ``--without-tiles`` prefills are timed with matrix tiles (AMX) and by vector instructions alone in turns.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import torch

from inference.modelling.backends.native import library
from inference.modelling.backends.native.forms import FORMS
from inference.modelling.forward_batch import AttentionMetadata, ForwardBatch, LayerState, PrefillChunk
from inference.modelling.layers.attention import Attention
from inference.modelling.layers.mla import MultiHeadLatentAttention
from inference.modelling.mapped import mapped_zeros
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.layers import AttentionSpec
from inference.modelling.specs.parts import NormSpec, RopeSpec

BLOCK = 16
ROPE = RopeSpec(1e4, 64)
SHAPES: dict[str, AttentionSpec | MLASpec] = {
    "135m": AttentionSpec(9, 3, 64, 0.125, rope=ROPE),
    "1b": AttentionSpec(32, 8, 64, 0.125, rope=ROPE),
    "8b": AttentionSpec(32, 8, 128, 128**-0.5, rope=RopeSpec(1e4, 128)),
    "nano-mla": MLASpec(12, 192, 384, 32, 32, 64, 64**-0.5, RopeSpec(1e4, 32), q_rope_from_hidden=True),
    "deepseek-lite": MLASpec(16, 512, None, 128, 64, 128, 192**-0.5, ROPE, kv_a_norm=NormSpec("rms", 1e-6)),
}
HIDDEN = {"135m": 576, "1b": 2048, "8b": 4096, "nano-mla": 768, "deepseek-lite": 2048}
DECODES = ((1, 128), (1, 1024), (1, 4096), (8, 128), (32, 128), (32, 512), (32, 1024))
"""(sequences, context)."""
PREFILLS = ((512, 0), (4096, 0), (20, 1000))
"""(new tokens, tokens before)."""
COLD_BYTES = 256 << 20
"""Keys and values that are read before a layer's turn comes again; far beyond the last cache."""


def median_ms(call: Callable[[], object], budget_s: float = 0.6) -> float:
    """Median time of a call, after two warm-up calls."""
    call()
    started = time.perf_counter()
    call()
    repeats = max(3, min(200, int(budget_s / (time.perf_counter() - started))))
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e3


def tiles_and_vectors_ms(call: Callable[[], object], budget_s: float = 1.2) -> tuple[float, float]:
    """Median times of a call with matrix tiles and without them, in turns: a machine's speed changes by the minute."""
    times: dict[bool, list[float]] = {True: [], False: []}
    stop = time.perf_counter() + budget_s
    while len(times[False]) < 3 or time.perf_counter() < stop:
        for with_tiles, found in times.items():
            with library.matrix_tiles(with_tiles):
                started = time.perf_counter()
                call()
                found.append(time.perf_counter() - started)
    return statistics.median(times[True]) * 1e3, statistics.median(times[False]) * 1e3


def machine_limits(dtype: torch.dtype) -> tuple[float, float]:
    """(bytes/s read, operations/s of a matrix product), measured."""
    values = torch.ones(1 << 28, dtype=torch.float32)  # 1 GiB, far beyond the caches, and written
    bandwidth = values.nbytes / median_ms(lambda: values.sum()) * 1e3
    size = 2048
    left, right = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
    return bandwidth, 2 * size**3 / median_ms(lambda: left @ right) * 1e3


def make_batch(decodes: int, context: int, chunk: tuple[int, int] | None) -> tuple[ForwardBatch, int]:
    """A step over blocks scattered in a cache, and the cache's slots."""
    lengths = [context] * decodes if chunk is None else [sum(chunk)]
    blocks = [-(-length // BLOCK) for length in lengths]
    order = 1 + torch.randperm(sum(blocks), generator=torch.Generator().manual_seed(1))
    prefills: tuple[PrefillChunk, ...] = ()
    if chunk is None:
        rows, positions, first_rows = decodes, torch.full((decodes,), context - 1), torch.arange(decodes + 1)
    else:
        rows, before = chunk
        positions, first_rows = torch.arange(before, before + rows), torch.tensor([0, rows])
        prefills = (PrefillChunk(0, rows, before, 0, 1),)
    starts = torch.arange(len(lengths)) * blocks[0]
    contexts = AttentionMetadata(order.int(), starts, torch.tensor(lengths), first_rows, BLOCK)
    batch = ForwardBatch(
        input_ids=torch.zeros(rows, dtype=torch.int64),
        positions=positions,
        slot_mapping=order[starts + positions // BLOCK] * BLOCK + positions % BLOCK,
        state_slots=torch.arange(1, len(lengths) + 1),
        num_decodes=0 if chunk else decodes,
        prefills=prefills,
        attention=contexts,
    )
    return batch, (sum(blocks) + 1) * BLOCK


def make_states(spec: AttentionSpec | MLASpec, layers: int, slots: int, dtype: torch.dtype) -> Iterator[LayerState]:
    """The same random keys and values for each of some layers, in memory like the engine's; the layers in turns."""
    parts = {part.name: mapped_zeros((layers, slots, *part.shape), dtype) for part in spec.state()}
    for part in parts.values():
        part.copy_(torch.randn(part.shape[1:]).to(dtype))
    return itertools.cycle([{name: part[layer] for name, part in parts.items()} for layer in range(layers)])


def make_calls(
    name: str, batch: ForwardBatch, states: Iterator[LayerState], dtype: torch.dtype
) -> tuple[Callable[[], object], Callable[[], object]]:
    """The PyTorch form and the native one of a shape's layer over a step."""
    spec, hidden_size = SHAPES[name], HIDDEN[name]
    if isinstance(spec, AttentionSpec):
        layer = Attention(spec, hidden_size)
        joint = torch.randn(batch.num_tokens, (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim).to(dtype)
        return (
            lambda: layer.mix(joint, batch, next(states)),
            lambda: FORMS[Attention]["mix"](layer, joint, batch, next(states)),
        )
    latent = MultiHeadLatentAttention(spec, hidden_size).to(dtype)
    for value in latent.parameters():
        torch.nn.init.normal_(value, std=0.05)
    hidden = torch.randn(batch.num_tokens, hidden_size).to(dtype)
    rows = latent.kv_a_proj(hidden), batch
    queries = latent.queries(hidden, latent.query_latent(hidden))
    return (
        lambda: latent.mix(*queries, *rows, next(states)),
        lambda: FORMS[MultiHeadLatentAttention]["mix"](latent, *queries, *rows, next(states)),
    )


def work_of(spec: AttentionSpec | MLASpec, dtype: torch.dtype, case: tuple[int, int], prefill: bool) -> float:
    """Bytes that a decode must read, or operations of a prefill's attention."""
    if not prefill:
        sequences, context = case
        per_token = sum(part.size_bytes("bfloat16" if dtype == torch.bfloat16 else "float32") for part in spec.state())
        weights = 0
        if isinstance(spec, MLASpec):
            weights = spec.num_heads * (spec.qk_nope_head_dim + spec.v_head_dim) * spec.kv_lora_rank * dtype.itemsize
        return sequences * context * per_token + weights
    count, before = case
    pairs = count * before + count * (count + 1) / 2
    widths = 2 * spec.head_dim if isinstance(spec, AttentionSpec) else spec.qk_nope_head_dim + spec.qk_rope_head_dim
    if isinstance(spec, MLASpec):
        widths += spec.v_head_dim
    return 2 * spec.num_heads * pairs * widths


def main() -> int:
    parser = argparse.ArgumentParser(description="Attention between its projections: native against PyTorch.")
    parser.add_argument("--shapes", default="135m,1b", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--cases", default="decode,prefill")
    parser.add_argument("--no-before", action="store_true", help="leave the PyTorch form out")
    parser.add_argument("--decodes", default=",".join(f"{count}x{context}" for count, context in DECODES))
    parser.add_argument("--cold", action="store_true", help="time decodes over layers that no cache holds, too")
    parser.add_argument("--without-tiles", action="store_true", help="time prefills without matrix tiles, too")
    options = parser.parse_args()
    if not library.is_available():
        sys.stderr.write(
            "There are no native kernels; build them with: python -m inference.modelling.backends.native.build\n"
        )
        return 1
    if options.without_tiles and not torch.ops.blazr.use_amx():
        sys.stderr.write("There are no matrix tiles here\n")
        return 1
    dtype = getattr(torch, options.dtype)
    bandwidth, rate = machine_limits(dtype)
    write = sys.stdout.write
    write(f"{torch.get_num_threads()} threads, {options.dtype}; measured here: {bandwidth / 1e9:.1f} GB/s read, ")
    write(f"{rate / 1e9:.0f} GFLOP/s of a matrix product\n")
    write("shape          case                  PyTorch ms  native ms  ratio  cold ms  rate           share")
    write("  vectors ms  ratio\n" if options.without_tiles else "\n")
    cases = options.cases.split(",")
    decodes = [tuple(map(int, case.split("x"))) for case in options.decodes.split(",")]
    with torch.inference_mode():
        for name in options.shapes.split(","):
            for kind, entries in (("decode", decodes), ("prefill", PREFILLS)):
                for case in entries if kind in cases else ():
                    prefill = kind == "prefill"
                    batch, slots = make_batch(0, 0, case) if prefill else make_batch(*case, None)
                    plain, native = make_calls(name, batch, make_states(SHAPES[name], 1, slots, dtype), dtype)
                    if prefill and options.without_tiles:
                        after, vectors = tiles_and_vectors_ms(native)
                    else:
                        after = median_ms(native)
                    before = float("nan") if options.no_before else median_ms(plain)
                    work, cold = work_of(SHAPES[name], dtype, case, prefill), float("nan")
                    if options.cold and not prefill:
                        states = make_states(SHAPES[name], min(512, -(-COLD_BYTES // int(work))), slots, dtype)
                        cold = median_ms(make_calls(name, batch, states, dtype)[1])
                    per_s = work / (after if math.isnan(cold) else cold) * 1e3
                    label = f"{kind} {case[0]} after {case[1]}" if prefill else f"{kind} {case[0]} x {case[1]}"
                    unit, limit = ("GFLOP/s", rate) if prefill else ("GB/s", bandwidth)
                    write(f"{name:<14} {label:<20} {before:>11.3f} {after:>10.4f} {before / after:>6.1f} {cold:>8.4f}")
                    write(f"  {per_s / 1e9:>6.1f} {unit:<7} {per_s / limit:>6.2f}")
                    if prefill and options.without_tiles:
                        write(f"  {vectors:>10.3f} {vectors / after:>6.1f}")
                    write("\n")
                    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
