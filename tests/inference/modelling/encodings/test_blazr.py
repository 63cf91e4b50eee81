"""Our own form: what config and tensors have to say of each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inference.errors import BlazrError, CorruptCheckpoint, MissingTensor, TensorShapeMismatch, UnsupportedFormat
from inference.llm.quantising.source import kept_members
from inference.modelling.encodings.blazr import ROW_FORMS
from inference.modelling.families.config import Facts
from inference.modelling.layers.code_search import scales_dtype
from inference.modelling.layers.coded import quantised_rows
from inference.modelling.quantisation import GGUF_FORMS, OWN_FORMS, Form, FormName, code_bytes, stored_form
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
        (tensors(), {"version": 3}, UnsupportedFormat, "version 3 of blazr's own form; 1 and 2 are read"),
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


# --- kept codes --------------------------------------------------------------------------------

KEPT = {
    **{name: GGUF_FORMS[name].without_factors for name in ("Q4_K", "Q8_0", "Q2_K", "Q3_K", "Q6_K", "IQ4_NL")},
    "float8": Form(8, 160, scales="bfloat16", is_float=True),
}  # fmt: skip


def kept_tensors(form: Form, inputs: int = 160) -> dict[str, torch.Tensor]:
    groups = -(-inputs // form.group)
    found = {
        "a.weight.codes": torch.randint(0, 256, (6, code_bytes(inputs, form.bits)), dtype=torch.uint8),
        "a.weight.scales": torch.rand(6, groups).to(scales_dtype(form)),
    }
    return found | ({"a.weight.offsets": torch.rand(6, groups).half()} if form.has_offset else {})


def kept_config(**form: Any) -> dict[str, Any]:
    return CONFIG | {"version": 2, "tensors": {"a.weight": form}}


@pytest.mark.parametrize("name", KEPT)
def test_kept_codes_are_read(name: str) -> None:
    form, facts = KEPT[name], Facts()
    (item,) = decoded_table(kept_tensors(form), kept_config(**kept_members(form)), facts).encoded
    assert (item.shape, stored_form(item)) == ((6, 160), form)
    assert facts.facts[0].value.startswith("blazr, kept float8: 1" if form.is_float else f"blazr, kept {form.bits}-bit")


@pytest.mark.parametrize(
    "stated",
    [
        {}, {"bits": 4}, {"bits": 7, "group": 32}, {"bits": 4.0, "group": 32}, {"bits": True, "group": 32},
        {"bits": 4, "group": 24}, {"bits": 5, "group": 40}, {"bits": 4, "group": 0}, {"bits": 4, "group": 1 << 40},
        {"bits": 4, "group": 32, "zero": 16}, {"bits": 4, "group": 32, "zero": -1}, {"bits": 4, "group": 32, "more": 1},
        {"bits": 4, "group": 32, "levels": [1, 2]}, {"bits": 2, "group": 32, "levels": [0, 1, 2, 300]},
        {"bits": 2, "group": 32, "levels": "abcd"}, {"bits": 8, "group": 32, "levels": [0] * 256},
        {"bits": 4, "group": 32, "scales": "float32"}, {"bits": 4, "group": 32, "scales": ["float16"]},
        {"bits": 4, "group": 32, "is_float": True}, {"bits": 8, "group": 32, "is_float": True, "has_offset": True},
        {"bits": 4, "group": 32, "has_offset": 1},
    ],
)  # fmt: skip
def test_forms_that_no_product_takes_are_refused(stated: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedFormat, match=r"a\.weight is stored as ['\"]\{"):
        decoded_table(kept_tensors(KEPT["Q8_0"]), kept_config(**stated))


def test_kept_codes_have_to_be_whole() -> None:
    form = KEPT["Q4_K"]
    stated, files = kept_config(**kept_members(form)), kept_tensors(form)
    with pytest.raises(UnsupportedFormat, match="stored as"):
        decoded_table(files, stated | {"version": 1})
    for name in ("a.weight.scales", "a.weight.offsets"):
        with pytest.raises(BlazrError, match=name):
            decoded_table({key: value for key, value in files.items() if key != name}, stated)
        with pytest.raises(BlazrError, match=name):
            decoded_table(files | {name: torch.ones(6, 4).half()}, stated)
    with pytest.raises(TensorShapeMismatch, match="has 160 inputs, fewer than share a scale by"):
        decoded_table(kept_tensors(Form(8, 320)), kept_config(bits=8, group=320))
