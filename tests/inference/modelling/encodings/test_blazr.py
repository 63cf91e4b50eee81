"""Our own form: what config and tensors have to say of each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inference.errors import BlazrError, CorruptCheckpoint, MissingTensor, TensorShapeMismatch, UnsupportedFormat
from inference.modelling.encodings.blazr import ROW_FORMS
from inference.modelling.families.config import Facts
from inference.modelling.layers.coded import quantised_rows
from inference.modelling.quantisation import OWN_FORMS, FormName, stored_form
from tests.inference.modelling.encodings.tables import decoded_table

STATED = {"a.weight": "int8", "b.experts.{e}.up.weight": "int4"}
CONFIG = {
    "quant_method": "blazr", "version": 1, "stored_dtype": "bfloat16", "tensors": STATED,
    "measured": {"mean_kl": 0.0123, "bits_per_weight": 5.25, "text": "a text"},
}  # fmt: skip


def tensors() -> dict[str, torch.Tensor]:
    found = {"a.norm.weight": torch.ones(4), "a.bias": torch.zeros(3, dtype=torch.bfloat16)}
    for name, kind in (("a", "int8"), ("b.experts.0.up", "int4"), ("b.experts.11.up", "int4")):
        codes, scales = quantised_rows(torch.randn(6, 160), kind)  # type: ignore[arg-type]
        found |= {f"{name}.weight.codes": codes, f"{name}.weight.scales": scales}
    return found


def test_weights_count_as_what_they_were() -> None:
    facts = Facts()
    table = decoded_table(tensors(), CONFIG, facts)
    assert {item.name: (item.shape, item.form) for item in table.encoded} == {
        "a.weight": ((6, 160), "int8"), "b.experts.0.up.weight": ((6, 160), "int4"),
        "b.experts.11.up.weight": ((6, 160), "int4"),
    }  # fmt: skip
    assert table.tensors["a.weight"].dtype == "BF16"
    assert "a.bias" in table.tensors, "a bias of zeros belongs to the checkpoint"
    (fact,) = facts.facts
    assert fact.value == "blazr, int4: 2, int8: 1; 5.25 bits per weight, KL 1.23e-02 nats as measured on a text"
    assert not facts.warnings


def test_the_forms_are_those_of_the_products() -> None:
    found = {name: (form.bits, form.group) for name, form in ROW_FORMS.items()}
    assert found == {name: (form.bits, form.group) for name, form in OWN_FORMS.items()}


@pytest.mark.parametrize("name", OWN_FORMS)
@pytest.mark.parametrize("shape", [(6, 160), (3, 6, 72)])
def test_every_form_is_read(name: FormName, shape: tuple[int, ...]) -> None:
    codes, scales = quantised_rows(torch.randn(*shape), name)
    (item,) = decoded_table(
        {"a.weight.codes": codes, "a.weight.scales": scales}, CONFIG | {"tensors": {"a.weight": name}}
    ).encoded
    assert (item.shape, item.form, item.group_size) == (shape, name, OWN_FORMS[name].group)
    assert stored_form(item) == (None if name in ("int4", "int8") else OWN_FORMS[name])


def without(*names: str) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in tensors().items() if name not in names}


@pytest.mark.parametrize(
    ("files", "config", "error", "message"),
    [
        (without("a.weight.codes", "a.weight.scales"), {}, MissingTensor, "that a.weight is stored as int8, but a"),
        (without("a.weight.scales"), {}, MissingTensor, "a.weight.codes holds codes, but a.weight.scales"),
        (tensors(), {"tensors": {"a.weight": "int8"}}, MissingTensor, "b.experts.0.up.weight.codes holds codes, but"),
        (tensors(), {"tensors": {"a.weight": "int4"}}, UnsupportedFormat, "int4, whose codes are U8, but a.weight"),
        (tensors(), {"tensors": {"a.weight": "int7"}}, UnsupportedFormat, "a.weight is stored as 'int7'; int2, int3"),
        (tensors(), {"tensors": {"a.weight": 3}}, UnsupportedFormat, "stored as '3'"),
        (tensors(), {"tensors": []}, CorruptCheckpoint, "has no tensors"),
        (tensors(), {"stored_dtype": "int8"}, CorruptCheckpoint, "stored_dtype is 'int8'"),
        (tensors(), {"version": 2}, UnsupportedFormat, "version 2 of blazr's own form; 1 is read"),
        (tensors() | {"a.weight.scales": torch.ones(6, 3, dtype=torch.bfloat16)}, {}, TensorShapeMismatch, r"\[6, 2\]"),
        (
            tensors() | {"a.weight.codes": torch.ones(6, 10, dtype=torch.uint8)},
            {"tensors": STATED | {"a.weight": "int3"}}, TensorShapeMismatch,
            "a.weight.codes has 10 bytes a row, which no number of 3-bit codes takes",
        ),
        (tensors() | {"a.weight": torch.ones(6, 160)}, {}, TensorShapeMismatch, "a.weight is stored twice"),
        (tensors() | {"a.weight.codes": torch.ones(6, dtype=torch.int8)}, {}, TensorShapeMismatch, "a matrix or a st"),
    ],
)  # fmt: skip
def test_contradictions_name_both(
    files: dict[str, torch.Tensor], config: dict[str, Any], error: type[BlazrError], message: str
) -> None:
    with pytest.raises(error, match=message):
        decoded_table(files, CONFIG | config)


@pytest.mark.parametrize(
    "measured",
    [None, 3, {}, {"mean_kl": "x", "bits_per_weight": True}, {"mean_kl": 10**400}, {"mean_kl": float("nan")}],
)
def test_figures_that_make_no_sense_are_left_out(measured: Any) -> None:
    facts = Facts()
    decoded_table(tensors(), CONFIG | {"measured": measured}, facts)
    assert facts.facts[0].value == "blazr, int4: 2, int8: 1"
