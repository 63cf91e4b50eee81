"""Recognise weights of four-bit floats: NVFP4, MXFP4 of compressed-tensors and DeepSeek V4, gpt-oss's stacked experts.

Sources: OCP Microscaling Formats 1.0 (MXFP4), compressed-tensors' ``nvfp4_pack_quantized`` (the global scale divides),
NVIDIA ModelOpt (``weight_scale_2`` multiplies), transformers' integrations of mxfp4 (gpt-oss) and of float8 (DeepSeek
V4's experts beside float8).
"""

from __future__ import annotations

from inference.errors import TensorShapeMismatch, UnsupportedFormat
from inference.modelling.encoded_tensor import EncodedTensor
from inference.modelling.encodings.compressed import expect_scheme
from inference.modelling.encodings.parts import (
    EXPONENTS,
    FLOATS,
    Parts,
    choose_scale_dtype,
    expect_matrix,
    expect_shape,
    fused_rows,
    num_values,
)
from inference.modelling.encodings.quantisation_config import QuantisationConfig

NVFP4_GROUP = 16
MXFP4_GROUP = 32
_BLOCK_BYTES = 16


def find_fp4(parts: Parts, config: QuantisationConfig | None) -> None:
    """Take every four-bit float tensor with its scales.

    Raises:
        CheckpointError: A companion is missing, or shapes contradict each other or the config.
    """
    for name, info in parts.tensors.items():
        if name.endswith("_blocks") and info.dtype == "U8" and len(info.shape) == 4:
            _expect_method(name, config, "mxfp4")
            _take_experts(parts, name)
        elif name.endswith(".weight_packed") and info.dtype == "U8":
            _expect_method(name, config, "compressed-tensors")
            expect_scheme(config, name, 4, "float")
            stem = name.removesuffix("packed")
            logical = name.removesuffix("_packed")
            _take_matrix(parts, name, logical, logical + "_scale", stem + "global_scale", divides=True)
        elif info.dtype == "U8" and name + "_scale_2" in parts.tensors:
            _expect_method(name, config, "modelopt")
            _take_matrix(parts, name, name, name + "_scale", name + "_scale_2", divides=False)
        elif info.dtype == "I8" and name.endswith(".weight") and _has_exponents(parts, name):
            _expect_method(name, config, "fp8")
            _take_matrix(parts, name, name, name.removesuffix("weight") + "scale", "", divides=False)


def _has_exponents(parts: Parts, name: str) -> bool:
    """Whether DeepSeek V4's scales, powers of two, lie beside a weight."""
    scale = parts.tensors.get(name.removesuffix("weight") + "scale")
    return scale is not None and scale.dtype in EXPONENTS


def _expect_method(name: str, config: QuantisationConfig | None, method: str) -> None:
    if config is not None and config.method != method:
        raise UnsupportedFormat(
            f"{config.file} says {config.method}, but {name} belongs to {method}.", param="quantization_config"
        )


def _take_matrix(parts: Parts, name: str, logical: str, scale_name: str, global_name: str, *, divides: bool) -> None:
    """(o, i/2) bytes: NVFP4 with a scale in float8 per 16 inputs, MXFP4 with an exponent per 32."""
    outputs, pairs = expect_matrix(name, parts.tensors[name])
    scale = parts.need(scale_name, name, ("F8_E4M3", *EXPONENTS))
    names = {"blocks": name, "scale": scale_name}
    fused: tuple[int, ...] = ()
    group = MXFP4_GROUP if scale.dtype in EXPONENTS else NVFP4_GROUP
    expect_shape(scale_name, scale, (outputs, -(-pairs * 2 // group)), f"{name} in groups of {group}")
    if group == NVFP4_GROUP:
        whole = parts.need(global_name, name, FLOATS)
        fused = fused_rows(parts, name, whole.shape)
        if num_values(whole) != 1 and not fused:
            raise TensorShapeMismatch(
                f"{global_name} has shape {list(whole.shape)}; one number is needed, or one for each of gate and up, "
                "or of q, k and v.",
                param=global_name,
            )
        names["global_scale"] = global_name
    shape = (outputs, pairs * 2)
    kept = choose_scale_dtype(scale, has_zeros=False)
    parts.add(
        EncodedTensor(
            logical, shape, "fp4", names, bits=4, group_size=group, divides=divides, scales=kept, fused_rows=fused
        )
    )


def _take_experts(parts: Parts, name: str) -> None:
    """(E, o, i/32, 16) bytes, as ``….weight`` (E, o, i): the unquantised file has (E, i, o) under the bare name."""
    blocks = parts.tensors[name]
    experts, outputs, num_groups, width = blocks.shape
    stem = name.removesuffix("_blocks")
    logical, scale_name = f"{stem}.weight", f"{stem}_scales"
    scale = parts.need(scale_name, name, EXPONENTS)
    if width != _BLOCK_BYTES:
        raise TensorShapeMismatch(
            f"{name} has shape {list(blocks.shape)}; blocks of {_BLOCK_BYTES} bytes are needed.", param=name
        )
    expect_shape(scale_name, scale, (experts, outputs, num_groups), name)
    shape = (experts, outputs, num_groups * MXFP4_GROUP)
    names = {"blocks": name, "scale": scale_name}
    kept = choose_scale_dtype(scale, has_zeros=False)
    parts.add(EncodedTensor(logical, shape, "fp4", names, bits=4, group_size=MXFP4_GROUP, scales=kept))
