"""Every kernel compiles to machine code of a GPU, without one: types, shapes and on-chip memory are checked.

The launchers run as they are; the driver is replaced by one that names a target, and a launch ends after compiling.
Triton keeps what it has compiled in its own cache, by source, target, options and version: a second run on a machine
compiles what has changed.
"""

from __future__ import annotations

import math
import re
import subprocess
import tempfile
from dataclasses import replace

import pytest
import torch

from inference.modelling.backends import backend as kernels
from inference.modelling.forward_batch import AttentionMetadata, ForwardBatch, LayerState, PrefillChunk
from inference.modelling.layers.coded import PlainStore
from inference.modelling.layers.lightning import LightningAttention
from inference.modelling.layers.mlstm import MLSTM
from inference.modelling.layers.rg_lru import RGLRU
from inference.modelling.layers.rwkv import TimeMix
from inference.modelling.quantisation import GGUF_FORMS
from inference.modelling.specs.linear import LightningSpec, MLSTMSpec, RGLRUSpec
from inference.modelling.specs.parts import NormSpec
from inference.modelling.specs.rwkv import TimeMixSpec

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not kernels.PRESENT, reason="triton is not installed"),
    pytest.mark.skipif(kernels.INTERPRETED, reason="TRITON_INTERPRET=1 replaces the compiler"),
]
SHARED_BYTES = {90: 232_448, 89: 101_376}
"""On-chip memory that a block may have: H100 and H200 have the most, RTX 40 the least.
Source: CUDA C++ programming guide, table of technical specifications by compute capability, https://docs.nvidia.com/cuda/cuda-c-programming-guide/."""


on_targets = pytest.mark.parametrize(
    ("compiled", "dtype"),
    [(89, torch.float32), (90, torch.bfloat16)],
    indirect=["compiled"],
    ids=["sm_89-float32", "sm_90-bfloat16"],
)
"""The widest values where a block has the least memory; on the newest, for its own matrix instructions, bfloat16."""


@pytest.fixture(params=SHARED_BYTES, ids=lambda capability: f"sm_{capability}")
def compiled(request, monkeypatch):
    """The kernels that launches have compiled."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    class NamedTarget:
        """A driver without a device."""

        def get_current_target(self):
            return GPUTarget("cuda", request.param, 32)

        def get_current_device(self):
            return request.param  # what is compiled is kept by device

        def get_current_stream(self, device):
            return 0

    found = []
    run = JITFunction.run

    def compile_only(self, *args, grid, warmup, **options):
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        found.append(kernel)
        return kernel

    monkeypatch.setattr(JITFunction, "run", compile_only)
    monkeypatch.setattr(driver, "_active", NamedTarget())
    yield found
    assert found, "nothing was launched"
    for kernel in found:
        assert kernel.asm["cubin"], kernel.name
        limit = SHARED_BYTES[request.param]
        assert kernel.metadata.shared <= limit, f"{kernel.metadata.name}: {kernel.metadata.shared:,} of {limit:,} bytes"


def contexts(count: int) -> AttentionMetadata:
    numbers = torch.zeros(count, dtype=torch.int64)
    return AttentionMetadata(numbers.int(), numbers, numbers, torch.arange(count + 1), 16)


@on_targets
@pytest.mark.parametrize(("kv_heads", "width", "window", "softcap"), [(8, 128, None, None), (4, 256, 4096, 50.0)])
def test_decode_attention(kv_heads, width, window, softcap, dtype, compiled):
    from inference.modelling.backends.triton.attention import decode_attention

    cache = torch.zeros(64, kv_heads, width, dtype=dtype)
    query = torch.zeros(2, 32, width, dtype=dtype)
    decode_attention(query, cache, cache, contexts(2), scale=0.1, sliding_window=window, softcap=softcap)


@on_targets
@pytest.mark.parametrize(("kv_heads", "width", "window", "softcap"), [(8, 128, None, None), (4, 256, 4096, 50.0)])
def test_chunk_attention(kv_heads, width, window, softcap, dtype, compiled):
    from inference.modelling.backends.triton.prefill import chunk_attention

    cache, blocks = torch.zeros(64, kv_heads, width, dtype=dtype), torch.zeros(1, dtype=torch.int32)
    start = torch.zeros(1, dtype=torch.int64)
    query = torch.zeros(2, 32, width, dtype=dtype)
    chunk_attention(query, cache, cache, blocks, start, 7, 16, scale=0.1, sliding_window=window, softcap=softcap)


@on_targets
def test_latent_attention(dtype, compiled):
    from inference.modelling.backends.triton.attention import decode_latent_attention

    query, rope = torch.zeros(2, 128, 512, dtype=dtype), torch.zeros(2, 128, 64, dtype=dtype)
    decode_latent_attention(query, rope, torch.zeros(64, 576, dtype=dtype), contexts(2), scale=0.1)


def test_rows(compiled):
    from inference.modelling.backends.triton.activations import gated_activation
    from inference.modelling.backends.triton.norm import add_norm, gated_norm
    from inference.modelling.backends.triton.rotary import latent_rope_and_write, rope_and_write

    rows = torch.zeros(2, 4096, dtype=torch.bfloat16)
    weight, slots = torch.zeros(4096, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.int64)
    norm = NormSpec("rms", 1e-5)
    add_norm(rows, rows, 1.0, norm, weight, None)
    add_norm(rows, None, 1.0, NormSpec("layer"), weight, weight)
    gated_norm(rows.float(), rows, norm, weight.float(), group_size=1024, norm_before_gate=False, dtype=rows.dtype)
    for activation in ("silu", "gelu", "gelu_tanh", "relu", "relu2"):
        gated_activation(rows, activation)
    cache, angles = torch.zeros(64, 8, 128, dtype=torch.bfloat16), torch.zeros(2, 1, 128)
    joint, head_weight = torch.zeros(2, 48, 128, dtype=torch.bfloat16), weight[:128]
    for interleaved in (False, True):
        rope_and_write(
            joint, (angles, angles), slots, cache, cache, num_heads=32, interleaved=interleaved, head_norm=norm,
            q_weight=head_weight, k_weight=head_weight,
        )  # fmt: skip
    latents, angles = torch.zeros(64, 576, dtype=torch.bfloat16), torch.zeros(2, 1, 64)
    q_rope = torch.zeros(2, 128, 64, dtype=torch.bfloat16)
    latent_rope_and_write(
        q_rope, latents[:2], (angles, angles), slots, latents, interleaved=True, norm=norm, weight=weight[:512]
    )


# Exact products use no matrix instructions, and are the same on both.
@pytest.mark.parametrize(("compiled", "exact"), [(89, False), (89, True), (90, False)], indirect=["compiled"], ids=str)
def test_mamba2(compiled, exact):
    from inference.modelling.backends.triton.conv import conv_chunk, conv_step
    from inference.modelling.backends.triton.mamba2 import chunk_scan, state_step

    heads, width, size, groups = 128, 64, 128, 8
    channels = heads * width + 2 * groups * size
    rows, slots = torch.zeros(2, channels, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.int64)
    conv_weight, conv_bias = torch.zeros(channels, 1, 4), torch.zeros(channels)
    xbc, tails = torch.zeros(2, channels), torch.zeros(3, channels, 3)
    conv_step(rows, tails, slots, conv_weight, conv_bias, "silu", xbc)
    conv_chunk(rows, tails, PrefillChunk(0, 2, 5, 0, 1), conv_weight, conv_bias, "silu", xbc)
    dt, per_head = torch.zeros(2, heads, dtype=torch.bfloat16), torch.zeros(heads)
    state = torch.zeros(1, heads, width, size)
    common = {"num_groups": groups, "dt_min": 0.0, "dt_max": math.inf}
    out = state_step(xbc, dt, per_head, per_head, per_head, state, slots, **common)
    chunk_scan(xbc, dt, per_head, per_head, per_head, state[0], out, **common, fresh=False, exact=exact)


@pytest.mark.parametrize("by_channel", [False, True])
def test_delta_rule(by_channel, compiled):
    from inference.modelling.backends.triton.conv import conv_chunk, conv_step
    from inference.modelling.backends.triton.delta import DeltaRows

    key_heads, heads, width = (32, 32, 128) if by_channel else (16, 32, 128)
    widths = [key_heads * width, key_heads * width, heads * width]
    weight, slots = torch.zeros(sum(widths), 1, 4), torch.zeros(2, dtype=torch.int64)
    rows, tails = torch.zeros(2, sum(widths), dtype=torch.bfloat16), torch.zeros(3, sum(widths), 3)
    convolved = torch.zeros(2, sum(widths))
    conv_step(rows, tails, slots, weight, None, "silu", convolved)
    conv_chunk(rows, tails, PrefillChunk(0, 2, 0, 0, 1), weight, None, None, convolved)
    log_decay = torch.zeros(2, heads, width) if by_channel else torch.zeros(2, heads)
    pool, out = torch.zeros(3, heads, width, width), torch.zeros(2, heads, width)
    found = DeltaRows(*convolved.split(widths, 1), torch.zeros(2, heads), log_decay, pool, key_heads, out, exact=False)
    found.decode(slots)
    found.prefill(PrefillChunk(0, 2, 5, 0, 1))


@on_targets
def test_delta_rule_in_pieces(dtype, compiled):
    from inference.modelling.backends.triton.delta import DeltaRows

    key_heads, heads, width, count = 16, 32, 128, 70
    widths = [key_heads * width, key_heads * width, heads * width]
    pool, out = torch.zeros(3, heads, width, width), torch.zeros(count, heads, width)
    gates = torch.zeros(count, heads)
    parts = torch.zeros(count, sum(widths)).split(widths, 1)
    found = DeltaRows(*parts, gates, gates, pool, key_heads, out, exact=dtype == torch.float32)
    found.prefill(PrefillChunk(0, count, 5, 0, 1))


def make_batch() -> ForwardBatch:
    """Two decodes, a sequence's first chunk and a later one."""
    empty, slots = torch.zeros(0, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    chunks = (PrefillChunk(2, 9, 0, 2, 1), PrefillChunk(9, 14, 7, 3, 2))
    return ForwardBatch(empty, empty, empty, slots, 2, chunks)


def make_state(spec) -> LayerState:
    return {part.name: torch.zeros(3, *part.shape) for part in spec.state()}


@on_targets
def test_rwkv(dtype, compiled):
    from inference.modelling.backends.triton.rwkv import mix_wkv, shift_tokens

    layer, batch = TimeMix(TimeMixSpec(2560, 2560), 2560), make_batch()
    rows, state = torch.zeros(14, 2560, dtype=dtype), make_state(layer.spec)
    shift_tokens(layer, rows, batch, state)
    mix_wkv(layer, rows, rows, rows, batch, state)
    check_rows_ahead(compiled)


@on_targets
def test_rg_lru(dtype, compiled):
    from inference.modelling.backends.triton.rg_lru import mix_rg_lru

    layer = RGLRU(RGLRUSpec(2560, 10, 4), 2560)
    mix_rg_lru(layer, torch.zeros(14, 2 * 2560, dtype=dtype), make_batch(), make_state(layer.spec))
    check_rows_ahead(compiled)


def test_stream_mixtures(compiled):
    from inference.modelling.backends.triton.streams import balance_streams

    balance_streams(torch.zeros(2, 4, 4), 20, 1e-6)


def check_rows_ahead(compiled):
    """Rows of chunks are copied to the chip while others are computed; a decode has one."""
    copies = ["cp.async" in kernel.asm["ptx"] for kernel in compiled[-3:]]
    assert copies == [False, True, True]


@on_targets
def test_mlstm(dtype, compiled):
    from inference.modelling.backends.triton.mlstm import mix_mlstm

    batch = make_batch()
    batch = replace(batch, state_slots=batch.state_slots[:2], prefills=())
    for heads, key_width, width in ((8, 256, 512), (4, 32, 64)):
        layer = MLSTM(MLSTMSpec(heads, key_width, width, 15.0, 1e-6, 1e-6), 64)
        projected = torch.zeros(2, 2 * heads * (key_width + width), dtype=dtype)
        mix_mlstm(layer, projected, torch.zeros(2, 2 * heads, dtype=dtype), batch, make_state(layer.spec))


@on_targets
def test_lightning(dtype, compiled):
    from inference.modelling.backends.triton.lightning import mix_lightning

    layer = LightningAttention(LightningSpec(64, 128, 0.7, NormSpec("rms")), 64)
    mix_lightning(layer, torch.zeros(14, 3 * 64 * 128, dtype=dtype), make_batch(), make_state(layer.spec))


@on_targets
def test_experts(dtype, compiled):
    from inference.modelling.backends.triton.moe import run_experts

    for rows in (1, 512):
        hidden, weights = torch.zeros(rows, 1024, dtype=dtype), torch.zeros(rows, 2)
        chosen = torch.zeros(rows, 2, dtype=torch.int64)
        first, down = torch.zeros(4, 1024, 1024, dtype=dtype), torch.zeros(4, 1024, 512, dtype=dtype)
        run_experts(hidden, weights, chosen, first, down, gated=True, activation="silu")


# How codes of a kind are expanded for a target is the same as in the products below, which have all pairs.
@pytest.mark.parametrize(
    ("kind", "compiled", "dtype"),
    [("int8", 89, torch.float32), ("int4", 90, torch.bfloat16)],
    indirect=["compiled"],
    ids=["int8-sm_89-float32", "int4-sm_90-bfloat16"],
)
def test_quantised_experts(kind, dtype, compiled):
    from inference.modelling.backends.triton.moe import run_experts
    from inference.modelling.backends.triton.quantised import quantise_for_device

    first, down = (quantise_for_device(torch.ones(shape), kind) for shape in ((4, 1024, 1024), (4, 1024, 512)))
    for rows in (1, 512):
        hidden, weights = torch.zeros(rows, 1024, dtype=dtype), torch.zeros(rows, 2)
        chosen = torch.zeros(rows, 2, dtype=torch.int64)
        run_experts(hidden, weights, chosen, first, down, gated=True, activation="silu")


@on_targets
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_quantised_product(kind, dtype, compiled):
    from inference.modelling.backends.triton.quantised import quantise_for_device, tile_options

    packed = quantise_for_device(torch.ones(1024, 4096), kind)
    for rows in (1, 16, 64):
        packed.linear(torch.zeros(rows, 4096, dtype=dtype), torch.zeros(1024, dtype=dtype))
        if dtype == torch.bfloat16:
            options = None if rows == 1 else tile_options(rows, dtype)
            check_instructions(compiled[-1], kind, rows, options, 32 // packed.bits)
    packed.wide_linear(torch.zeros(1, 4096, dtype=dtype), None)
    packed.dense(dtype)
    packed.rows(torch.zeros(1, dtype=torch.int64), dtype)


MOST_INSTRUCTIONS = {
    ("int4", 1): 7.1, ("int4", 16): 7.6, ("int4", 64): 8.6, ("int8", 1): 6.2, ("int8", 16): 7.0, ("int8", 64): 8.2,
    ("Q4_K", 16): 10.0, ("Q4_K", 64): 18.0, ("Q6_K", 16): 14.5, ("Q6_K", 64): 20.0, ("IQ4_NL", 16): 17.0,
    ("IQ4_NL", 64): 21.0, ("Q2_K", 16): 15.0, ("Q2_K", 64): 24.5, ("Q3_K", 16): 15.0,
    ("Q3_K", 64): 20.5,
}  # fmt: skip
"""For each weight and thread in the inner loop of a product on sm_90: what triton 3.9 needs, and little more."""


def check_instructions(kernel, kind, rows, options, per_word):
    """A product's inner loop has few enough; ``per_word`` values are expanded at a place of its tile.

    ``options``: of the tile; None: it is the product of one row, of which a thread loads four words.
    """
    weights = 4 * per_word
    if options is not None:
        tile = options["OUTPUT_TILE"] * options.get("WORD_TILE", options.get("INPUT_TILE")) * options["PARTS"]
        weights = tile * per_word / (32 * options["num_warps"])
    found = longest_loop(kernel) / weights
    assert 1 < found <= MOST_INSTRUCTIONS[kind, rows], f"{kind}, {rows} rows: {found:.2f} instructions per weight"


def longest_loop(kernel):
    """The instructions of a kernel's longest loop, by NVIDIA's disassembler, which comes with triton."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [knobs.nvidia.nvdisasm.path, "-c", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    count, longest, labels = 0, 0, {}
    for line in text.splitlines():
        if label := re.match(r"(\.L_x_\d+):", line.strip()):
            labels[label[1]] = count
        elif instruction := re.search(r"/\*[0-9a-f]{4,}\*/\s+(.*);", line):
            count += 1
            if target := re.search(r"BRA.*`\((\.L_x_\d+)\)", instruction[1]):
                longest = max(longest, count - labels.get(target[1], count))
    return longest


@on_targets
@pytest.mark.parametrize("name", ["Q2_K", "Q3_K", "Q4_K", "Q6_K", "IQ4_NL"])
def test_coded_product(name, dtype, compiled):
    from inference.modelling.backends.triton.coded import DeviceStore
    from inference.modelling.backends.triton.moe import run_experts

    form = GGUF_FORMS[name]
    packed = DeviceStore(PlainStore((1024, 4096), form)).packed
    for rows in (16, 64):
        packed.linear(torch.zeros(rows, 4096, dtype=dtype), torch.zeros(1024, dtype=dtype))
        if dtype == torch.bfloat16:
            check_instructions(compiled[-1], name, rows, packed.tile_options(rows, dtype), 1)
    packed.wide_linear(torch.zeros(1, 4096, dtype=dtype), None)
    packed.dense(dtype)
    packed.rows(torch.zeros(1, dtype=torch.int64), dtype)
    first, down = (DeviceStore(PlainStore(shape, form)).packed for shape in ((4, 1024, 1024), (4, 1024, 512)))
    chosen = torch.zeros(64, 2, dtype=torch.int64)
    run_experts(
        torch.zeros(64, 1024, dtype=dtype), torch.zeros(64, 2), chosen, first, down, gated=True, activation="silu"
    )
