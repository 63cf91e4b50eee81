"""BitNet's weights of three values against transformers' packing, piece by piece."""

from __future__ import annotations

import pytest
import torch
from transformers.integrations.bitnet import pack_weights

from inference.modelling.encoded_tensor import EncodedTensor
from inference.modelling.quantisation import Form, stored_form
from inference.modelling.weights.decoding.decode import decode
from inference.modelling.weights.decoding.kept_codes import kept_codes

VALUES = torch.randint(-1, 2, (24, 50), generator=torch.Generator().manual_seed(0)).float()


def packed(*, divides: bool) -> tuple[EncodedTensor, dict[str, torch.Tensor]]:
    names = {"codes": "x.weight", "scale": "x.weight_scale"}
    item = EncodedTensor("x.weight", (24, 50), "bitnet", names, bits=2, divides=divides, scales="float16")
    return item, {"codes": pack_weights(VALUES.clone()), "scale": torch.tensor([4.0])}


@pytest.mark.parametrize("divides", [True, False])
def test_rows_of_any_quarter(divides: bool) -> None:
    item, parts = packed(divides=divides)
    scale = 0.25 if divides else 4.0
    for begin, stop in ((0, 24), (5, 7), (17, 24), (3, 3)):
        assert torch.equal(decode(item, parts, begin, stop), VALUES[begin:stop] * scale)
        form = stored_form(item)
        assert form == Form(2, 64, zero=1)
        kept = kept_codes(item, form, parts, begin, stop)
        assert torch.equal(kept.codes.float() - 1, VALUES[begin:stop])
        assert torch.equal(kept.scales, torch.full((stop - begin, 1), scale))


def test_weights_in_floats_are_rounded_by_their_mean() -> None:
    weight = torch.randn(24, 50, generator=torch.Generator().manual_seed(1)).bfloat16()
    item = EncodedTensor("x.weight", (24, 50), "bitnet", {"weight": "x.weight"}, bits=2, scales="float16")
    mean = weight.float().abs().mean()
    wanted = (weight.float() / mean).round().clamp(-1, 1) * mean
    assert torch.allclose(decode(item, {"weight": weight}, 3, 20), wanted[3:20], atol=1e-6)


def test_values_in_floats_are_multiplied() -> None:
    names = {"weight": "x.weight", "scale": "x.weight_scale"}
    item = EncodedTensor("x.weight", (24, 50), "bitnet", names)
    assert torch.equal(decode(item, {"weight": VALUES, "scale": torch.tensor(0.5)}), VALUES * 0.5)
    assert stored_form(item) is None
