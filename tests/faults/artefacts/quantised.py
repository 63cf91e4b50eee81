"""Quantised checkpoints: harmless ones, and ones whose config, parts or small tensors contradict each other."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.faults.artefacts.case import Case
from tests.models_registry.detection.builders import LLAMA_CONFIG, llama_shapes, write_json

Arrays = dict[str, np.ndarray]

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 8, "desc_act": True}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True}
HQQ = {"quant_method": "hqq"}
PACKED = {
    "quant_method": "compressed-tensors", "format": "pack-quantized",
    "config_groups": {
        "a": {"targets": ["re:(a+)+$"], "weights": {"num_bits": 4, "strategy": "group", "group_size": 8}},
    },
}  # fmt: skip
STATE = "quant_state.bitsandbytes__nf4"
QUERY = "model.layers.1.self_attn.q_proj."


def gptq_parts(outputs: int, inputs: int) -> Arrays:
    """GPTQ of 4 bits in groups of 8."""
    return {
        "qweight": np.zeros((inputs // 8, outputs), np.int32),
        "qzeros": np.zeros((inputs // 8, outputs // 8), np.int32),
        "scales": np.ones((inputs // 8, outputs), np.float16), "g_idx": np.arange(inputs, dtype=np.int32) // 8,
    }  # fmt: skip


def bnb_parts(outputs: int, inputs: int) -> Arrays:
    """NF4 in blocks of 64."""
    count = outputs * inputs
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [outputs, inputs]}
    return {
        "weight": np.zeros((count // 2, 1), np.uint8), "weight.absmax": np.ones(-(-count // 64), np.float32),
        "weight.quant_map": np.ones(16, np.float32), f"weight.{STATE}": as_bytes(json.dumps(state)),
    }  # fmt: skip


def hqq_parts(outputs: int, inputs: int) -> Arrays:
    """HQQ of 4 bits in groups of 8."""
    groups = outputs * inputs // 8
    return {
        "W_q": np.zeros((groups // 2, 8), np.uint8), "scale": np.ones((groups, 1), np.float16),
        "zero": np.ones((groups, 1), np.float16), "shape": np.array([outputs, inputs]),
        "nbits": np.array(4), "axis": np.array(1),
    }  # fmt: skip


def packed_parts(outputs: int, inputs: int) -> Arrays:
    """compressed-tensors of 4 bits in groups of 8."""
    return {
        "weight_packed": np.zeros((outputs, inputs // 8), np.int32), "weight_shape": np.array([outputs, inputs]),
        "weight_scale": np.ones((outputs, inputs // 8), np.float16),
    }  # fmt: skip


def as_bytes(text: str) -> np.ndarray:
    """A tensor of the text's bytes."""
    return np.frombuffer(text.encode(), np.uint8)


def arrays(parts: Callable[[int, int], Arrays]) -> Arrays:
    """All tensors of a tiny Llama whose projections are in codes."""
    found: Arrays = {}
    for name, shape in llama_shapes().items():
        if name.endswith("_proj.weight"):
            stem = name.removesuffix("weight")
            found |= {stem + leaf: array for leaf, array in parts(*shape).items()}
        else:
            found[name] = np.ones(shape, np.float32)
    return found


def write_quantised(
    parts: Callable[[int, int], Arrays], config: object, changes: Mapping[str, np.ndarray | None] | None = None
) -> Callable[[Path], None]:
    """A builder of such a checkpoint.

    Args:
        parts: Stores one matrix.
        config: The ``quantization_config``; None: there is none.
        changes: Of the parts of one projection; None takes a part away.
    """

    def make(directory: Path) -> None:
        content = arrays(parts)
        for leaf, array in (changes or {}).items():
            content.pop(QUERY + leaf, None)
            if array is not None:
                content[QUERY + leaf] = array
        save_file(content, directory / "model.safetensors", metadata={"format": "pt"})
        write_json(
            directory / "config.json", LLAMA_CONFIG | ({} if config is None else {"quantization_config": config})
        )

    return make


def _cut(directory: Path) -> None:
    write_quantised(gptq_parts, GPTQ)(directory)
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


def _gptq(
    name: str, refusal: str | None, changes: Mapping[str, np.ndarray | None] | None = None, **config: Any
) -> Case:
    return Case(f"gptq: {name}", write_quantised(gptq_parts, GPTQ | config, changes), refusal)


def _state(name: str, state: str) -> Case:
    return Case(f"bitsandbytes: {name}", write_quantised(bnb_parts, BNB, {f"weight.{STATE}": as_bytes(state)}), STATE)


def _hqq(name: str, changes: Mapping[str, np.ndarray | None], refusal: str = r"q_proj\.") -> Case:
    return Case(f"hqq: {name}", write_quantised(hqq_parts, HQQ, changes), refusal)


_HUGE = '{"quant_type":"nf4","blocksize":64,"shape":[1099511627776,1099511627776]}'

CASES = [
    _gptq("harmless", None),
    _gptq("8 bits stated, 4 stored", r"says 8 bits.*_proj\.qweight.*4 bits", bits=8),
    _gptq("groups of 64 stated, of 8 stored", "groups of 64", group_size=64),
    _gptq("bits are text", "bits is", bits="4"),
    _gptq("bits are 10^18", "bits is", bits=10**18),
    _gptq("says awq", r"says awq, but .*qweight", quant_method="awq"),
    _gptq("says fp8", r"says fp8, but .*qweight", quant_method="fp8"),
    _gptq("marlin", "marlin", checkpoint_format="marlin"),
    _gptq("a rotation", "rotation", rotation="hadamard"),
    _gptq("an unknown key", "secret", secret=1),
    _gptq("patterns that take for ever", None, dynamic={"+:(a+)+$": {"bits": 4}, "-:(x*)*y": {}}),
    _gptq("no scales", r"q_proj\.scales.* is missing", {"scales": None}),
    _gptq("no zero points", r"q_proj\.qzeros.* is missing", {"qzeros": None}),
    _gptq("no codes", r"q_proj\.(qzeros|scales|g_idx)", {"qweight": None}),
    _gptq("no group stated", None, group_size=None),
    _gptq("scales of another size", r"q_proj\.", {"scales": np.ones((2, 24), np.float16)}),
    _gptq("a float where codes are", "q_proj.qweight is stored as F32", {"qweight": np.zeros((2, 16), np.float32)}),
    _gptq("both forms of a weight", "stored twice", {"weight": np.ones((16, 16), np.float32)}),
    Case("gptq: truncated", _cut, r"model\.safetensors.*truncated"),
    Case("gptq: without a config", write_quantised(gptq_parts, None), None),
    Case("awq: gemv", write_quantised(gptq_parts, {"quant_method": "awq", "version": "gemv"}), "gemv"),
    Case("bitsandbytes: harmless", write_quantised(bnb_parts, BNB), None),
    _state("a state of 10^5 levels", "[" * 4000),
    _state("a state of 100 KiB", "{" + " " * 100_000 + "}"),
    _state("a state that is empty", "{}"),
    _state("a shape of 2^80", _HUGE),
    Case(
        "bitsandbytes: no absmax", write_quantised(bnb_parts, BNB, {"weight.absmax": None}), r"q_proj\.weight\.quant"
    ),
    Case("hqq: harmless", write_quantised(hqq_parts, HQQ), None),
    _hqq("99 bits", {"nbits": np.array(99)}),
    _hqq("a shape of 2^62", {"shape": np.array([1 << 31, 1 << 31])}),
    _hqq("a shape of 100,000 numbers", {"shape": np.ones(100_000, np.int64)}),
    _hqq("no scale", {"scale": None}, r"q_proj\.scale"),
    Case("compressed-tensors: harmless, but its pattern", write_quantised(packed_parts, PACKED), None),
    Case(
        "compressed-tensors: a shape of 2^62",
        write_quantised(packed_parts, PACKED, {"weight_shape": np.array([16, 1 << 62])}),
        r"q_proj\.weight_shape",
    ),
    Case(
        "compressed-tensors: 10^4 groups",
        write_quantised(packed_parts, PACKED | {"config_groups": {f"g{n}": {} for n in range(10_000)}}),
        "config_groups",
    ),
    Case(
        "compressed-tensors: rotated", write_quantised(packed_parts, PACKED | {"transform_config": {"a": 1}}), "rotat"
    ),
]  # fmt: skip
