"""Four-bit floats: shapes and companions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from inference.errors import BlazrError, MissingTensor, TensorShapeMismatch, UnsupportedFormat
from tests.inference.modelling.encodings.formats import mxfp4, mxfp4_experts, nvfp4
from tests.inference.modelling.encodings.tables import decoded_table


def tensors(modelopt: bool = False) -> dict[str, torch.Tensor]:
    made, _ = nvfp4(np.random.default_rng(0), 32, 64, modelopt=modelopt)
    return {f"x.{leaf}": tensor for leaf, tensor in made.items()}


def test_the_scales_tell_the_forms_apart() -> None:
    (item,) = decoded_table(tensors(), None).encoded
    assert (item.group_size, item.divides) == (16, True)
    (item,) = decoded_table(tensors(modelopt=True), None).encoded
    assert (item.group_size, item.divides) == (16, False)
    made, _ = mxfp4(np.random.default_rng(0), 32, 64)
    (item,) = decoded_table({f"x.{leaf}": tensor for leaf, tensor in made.items()}, None).encoded
    assert (item.group_size, item.parts.keys()) == (32, {"blocks", "scale"})


def test_experts_beside_float8_have_powers_of_two_as_scales() -> None:
    made, _ = mxfp4(np.random.default_rng(0), 32, 64, is_beside_fp8=True)
    named = {f"x.{leaf}": tensor for leaf, tensor in made.items()}
    (item,) = decoded_table(named, {"quant_method": "fp8", "weight_block_size": [128, 128]}).encoded
    assert (item.name, item.shape, item.group_size, item.divides) == ("x.weight", (32, 64), 32, False)
    with pytest.raises(UnsupportedFormat, match=r"says awq, but x\.weight belongs to fp8"):
        decoded_table(named, {"quant_method": "awq"})
    with pytest.raises(TensorShapeMismatch, match=r"x\.scale has shape"):
        decoded_table(named | {"x.scale": named["x.scale"][:, :1].clone()}, None)


@pytest.mark.parametrize(
    ("leaf", "changed", "error", "message"),
    [
        ("weight_scale", None, MissingTensor, "x.weight_packed holds codes, but x.weight_scale"),
        ("weight_global_scale", None, MissingTensor, "x.weight_packed holds codes, but x.weight_global_scale"),
        ("weight_global_scale", torch.ones(3), TensorShapeMismatch, "one number is needed, or one for each"),
        ("weight_scale", torch.ones(32, 4), UnsupportedFormat, "x.weight_scale is stored as F32"),
        ("weight_scale", torch.zeros(32, 4, dtype=torch.uint8), TensorShapeMismatch, "in groups of 32"),
    ],
)
def test_contradictions_name_both_sides(
    leaf: str, changed: torch.Tensor | None, error: type[BlazrError], message: str
) -> None:
    found = tensors()
    del found[f"x.{leaf}"]
    if changed is not None:
        found[f"x.{leaf}"] = changed
    with pytest.raises(error, match=message):
        decoded_table(found, {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"})


def test_the_method_has_to_fit() -> None:
    with pytest.raises(UnsupportedFormat, match=r"says awq, but x.weight belongs to modelopt"):
        decoded_table(tensors(modelopt=True), {"quant_method": "awq"})


def test_a_group_of_the_config_has_such_codes() -> None:
    groups = {"group_0": {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}}}
    stated = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": groups}
    with pytest.raises(UnsupportedFormat, match=r"say 4 bits \(int\), but x\.weight_packed is .* 4 bits \(float\)"):
        decoded_table(tensors(), stated)


def test_stacked_experts_need_their_scales() -> None:
    made, _ = mxfp4_experts(np.random.default_rng(0), 2, 32, 64)
    named = {f"x.down_proj{leaf}": tensor for leaf, tensor in made.items()}
    with pytest.raises(TensorShapeMismatch, match=r"x.down_proj_scales has shape"):
        decoded_table(named | {"x.down_proj_scales": named["x.down_proj_scales"][:, :1].clone()}, None)
    with pytest.raises(TensorShapeMismatch, match="blocks of 16 bytes"):
        decoded_table(named | {"x.down_proj_blocks": named["x.down_proj_blocks"][..., :8].clone()}, None)
    del named["x.down_proj_scales"]
    with pytest.raises(MissingTensor, match=r"x\.down_proj_scales"):
        decoded_table(named, None)
