"""BitNet: which matrices are taken, and what doesn't fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inference.errors import CheckpointError, UnsupportedFormat
from inference.modelling.encodings.table import DecodedTable
from tests.inference.modelling.encodings.tables import decoded_table

BASE = "model.layers.0.self_attn."
ONLINE = {"linear_class": "autobitlinear", "quantization_mode": "online"}


def tensors(**changes: torch.Tensor) -> dict[str, torch.Tensor]:
    made = {
        f"{BASE}q_proj.weight": torch.zeros(8, 64, dtype=torch.uint8), f"{BASE}q_proj.weight_scale": torch.ones(1),
        f"{BASE}q_norm.weight": torch.ones(16), "model.embed_tokens.weight": torch.zeros(40, 64),
    }  # fmt: skip
    return made | {f"{BASE}{name}": value for name, value in changes.items()}


def table(made: dict[str, torch.Tensor], **config: Any) -> DecodedTable:
    return decoded_table(made, {"quant_method": "bitnet", **config})


def test_four_rows_lie_in_one() -> None:
    (item,) = table(tensors()).encoded
    assert (item.name, item.shape, item.bits, item.divides, item.scales) == (
        f"{BASE}q_proj.weight", (32, 64), 2, True, "float16",
    )  # fmt: skip
    (item,) = table(tensors(), linear_class="autobitlinear").encoded
    assert not item.divides and item.parts == {
        "codes": f"{BASE}q_proj.weight", "scale": f"{BASE}q_proj.weight_scale",
    }  # fmt: skip


def test_values_in_floats_keep_their_scale() -> None:
    made = tensors() | {f"{BASE}q_proj.weight": torch.zeros(32, 64)}
    (item,) = table(made, linear_class="autobitlinear").encoded
    assert (item.shape, item.bits, item.scales, list(item.parts)) == ((32, 64), 0, "", ["weight", "scale"])


def test_all_projections_are_rounded_but_those_that_are_kept() -> None:
    made = {f"model.layers.{at}.mlp.{name}_proj.weight": torch.zeros(8, 64) for at in (0, 1) for name in ("up", "down")}
    made |= {"lm_head.weight": torch.zeros(40, 64), "model.layers.0.norm.weight": torch.ones(64)}
    assert [item.name for item in table(made, **ONLINE).encoded] == [name for name in made if "_proj" in name]
    kept = table(made, **ONLINE, modules_to_not_convert=["model.layers.1", "down_proj"]).encoded
    assert [item.name for item in kept] == ["model.layers.0.mlp.up_proj.weight"]


@pytest.mark.parametrize(
    ("made", "config", "named"),
    [
        ({name: value for name, value in tensors().items() if "scale" not in name}, {}, "weight_scale"),
        (tensors() | {f"{BASE}q_proj.weight_scale": torch.ones(32)}, {}, "weight_scale"),
        (tensors(), {"modules_to_not_convert": "lm_head"}, "modules_to_not_convert"),
        ({"model.embed_tokens.weight": torch.zeros(40, 64)}, {}, "no tensor is stored in that form"),
    ],
)
def test_what_does_not_fit_is_refused(made: dict[str, torch.Tensor], config: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        table(made, **config)


def test_without_its_config_a_scale_belongs_to_nothing() -> None:
    with pytest.raises(CheckpointError, match="weight_scale belongs to a quantised weight"):
        decoded_table(tensors(), None)
    with pytest.raises(UnsupportedFormat, match="use_rms_norm"):
        table(tensors(), use_rms_norm=True)
