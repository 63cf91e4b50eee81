"""Configurations of X-LoRAs: defaults of both forms, and members that can't be."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CheckpointError
from inference.modelling.lora.xlora_config import Ordering, XLoraConfig

LEAST = {"hidden_size": 8, "adapters": {"a": "x/a", "b": "x/b"}}


def test_what_is_not_said_is_pefts_default() -> None:
    found = XLoraConfig.from_dict(LEAST, "f", is_peft=True)
    assert (found.depth, found.width, found.top_k) == (1, 2048, None)
    assert found.has_softmax and not found.is_layerwise and not found.has_topk_softmax
    assert (found.pass_value, found.weight, found.temperature, found.has_relu) == (0.0, 1.0, 1.0, True)
    assert found.adapters == (("a", "x/a"), ("b", "x/b"))
    old = XLoraConfig.from_dict(LEAST | {"base_model_id": "b/c", "use_bias": True}, "f", is_peft=False)
    assert not old.has_relu and old.base_model == "b/c"
    assert XLoraConfig.from_dict(LEAST | {"scaling_pass_value": None}, "f", is_peft=True).pass_value == 0.5
    assert XLoraConfig.from_dict(LEAST | {"adapters": ["a"]}, "f", is_peft=True).adapters == (("a", "a"),)


@pytest.mark.parametrize(
    "values",
    [
        {"adapters": None},
        {"adapters": ["a", "a"]},
        {"adapters": ["a", 1]},
        {"adapters": {f"a{number}": "x" for number in range(65)}},
        {"hidden_size": "8"},
        {"xlora_size": 0},
        {"enable_softmax": 1},
        {"scaling_pass_value": True},
        {"softmax_temperature": -1.0},
        {"softmax_temperature": float("nan")},
        {"top_k_lora": 0},
        {"layer_gate": [1]},
    ],
)
def test_members_that_can_not_be_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"^f has "):
        XLoraConfig.from_dict(LEAST | values, "f", is_peft=True)


@pytest.mark.parametrize("layers", [[], {"a": 1}, {"a": 0, "b": 0}, {"a": "0"}, {"a": True, "b": 0}])
def test_the_numbers_of_an_ordering_are_those_from_0_on(layers: Any) -> None:
    if layers == []:
        assert Ordering.from_dict({"layers": layers}, "f").layers == {}
        return
    with pytest.raises(CheckpointError, match="numbers from 0 on"):
        Ordering.from_dict({"layers": layers}, "f")
