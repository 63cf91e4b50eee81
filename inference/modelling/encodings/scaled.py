"""Recognise weights in int8 or float8 codes with scales per tensor, row, group or block.

Sources: DeepSeek's checkpoints (V3: ``weight_scale_inv``, V4: ``scale``, which both multiply), FBGEMM and
compressed-tensors (``weight_scale``), ModelOpt (its blocks' scales have axes of one between the others), MXFP8 (a power
of two per 32), and bitsandbytes' int8 (``SCB``, the largest magnitude of each row, over 127).
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.errors import MissingTensor, TensorShapeMismatch, UnsupportedFormat
from inference.modelling.encoded_tensor import EncodedTensor
from inference.modelling.encodings.compressed import WeightScheme, expect_scheme, schemes_of
from inference.modelling.encodings.parts import (
    EXPONENTS,
    FLOATS,
    Parts,
    choose_scale_dtype,
    expect_shape,
    fused_rows,
    num_values,
)
from inference.modelling.encodings.quantisation_config import QuantisationConfig
from inference.modelling.families.config import TensorInfo

_CODES = ("F8_E4M3", "F8_E5M2", "I8")
_SCALES = ("_scale_inv", "_scale")
_FLOAT_METHODS = ("fp8", "mxfp8", "fbgemm_fp8", "modelopt")
_USUAL_BLOCK = (128, 128)
_MX_BLOCK = (1, 32)


def find_scaled(parts: Parts, config: QuantisationConfig | None) -> None:
    """Take every int8 or float8 tensor of two or more axes with its scale.

    Raises:
        CheckpointError: The scale is missing, or its shape contradicts the codes or the config.
    """
    for name, info in parts.tensors.items():
        if name in parts.taken or info.dtype not in _CODES or len(info.shape) < 2:
            continue
        stem = name.removesuffix("weight")
        has_rows_of_127 = stem != name and stem + "SCB" in parts.tensors
        if config is not None and not _is_possible(config.method, info.dtype, has_rows_of_127=has_rows_of_127):
            raise UnsupportedFormat(
                f"{config.file} says {config.method}, but {name} is stored as {info.dtype}"
                f"{' with SCB' if has_rows_of_127 else ''}, which {config.method} doesn't use; use the config that "
                "belongs to these weights.",
                param="quantization_config",
            )
        if has_rows_of_127:
            _take_rows_of_127(parts, name, stem)
        else:
            _take(parts, name, info, config)


def _is_possible(method: str, dtype: str, *, has_rows_of_127: bool) -> bool:
    """Whether a method stores such codes: bitsandbytes with its scales of rows over 127 alone, the others without."""
    if method == "bitsandbytes" or has_rows_of_127:
        return method == "bitsandbytes" and has_rows_of_127
    return method == "compressed-tensors" or (method in _FLOAT_METHODS and dtype != "I8")


def _take_rows_of_127(parts: Parts, name: str, stem: str) -> None:
    """bitsandbytes' int8: q · SCB / 127."""
    info = parts.tensors[name]
    scale = parts.need(stem + "SCB", name, FLOATS)
    expect_shape(stem + "SCB", scale, info.shape[:1], name)
    layout = parts.find(stem + "weight_format")
    if layout is not None and num_values(layout) == 1 and any(parts.read(layout)):
        raise UnsupportedFormat(
            f"{stem}weight_format says that {name} is tiled for a GPU's kernels; only rows (0) are read.", param=name
        )
    names = {"codes": name, "scale": stem + "SCB"}
    parts.add(
        EncodedTensor(
            name, info.shape, "scaled", names, bits=8, block=(1, info.shape[1]), divisor=127.0,
            # The division by 127 leaves more bits than bfloat16 has.
            scales="float16" if info.dtype == "I8" else "",
        )
    )  # fmt: skip
    parts.ignore(stem + "weight_format")


def _take(parts: Parts, name: str, info: TensorInfo, config: QuantisationConfig | None) -> None:
    names_of_scales = [name + suffix for suffix in _SCALES]
    if name.endswith("weight"):
        names_of_scales.append(name.removesuffix("weight") + "scale")
    scale_name = next((found for found in names_of_scales if found in parts.tensors), None)
    if scale_name is None:
        raise MissingTensor(
            f"{name} is stored as {info.dtype}, but what scales it is missing: {' or '.join(names_of_scales)}.",
            param=name + "_scale",
        )
    expect_scheme(config, name, 8, "int" if info.dtype == "I8" else "float")
    scale = parts.need(scale_name, name, (*FLOATS, *EXPONENTS))
    names = {"codes": name, "scale": scale_name}
    fused = fused_rows(parts, name, scale.shape)
    block = (1, info.shape[1]) if fused else _block(name, info.shape, scale_name, scale.shape, config)
    zero_name = name + "_zero_point"
    if zero_name in parts.tensors:
        zero = parts.need(zero_name, name, ("I8", *_CODES, *FLOATS))
        expect_shape(zero_name, zero, scale.shape, scale_name)
        names["zero_point"] = zero_name
    has_zeros, is_float = zero_name in parts.tensors, info.dtype == "F8_E4M3"
    is_kept = info.dtype == "I8" or (is_float and not has_zeros)
    kept = choose_scale_dtype(scale, has_zeros=has_zeros) if is_kept else ""
    parts.add(
        EncodedTensor(
            name, info.shape, "scaled", names, bits=8, block=block, scales=kept, is_float=is_float, fused_rows=fused
        )
    )


def _block(
    name: str, shape: Sequence[int], scale_name: str, scale: Sequence[int], config: QuantisationConfig | None
) -> tuple[int, int]:
    """Outputs and inputs that share a scale.

    Raises:
        TensorShapeMismatch: The scale's shape fits no reading, or not the config's.
    """
    rows, columns = shape[-2:]
    count = 1
    for size in scale:
        count *= size
    if count == 1 or (len(shape) == 3 and tuple(scale) in ((shape[0],), (shape[0], 1, 1))):
        return rows, columns
    if len(shape) == 2 and tuple(scale) in ((rows,), (rows, 1)):
        return 1, columns
    if len(scale) == len(shape) + 2 and (scale[-1], scale[-3]) == (1, 1):
        scale = (*scale[:-3], scale[-2])
    if len(scale) == len(shape) and tuple(scale[:-2]) == tuple(shape[:-2]):
        for block in _stated_blocks(config, rows, columns):
            if tuple(scale[-2:]) == (-(-rows // block[0]), -(-columns // block[1])):
                return block
        if tuple(scale[-2:]) == (rows, 1):
            return 1, columns
    stated = "" if config is None else f" by {config.file} ({config.method}{_described(config)})"
    raise TensorShapeMismatch(
        f"{scale_name} has shape {list(scale)}, which scales neither the whole of {name} ({list(shape)}) nor its rows, "
        f"groups or blocks{stated}.",
        param=scale_name,
    )


def _stated_blocks(config: QuantisationConfig | None, rows: int, columns: int) -> list[tuple[int, int]]:
    """Sizes of blocks that the config allows for a matrix."""
    if config is None:
        return [_USUAL_BLOCK, _MX_BLOCK]
    if config.method == "compressed-tensors":
        return [block for scheme in schemes_of(config) if (block := _scheme_block(scheme, rows, columns))]
    stated = config.values.get("weight_block_size")
    if stated is None:
        return {"fp8": [_USUAL_BLOCK], "mxfp8": [_MX_BLOCK], "modelopt": [_MX_BLOCK, _USUAL_BLOCK]}.get(
            config.method, []
        )
    if not _is_block(stated):
        raise UnsupportedFormat(
            f"{config.file}: weight_block_size is {str(stated)[:60]!r}; it must be two positive whole numbers.",
            param="weight_block_size",
        )
    return [(stated[0], stated[1])]


def _is_block(value: object) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= 1 << 20 for size in value)
    )


def _scheme_block(scheme: WeightScheme, rows: int, columns: int) -> tuple[int, int] | None:
    if scheme.strategy == "block":
        return scheme.block
    if scheme.strategy in ("group", "tensor_group"):
        return (1, scheme.group_size) if scheme.group_size > 0 else None
    return (1, columns) if scheme.strategy == "channel" else (rows, columns)


def _described(config: QuantisationConfig) -> str:
    stated = config.values.get("weight_block_size")
    return "" if stated is None else f", blocks of {str(stated)[:40]}"
