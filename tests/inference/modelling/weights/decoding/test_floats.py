"""Float codes: blocks at the edges, blocks across rows, stacks of experts."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.modelling.layers.coded import code_plainly
from inference.modelling.quantisation import stored_form
from inference.modelling.weights.decoding.decode import decode
from inference.modelling.weights.decoding.kept_codes import kept_codes
from tests.inference.modelling.encodings import formats
from tests.inference.modelling.encodings.tables import decoded_table
from tests.inference.modelling.weights.decoding.values import check


@settings(max_examples=60, deadline=None)
@given(outputs=st.integers(1, 70), inputs=st.integers(1, 70), high=st.integers(1, 40), wide=st.integers(1, 40))
def test_blocks_at_the_edges_are_cut(outputs: int, inputs: int, high: int, wide: int) -> None:
    made = formats.fp8(np.random.default_rng(2), outputs, inputs, block=(high, wide), scale_name="weight_scale_inv")
    check(made, {"quant_method": "fp8", "weight_block_size": [high, wide]}, (outputs // 2,))


@settings(max_examples=60, deadline=None)
@given(outputs=st.integers(1, 30), inputs=st.integers(1, 50), block=st.sampled_from([64, 128]), nested=st.booleans())
def test_blocks_of_bitsandbytes_cross_rows(outputs: int, inputs: int, block: int, nested: bool) -> None:
    made = formats.bnb4(np.random.default_rng(3), outputs, inputs, block=block, nested=nested)
    check(made, None, (outputs // 3, outputs // 2))


def test_stacked_experts_are_outputs_by_inputs() -> None:
    tensors, values = formats.mxfp4_experts(np.random.default_rng(6), 3, 48, 64)
    table = decoded_table({f"x.gate_up_proj{leaf}": part for leaf, part in tensors.items()}, {"quant_method": "mxfp4"})
    (item,) = table.encoded
    assert table.tensors["x.gate_up_proj.weight"].shape == (3, 48, 64)
    parts = {role: tensors[name.removeprefix("x.gate_up_proj")] for role, name in item.parts.items()}
    assert np.array_equal(decode(item, parts).numpy(), values)
    assert np.array_equal(decode(item, parts, 1, 2).numpy(), values[1:2])


@pytest.mark.parametrize("spread", [(3, 2, 2), (3, 1, 1), (3,)])
def test_stacked_experts_in_float8(spread: tuple[int, ...]) -> None:
    codes = torch.randn(3, 40, 64).to(torch.float8_e4m3fn)
    scale = torch.rand(spread) + 0.5
    config = {"quant_method": "fp8", "weight_block_size": [32, 32]}
    tensors = {"x.down_proj": codes, "x.down_proj_scale_inv": scale}
    (item,) = decoded_table(tensors, config).encoded
    wide = scale.reshape(3, 1, 1) if spread != (3, 2, 2) else scale
    high, width = (40, 64) if spread != (3, 2, 2) else (32, 32)
    expected = codes.float() * wide.repeat_interleave(high, 1)[:, :40].repeat_interleave(width, 2)[..., :64]
    parts = {role: tensors[name] for role, name in item.parts.items()}
    assert torch.equal(decode(item, parts), expected)
    assert torch.equal(decode(item, parts, 2, 3), expected[2:])


@pytest.mark.parametrize(
    ("make", "part", "config"),
    [
        (formats.fp8, "weight_scale", None),
        (
            formats.nvfp4,
            "weight_global_scale",
            {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
        ),
        (partial(formats.nvfp4, modelopt=True), "weight_scale_2", {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    ],
    ids=["float8", "compressed-tensors", "modelopt"],
)
def test_matrices_below_each_other_have_scales_of_their_own(make, part, config) -> None:
    """q, k and v of 64, 32 and 32 rows, written one by one; ``part`` has a number for each."""
    rng, sizes = np.random.default_rng(7), (64, 32, 32)
    made = [make(rng, rows, 64) for rows in sizes]
    factors = torch.tensor([1.0, 3.0, 0.5])  # the writer's own are equal
    tensors = {"x.o_proj.weight": torch.zeros(8, 64).bfloat16()}
    for leaf, first in made[0][0].items():
        stored = [
            written[leaf].view(torch.uint8) if first.dtype.itemsize == 1 else written[leaf] for written, _ in made
        ]
        joined = torch.cat([value.reshape(1) if value.dim() < 2 else value for value in stored])
        tensors[f"x.qkv_proj.{leaf}"] = joined * factors if leaf == part else joined.view(first.dtype)
    changes = 1 / factors if part == "weight_global_scale" else factors
    values = np.concatenate([own * change for (_, own), change in zip(made, changes.tolist(), strict=True)])
    (item,) = decoded_table(tensors, config).encoded
    assert item.fused_rows == sizes
    parts = {role: tensors[name] for role, name in item.parts.items()}
    for begin, stop in ((0, 128), (50, 70), (70, 128)):
        found = decode(item, parts, begin, stop).numpy()
        np.testing.assert_allclose(found, values[begin:stop], rtol=1e-6, atol=0)
    form = stored_form(item)
    assert form is not None
    kept = code_plainly(kept_codes(item, form, parts, 50, 70)).dense(torch.float32).numpy()
    np.testing.assert_allclose(kept, values[50:70], rtol=0, atol=1e-3 * np.abs(values).max())
