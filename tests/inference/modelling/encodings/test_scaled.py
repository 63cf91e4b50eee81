"""Weights in eight bits: shapes of scales against codes and config."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inference.errors import BlazrError, MissingTensor, TensorShapeMismatch, UnsupportedFormat
from tests.inference.modelling.encodings.tables import decoded_table

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
CODES = torch.zeros(200, 300).to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("scale", "config", "block"),
    [
        ((2, 3), FP8, (128, 128)),
        ((2, 3), {"quant_method": "fp8"}, (128, 128)),
        ((2, 3), None, (128, 128)),
        ((), FP8, (200, 300)),
        ((1,), FP8, (200, 300)),
        ((1, 1), None, (200, 300)),
        ((200,), {"quant_method": "fbgemm_fp8"}, (1, 300)),
        ((200, 1), {"quant_method": "fbgemm_fp8"}, (1, 300)),
        ((4, 3), FP8 | {"weight_block_size": [64, 128]}, (64, 128)),
    ],
)
def test_scales_of_each_shape(scale: tuple[int, ...], config: dict[str, Any] | None, block: tuple[int, int]) -> None:
    table = decoded_table({"x.weight": CODES, "x.weight_scale_inv": torch.ones(scale)}, config)
    (item,) = table.encoded
    assert item.block == block
    assert (table.tensors["x.weight"].dtype, table.tensors["x.weight"].shape) == ("F32", (200, 300))


@pytest.mark.parametrize(
    ("scale", "config", "error", "message"),
    [
        (torch.ones(2, 4), FP8, TensorShapeMismatch, r"x.weight_scale has shape \[2, 4\].*x.weight.*blocks of \[128"),
        (torch.ones(3), FP8, TensorShapeMismatch, r"x.weight_scale has shape \[3\], which scales neither"),
        (torch.ones(2, 1, 3, 2), FP8, TensorShapeMismatch, r"x.weight_scale has shape \[2, 1, 3, 2\]"),
        (torch.ones(2, 3), {"quant_method": "fbgemm_fp8"}, TensorShapeMismatch, "fbgemm_fp8"),
        (torch.ones(2, 3), {"quant_method": "awq"}, UnsupportedFormat, "says awq, but x.weight is stored as F8_E4M3"),
        (torch.ones(2, 3).int(), FP8, UnsupportedFormat, "x.weight_scale is stored as I32"),
        (torch.ones(2, 3), FP8 | {"weight_block_size": [0, 1]}, UnsupportedFormat, "weight_block_size is .*positive"),
        (torch.ones(2, 3), FP8 | {"weight_block_size": "x"}, UnsupportedFormat, "weight_block_size"),
    ],
)
def test_contradictions_name_both_sides(
    scale: torch.Tensor, config: dict[str, Any], error: type[BlazrError], message: str
) -> None:
    with pytest.raises(error, match=message):
        decoded_table({"x.weight": CODES, "x.weight_scale": scale}, config)


@pytest.mark.parametrize(
    ("leaf", "rows", "behind", "sizes"),
    [
        ("gate_up_proj", 20, None, (10, 10)),
        ("qkv_proj", 20, (32, 12), (12, 4, 4)),
        ("qkv_proj", 21, (32, 7), (7, 7, 7)),
        ("qkv_proj", 21, None, ()),
        ("qkv_proj", 20, None, ()),
        ("qkv_proj", 20, (32, 20), ()),
        ("gate_up_proj", 21, None, ()),
        ("other_proj", 20, None, ()),
    ],
)
def test_matrices_below_each_other_have_a_scale_each(
    leaf: str, rows: int, behind: tuple[int, int] | None, sizes: tuple[int, ...]
) -> None:
    count = 3 if leaf == "qkv_proj" else 2
    codes = torch.zeros(rows, 32).to(torch.float8_e4m3fn)
    tensors = {f"x.{leaf}.weight": codes, f"x.{leaf}.weight_scale": torch.ones(count)}
    if behind is not None:
        tensors["x.o_proj.weight"] = torch.zeros(behind).bfloat16()
    if not sizes:
        with pytest.raises(TensorShapeMismatch, match="which scales neither the whole"):
            decoded_table(tensors, None)
        return
    (item,) = decoded_table(tensors, None).encoded
    assert (item.fused_rows, item.block) == (sizes, (1, 32))


@pytest.mark.parametrize("method", ["fp8", "fbgemm_fp8", "compressed-tensors"])
def test_rows_of_bitsandbytes_belong_to_it_alone(method: str) -> None:
    tensors = {"x.weight": torch.zeros(4, 8, dtype=torch.int8), "x.SCB": torch.ones(4)}
    decoded_table(tensors, {"quant_method": "bitsandbytes"})
    with pytest.raises(UnsupportedFormat, match=rf"says {method}, but x\.weight is stored as I8 with SCB"):
        decoded_table(tensors, {"quant_method": method})


@pytest.mark.parametrize("method", ["fp8", "fbgemm_fp8", "bitsandbytes"])
def test_bytes_with_scales_of_rows_are_none_of_theirs(method: str) -> None:
    tensors = {"x.weight": torch.zeros(4, 8, dtype=torch.int8), "x.weight_scale": torch.ones(4, 1)}
    with pytest.raises(UnsupportedFormat, match=rf"says {method}, but x\.weight is stored as I8, which"):
        decoded_table(tensors, {"quant_method": method})


@pytest.mark.parametrize(("bits", "kind"), [(4, "float"), (8, "int"), (4, "int")])
def test_a_group_of_the_config_has_such_codes(bits: int, kind: str) -> None:
    weights = {"num_bits": bits, "type": kind, "strategy": "channel"}
    config = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}
    tensors = {"x.weight": CODES, "x.weight_scale": torch.ones(200, 1)}
    message = rf"config\.json say {bits} bits \({kind}\), but x\.weight is stored in 8 bits \(float\)"
    with pytest.raises(UnsupportedFormat, match=message):
        decoded_table(tensors, config)


def test_a_missing_scale_is_named() -> None:
    for codes in (CODES, CODES.to(torch.int8)):
        with pytest.raises(MissingTensor, match=r"x\.weight is stored as .*x\.weight_scale or x\.scale"):
            decoded_table({"x.weight": codes}, None)


def test_tiles_of_bitsandbytes_are_refused() -> None:
    tensors = {"x.weight": torch.zeros(4, 8, dtype=torch.int8), "x.SCB": torch.ones(4)}
    form = torch.tensor(1, dtype=torch.uint8)
    (item,) = decoded_table(tensors | {"x.weight_format": form * 0}, None).encoded
    assert item.divisor == 127.0
    with pytest.raises(UnsupportedFormat, match="tiled"):
        decoded_table(tensors | {"x.weight_format": form}, None)
    with pytest.raises(TensorShapeMismatch, match=r"x.SCB"):
        decoded_table(tensors | {"x.SCB": torch.ones(5)}, None)
