"""Write random weights in each quantised format, with their values, from the formats' public descriptions.

Independent of the code that reads them: codes are packed as strings of bits, floats are taken apart by their fields.
Each maker returns the tensors by the end of their name, and the values (o, i) in float32.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

Tensors = dict[str, torch.Tensor]
Made = tuple[Tensors, np.ndarray]
Make = Callable[[np.random.Generator, int, int], Made]

NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""Source: Dettmers et al. 2023, https://arxiv.org/abs/2305.14314, appendix E."""
FP4 = tuple(sign * value / 12 for sign in (1, -1) for value in (0, 1 / 16, 8, 12, 4, 6, 2, 3))
"""bitsandbytes' own."""


def bit_words(codes: np.ndarray, bits: int) -> torch.Tensor:
    """The last axis as one string of bits, low bits first, in int32 words; zeros fill the last word."""
    string = (codes[..., None].astype(np.int64) >> np.arange(bits)) & 1
    string = string.reshape(*codes.shape[:-1], -1)
    pad = -string.shape[-1] % 32
    string = np.concatenate([string, np.zeros((*string.shape[:-1], pad), np.int64)], axis=-1)
    packed = np.packbits(string.astype(np.uint8), axis=-1, bitorder="little")
    return torch.from_numpy(packed.view("<i4").astype(np.int32))


def loose_words(codes: np.ndarray, bits: int) -> torch.Tensor:
    """As many codes in each word as fit whole."""
    per = 32 // bits
    pad = -codes.shape[-1] % per
    codes = np.concatenate([codes, np.zeros((*codes.shape[:-1], pad), codes.dtype)], axis=-1)
    rows = codes.reshape(*codes.shape[:-1], -1, per)
    return torch.cat([bit_words(rows[..., word, :], bits)[..., :1] for word in range(rows.shape[-2])], dim=-1)


def e4m3(byte: np.ndarray) -> np.ndarray:
    """Value of float8_e4m3fn: sign, four bits of exponent (bias 7), three of mantissa, subnormal at exponent 0."""
    byte = byte.astype(np.int64)
    exponent, mantissa = (byte >> 3) & 15, byte & 7
    magnitude = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    return np.where(byte >> 7 == 1, -magnitude, magnitude).astype(np.float32)


def e2m1(code: np.ndarray) -> np.ndarray:
    """Value of a four-bit float: sign, two bits of exponent (bias 1), one of mantissa, subnormal at exponent 0."""
    exponent, mantissa = (code >> 1) & 3, code & 1
    magnitude = np.where(exponent == 0, mantissa * 0.5, (1 + mantissa / 2) * 2.0 ** (exponent - 1.0))
    return np.where(code >> 3 == 1, -magnitude, magnitude).astype(np.float32)


def _scales(rng: np.random.Generator, shape: tuple[int, ...], inputs: int, largest: float) -> np.ndarray:
    """float16 scales by which codes up to ``largest`` become weights of a usual size."""
    return (rng.uniform(0.7, 1.3, shape) * 2.5 * inputs**-0.5 / largest).astype(np.float16)


def _float8(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Bytes of finite float8 values of at most 240."""
    return (rng.integers(0, 2, shape) << 7 | rng.integers(0, 0x77, shape)).astype(np.uint8)


def _as_float8(codes: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(codes).view(torch.float8_e4m3fn)


def gptq(
    rng: np.random.Generator, outputs: int, inputs: int, *, bits: int = 4, group: int = 32, order: str = "plain",
    version: int = 1, symmetric: bool = False,
) -> Made:  # fmt: skip
    """AutoGPTQ's layout. order: plain, act (permuted g_idx), none (no g_idx), zero (g_idx of zeros)."""
    group = inputs if group == -1 else group
    num_groups = -(-inputs // group)
    codes = rng.integers(0, 1 << bits, (inputs, outputs))
    zeros = rng.integers(0, 1 << bits, (num_groups, outputs))
    if symmetric:
        zeros[:] = 1 << bits - 1
    scales = _scales(rng, (num_groups, outputs), inputs, 1 << bits)
    g_idx = np.arange(inputs) // group
    if order == "act":
        g_idx = rng.permutation(g_idx)
    values = (codes - zeros[g_idx]).astype(np.float32) * scales[g_idx].astype(np.float32)
    stored = (zeros - 1) % (1 << bits) if version == 1 else zeros
    tensors = {
        "qweight": bit_words(codes.T, bits).T.contiguous(),
        "qzeros": bit_words(stored, bits),
        "scales": torch.from_numpy(scales),
    }
    if order != "none":
        tensors["g_idx"] = torch.from_numpy((g_idx * (order != "zero")).astype(np.int32))
    return tensors, values.T.copy()


def awq(rng: np.random.Generator, outputs: int, inputs: int, *, group: int = 32) -> Made:
    """AutoAWQ's gemm layout: nibble n of a word holds output 0, 2, 4, 6, 1, 3, 5, 7 of its eight."""
    num_groups = -(-inputs // group)
    codes = rng.integers(0, 16, (inputs, outputs))
    zeros = rng.integers(0, 16, (num_groups, outputs))
    scales = _scales(rng, (num_groups, outputs), inputs, 16)

    def words(values: np.ndarray) -> torch.Tensor:
        eights = values.reshape(values.shape[0], -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]]
        return bit_words(eights.reshape(values.shape), 4)

    groups = np.arange(inputs) // group
    values = (codes - zeros[groups]).astype(np.float32) * scales[groups].astype(np.float32)
    tensors = {"qweight": words(codes), "qzeros": words(zeros), "scales": torch.from_numpy(scales)}
    return tensors, values.T.copy()


def packed(
    rng: np.random.Generator, outputs: int, inputs: int, *, bits: int = 4, group: int = 32, symmetric: bool = True,
    order: bool = False, loose: bool = False,
) -> Made:  # fmt: skip
    """compressed-tensors' pack-quantized: signed codes plus 2^(b-1)."""
    group = inputs if group == 0 else group
    num_groups, half = -(-inputs // group), 1 << (bits - 1)
    codes = rng.integers(-half, half, (outputs, inputs))
    scales = _scales(rng, (outputs, num_groups), inputs, 1 << bits)
    zeros = np.zeros((outputs, num_groups), np.int64) if symmetric else rng.integers(-half, half, scales.shape)
    g_idx = np.arange(inputs) // group
    if order:
        g_idx = rng.permutation(g_idx)
    words = loose_words if loose else bit_words
    tensors = {
        "weight_packed": words(codes + half, bits),
        "weight_scale": torch.from_numpy(scales.astype(np.float32)).bfloat16(),
        "weight_shape": torch.tensor([outputs, inputs]),
    }
    scales = tensors["weight_scale"].float().numpy()
    if not symmetric:
        tensors["weight_zero_point"] = words((zeros + half).T, bits).T.contiguous()
    if order:
        tensors["weight_g_idx"] = torch.from_numpy(g_idx.astype(np.int32))
    return tensors, (codes - zeros[:, g_idx]).astype(np.float32) * scales[:, g_idx]


def fp8(
    rng: np.random.Generator, outputs: int, inputs: int, *, block: tuple[int, int] | None = None, rows: bool = False,
    scale_name: str = "weight_scale", exponents: str = "", apart: bool = False,
) -> Made:  # fmt: skip
    """Float8 with a scale per block, row or tensor.

    exponents: u8 or e8m0 for scales that are powers of two; apart: axes of one between those of the blocks' scales.
    """
    codes = _float8(rng, (outputs, inputs))
    high, wide = block or ((1, inputs) if rows else (outputs, inputs))
    shape = (-(-outputs // high), -(-inputs // wide))
    scale = rng.uniform(0.7, 1.3, shape).astype(np.float32) * np.float32(2 * inputs**-0.5 / 60)
    stored = torch.from_numpy(scale)
    if exponents:
        byte = rng.integers(117, 120, shape).astype(np.uint8)
        scale = (2.0 ** (byte.astype(np.float64) - 127)).astype(np.float32)
        stored = torch.from_numpy(byte)
        stored = stored.view(torch.float8_e8m0fnu) if exponents == "e8m0" else stored
    elif block is None and not rows:
        stored = stored.reshape(1)
    if apart:
        stored = stored.reshape(shape[0], 1, shape[1], 1)
    spread = np.repeat(np.repeat(scale, high, 0)[:outputs], wide, 1)[:, :inputs]
    return {"weight": _as_float8(codes), scale_name: stored}, e4m3(codes) * spread


def int8(rng: np.random.Generator, outputs: int, inputs: int, *, asymmetric: bool = False) -> Made:
    """compressed-tensors' int-quantized: a scale per row."""
    codes = rng.integers(-127, 128, (outputs, inputs)).astype(np.int8)
    scale = _scales(rng, (outputs, 1), inputs, 256).astype(np.float32)
    zeros = rng.integers(-20, 20, (outputs, 1)).astype(np.int8) * asymmetric
    tensors = {"weight": torch.from_numpy(codes), "weight_scale": torch.from_numpy(scale)}
    if asymmetric:
        tensors["weight_zero_point"] = torch.from_numpy(zeros)
    return tensors, (codes.astype(np.float32) - zeros) * scale


def bnb8(rng: np.random.Generator, outputs: int, inputs: int) -> Made:
    """bitsandbytes' int8: the largest magnitude of each row."""
    codes = rng.integers(-127, 128, (outputs, inputs)).astype(np.int8)
    largest = (rng.uniform(0.7, 1.3, outputs) * inputs**-0.5).astype(np.float32)
    tensors = {
        "weight": torch.from_numpy(codes), "SCB": torch.from_numpy(largest),
        "weight_format": torch.tensor(0, dtype=torch.uint8),
    }  # fmt: skip
    return tensors, codes.astype(np.float32) * largest[:, None] / np.float32(127)


def _pairs(codes: np.ndarray, *, high_first: bool = False) -> torch.Tensor:
    first, second = codes[..., 0::2], codes[..., 1::2]
    both = first << 4 | second if high_first else second << 4 | first
    return torch.from_numpy(both.astype(np.uint8))


def nvfp4(rng: np.random.Generator, outputs: int, inputs: int, *, modelopt: bool = False) -> Made:
    """Four-bit floats, a float8 scale per 16 and one global scale: it divides, but multiplies in ModelOpt's files."""
    codes = rng.integers(0, 16, (outputs, inputs))
    scale = rng.integers(0x50, 0x60, (outputs, inputs // 16)).astype(np.uint8)
    whole = np.float32(1000.0 * inputs**0.5 / 40)
    spread = np.repeat(e4m3(scale), 16, 1)
    if modelopt:
        whole = np.float32(1) / whole
        names = ("weight", "weight_scale_2", "input_scale")
    else:
        names = ("weight_packed", "weight_global_scale", "input_global_scale")
    shape = () if modelopt else (1,)
    tensors = {
        names[0]: _pairs(codes), "weight_scale": _as_float8(scale), names[1]: torch.full(shape, float(whole)),
        names[2]: torch.ones(shape),
    }  # fmt: skip
    values = e2m1(codes) * spread
    return tensors, values * whole if modelopt else values / whole


def mxfp4(rng: np.random.Generator, outputs: int, inputs: int, *, is_beside_fp8: bool = False) -> Made:
    """compressed-tensors' mxfp4-pack-quantized, or DeepSeek V4's experts: a power of two per 32."""
    codes = rng.integers(0, 16, (outputs, inputs))
    byte = rng.integers(121, 124, (outputs, inputs // 32)).astype(np.uint8)
    scale = np.repeat(2.0 ** (byte.astype(np.float32) - 127), 32, 1).astype(np.float32)
    values, stored = e2m1(codes) * scale, torch.from_numpy(byte)
    if is_beside_fp8:
        return {"weight": _pairs(codes).view(torch.int8), "scale": stored.view(torch.float8_e8m0fnu)}, values
    return {"weight_packed": _pairs(codes), "weight_scale": stored}, values


def mxfp4_experts(rng: np.random.Generator, experts: int, outputs: int, inputs: int) -> Made:
    """gpt-oss's stacked experts."""
    codes = rng.integers(0, 16, (experts, outputs, inputs))
    byte = rng.integers(121, 124, (experts, outputs, inputs // 32)).astype(np.uint8)
    scale = np.repeat(2.0 ** (byte.astype(np.float32) - 127), 32, -1).astype(np.float32)
    blocks = _pairs(codes).reshape(experts, outputs, inputs // 32, 16)
    return {"_blocks": blocks, "_scales": torch.from_numpy(byte)}, e2m1(codes) * scale


def bnb4(
    rng: np.random.Generator, outputs: int, inputs: int, *, kind: str = "nf4", nested: bool = False, block: int = 64,
    storage: torch.dtype = torch.uint8,
) -> Made:  # fmt: skip
    """bitsandbytes' NF4 or FP4: blocks of the row-major weights share absmax, itself in codes if nested."""
    count = outputs * inputs
    codes = rng.integers(0, 16, count + count % 2)
    table = np.array(NF4 if kind == "nf4" else FP4, np.float32)
    num_blocks = -(-count // block)
    state: dict[str, Any] = {
        "quant_type": kind, "blocksize": block, "dtype": "bfloat16", "shape": [outputs, inputs],
    }  # fmt: skip
    tensors: Tensors = {"weight": _pairs(codes, high_first=True).view(storage).reshape(-1, 1)}
    if nested:
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.75 * inputs**-0.5}
        stored = rng.integers(0, 256, num_blocks).astype(np.uint8)
        nested_map = np.linspace(-1, 1, 256).astype(np.float32)
        nested_absmax = (rng.uniform(0.2, 0.5, -(-num_blocks // 256)) * inputs**-0.5).astype(np.float32)
        spread = np.repeat(nested_absmax, 256)[:num_blocks]
        absmax = nested_map[stored] * spread + np.float32(state["nested_offset"])
        tensors |= {
            "weight.absmax": torch.from_numpy(stored), "weight.nested_absmax": torch.from_numpy(nested_absmax),
            "weight.nested_quant_map": torch.from_numpy(nested_map),
        }  # fmt: skip
    else:
        absmax = (rng.uniform(0.7, 1.3, num_blocks) * 2 * inputs**-0.5).astype(np.float32)
        tensors["weight.absmax"] = torch.from_numpy(absmax)
    tensors["weight.quant_map"] = torch.from_numpy(table)
    content = json.dumps(state).encode()
    tensors[f"weight.quant_state.bitsandbytes__{kind}"] = torch.tensor(list(content), dtype=torch.uint8)
    values = table[codes[:count]] * np.repeat(absmax, block)[:count]
    return tensors, values.astype(np.float32).reshape(outputs, inputs)


def hqq(
    rng: np.random.Generator, outputs: int, inputs: int, *, bits: int = 4, group: int = 64, axis: int = 1,
    view: torch.dtype | None = None,
) -> Made:  # fmt: skip
    """HQQ: rows (axis 1) or columns (axis 0) of the regrouped weights; the first part of the rows in the high bits.

    view: the dtype as which the words of codes are stored.
    """
    shape = (outputs * inputs // group, group) if axis == 1 else (group, outputs * inputs // group)
    codes = rng.integers(0, 1 << bits, shape)
    scale_shape = (shape[0], 1) if axis == 1 else (1, shape[1])
    scale = _scales(rng, scale_shape, inputs, 1 << bits)
    zero = (rng.uniform(0.3, 0.7, scale_shape) * (1 << bits)).astype(np.float16)
    values = (codes - zero.astype(np.float32)) * scale.astype(np.float32)
    count = {8: 1, 4: 2, 3: 10, 2: 4, 1: 8}[bits]
    filled = np.concatenate([codes, np.zeros((-len(codes) % count, codes.shape[1]), codes.dtype)])
    step = len(filled) // count
    words = sum(filled[n * step : (n + 1) * step] << bits * (count - 1 - n) for n in range(count))
    tensors = {
        "W_q": torch.from_numpy(np.asarray(words).astype(np.int32 if bits == 3 else np.uint8)),
        "scale": torch.from_numpy(scale), "zero": torch.from_numpy(zero),
        "nbits": torch.tensor(bits, dtype=torch.int32), "axis": torch.tensor(axis, dtype=torch.int32),
        "shape": torch.tensor([outputs, inputs]), "group_size": torch.tensor(group, dtype=torch.int32),
        "view_as_float": torch.tensor(int(view is not None), dtype=torch.uint8),
        "packing": torch.tensor([52, 98], dtype=torch.uint8),
        "encoded_state_dict": torch.tensor(1, dtype=torch.uint8),
    }  # fmt: skip
    if view is not None:
        tensors["W_q"] = tensors["W_q"].view(view)
    return tensors, values.astype(np.float32).reshape(outputs, inputs)


@dataclass(frozen=True)
class Format:
    """A format of checkpoints.

    Attributes:
        make: Writes one matrix (o, i).
        config: The checkpoint's ``quantization_config``.
    """

    make: Make
    config: Mapping[str, Any] = field(default_factory=dict)


def _compressed(form: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {
        "quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group},
        "ignore": ["lm_head"], "quantization_status": "compressed", "kv_cache_scheme": None,
    }  # fmt: skip


def _gptq(bits: int, group: int, **values: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": False, "sym": True, **values}


def _packed(bits: int, group: int) -> dict[str, Any]:
    strategy = "group" if group else "channel"
    return _compressed(
        "pack-quantized", num_bits=bits, type="int", strategy=strategy, group_size=group or None, symmetric=True
    )


_BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_compute_dtype": "bfloat16"}
_HQQ = {"quant_method": "hqq", "skip_modules": ["lm_head"]}

FORMATS: dict[str, Format] = {
    **{f"gptq-{bits}": Format(partial(gptq, bits=bits), _gptq(bits, 32)) for bits in (2, 3, 4, 8)},
    "gptq-act-order": Format(partial(gptq, order="act"), _gptq(4, 32, desc_act=True)),
    "gptq-v2": Format(partial(gptq, version=2), _gptq(4, 32, checkpoint_format="gptq_v2")),
    "gptq-no-g_idx": Format(partial(gptq, order="none"), _gptq(4, 32)),
    "gptq-g_idx-of-zeros": Format(partial(gptq, order="zero"), _gptq(4, 32)),
    **{f"gptq-symmetric-{bits}": Format(partial(gptq, bits=bits, symmetric=True), _gptq(bits, 32)) for bits in (3, 4)},
    "gptq-v2-symmetric": Format(partial(gptq, version=2, symmetric=True), _gptq(4, 32, checkpoint_format="gptq_v2")),
    "gptq-rows": Format(partial(gptq, group=-1), _gptq(4, -1)),
    "awq": Format(awq, {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}),
    "fp8-blocks": Format(
        partial(fp8, block=(32, 48), scale_name="weight_scale_inv"),
        {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [32, 48], "activation_scheme": "dynamic"},
    ),
    "fp8-blocks-ue8m0": Format(
        partial(fp8, block=(32, 48), scale_name="weight_scale_inv", exponents="e8m0"),
        {"quant_method": "fp8", "weight_block_size": [32, 48], "scale_fmt": "ue8m0"},
    ),
    "fp8-blocks-deepseek-v4": Format(
        partial(fp8, block=(32, 48), scale_name="scale", exponents="e8m0"),
        {"quant_method": "fp8", "weight_block_size": [32, 48], "scale_fmt": "ue8m0"},
    ),
    "mxfp4-deepseek-v4": Format(
        partial(mxfp4, is_beside_fp8=True), {"quant_method": "fp8", "weight_block_size": [32, 48], "scale_fmt": "ue8m0"}
    ),
    "fbgemm": Format(partial(fp8, rows=True), {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}),
    "compressed-w4a16": Format(packed, _packed(4, 32)),
    "compressed-w4-asymmetric": Format(partial(packed, symmetric=False), _packed(4, 32)),
    "compressed-w4-ordered": Format(partial(packed, order=True), _packed(4, 32)),
    "compressed-w8a16": Format(partial(packed, bits=8, group=0), _packed(8, 0)),
    "compressed-w3": Format(partial(packed, bits=3, symmetric=False), _packed(3, 32)),
    "compressed-w3-old": Format(partial(packed, bits=3, symmetric=False, loose=True), _packed(3, 32)),
    "compressed-w8a8": Format(int8, _compressed("int-quantized", num_bits=8, type="int", strategy="channel")),
    "compressed-w8-asymmetric": Format(
        partial(int8, asymmetric=True), _compressed("naive-quantized", num_bits=8, type="int", strategy="channel")
    ),
    "compressed-fp8-tensor": Format(fp8, _compressed("float-quantized", num_bits=8, type="float", strategy="tensor")),
    "compressed-fp8-rows": Format(
        partial(fp8, rows=True), _compressed("float-quantized", num_bits=8, type="float", strategy="channel")
    ),
    "compressed-fp8-blocks": Format(
        partial(fp8, block=(32, 48)),
        _compressed("float-quantized", num_bits=8, type="float", strategy="block", block_structure=[32, 48]),
    ),
    "compressed-mxfp8": Format(
        partial(fp8, block=(1, 32), exponents="u8"),
        _compressed("mxfp8-quantized", num_bits=8, type="float", strategy="group", group_size=32),
    ),
    "compressed-nvfp4": Format(
        nvfp4, _compressed("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16)
    ),
    "compressed-mxfp4": Format(
        mxfp4, _compressed("mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32)
    ),
    "modelopt-nvfp4": Format(partial(nvfp4, modelopt=True), {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    "modelopt-fp8": Format(fp8, {"quant_method": "modelopt", "quant_algo": "FP8"}),
    "modelopt-fp8-rows": Format(
        partial(fp8, rows=True), {"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}
    ),
    "modelopt-fp8-blocks": Format(
        partial(fp8, block=(128, 128), apart=True), {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}
    ),
    "modelopt-mxfp8": Format(
        partial(fp8, block=(1, 32), exponents="u8"),
        {"quant_method": "modelopt", "quantization": {"quant_algo": "MXFP8", "kv_cache_quant_algo": "FP8"}},
    ),
    "mxfp8": Format(
        partial(fp8, block=(1, 32), exponents="u8", scale_name="weight_scale_inv"),
        {"quant_method": "mxfp8", "weight_block_size": [1, 32], "scale_fmt": "ue8m0", "ignored_layers": ["lm_head"]},
    ),
    "nf4": Format(bnb4, _BNB | {"bnb_4bit_quant_type": "nf4"}),
    "nf4-nested": Format(
        partial(bnb4, nested=True), _BNB | {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
    ),
    "nf4-in-bfloat16": Format(partial(bnb4, storage=torch.bfloat16), _BNB | {"bnb_4bit_quant_storage": "bfloat16"}),
    "fp4": Format(partial(bnb4, kind="fp4"), _BNB | {"bnb_4bit_quant_type": "fp4"}),
    "bnb-int8": Format(bnb8, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    **{f"hqq-{bits}": Format(partial(hqq, bits=bits), _HQQ) for bits in (2, 3, 4, 8)},
    "hqq-columns": Format(partial(hqq, axis=0), _HQQ),
    "hqq-seen-as-float16": Format(partial(hqq, view=torch.float16), _HQQ),
    "hqq-3-seen-as-bfloat16": Format(partial(hqq, bits=3, view=torch.bfloat16), _HQQ),
}
"""The formats by name; each stores matrices of which both sides are multiples of 32."""
