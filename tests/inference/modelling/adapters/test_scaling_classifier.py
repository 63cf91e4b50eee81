"""The classifier of an X-LoRA against a plain computation: matrices, softmax, the choice of adapters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from inference.modelling.adapters.scaling_classifier import ScalingClassifier
from inference.modelling.lora.xlora_config import XLoraConfig
from inference.modelling.lora.xlora_plan import LinearPlan, XLoraPlan

PLAIN = XLoraConfig.from_dict({"hidden_size": 4, "adapters": ["a", "b", "c"]}, "file", is_peft=True)
GENERATOR = torch.Generator().manual_seed(0)
TENSORS = {
    "first": torch.randn(5, 4, generator=GENERATOR),
    "first_bias": torch.randn(5, generator=GENERATOR),
    "last": torch.randn(6, 5, generator=GENERATOR),
}
HIDDEN = torch.randn(7, 4, generator=GENERATOR)


def classifier(**values: Any) -> ScalingClassifier:
    linears = (LinearPlan("first", "first_bias"), LinearPlan("last", None))
    plan = XLoraPlan(replace(PLAIN, **values), ((),) * 3, linears, 2, 0)  # type: ignore[arg-type]
    return ScalingClassifier(plan, TENSORS.__getitem__, torch.device("cpu"))


def logits(*, has_relu: bool = True) -> torch.Tensor:
    inner = HIDDEN @ TENSORS["first"].T + TENSORS["first_bias"]
    return ((inner.relu() if has_relu else inner) @ TENSORS["last"].T).view(7, 2, 3)


def test_scalings_are_a_softmax_over_adapters() -> None:
    torch.testing.assert_close(classifier().scalings(HIDDEN), logits().softmax(-1))
    found = classifier(temperature=0.25, weight=2.0, has_relu=False).scalings(HIDDEN)
    torch.testing.assert_close(found, 2 * (4 * logits(has_relu=False)).softmax(-1))
    torch.testing.assert_close(classifier(has_softmax=False).scalings(HIDDEN), logits())
    assert classifier().nbytes == 4 * (20 + 5 + 30)


def test_the_adapters_that_are_not_chosen_get_nothing() -> None:
    found = classifier(top_k=1).scalings(HIDDEN)
    assert (found > 0).sum() == 14
    torch.testing.assert_close(found.sum(-1), logits().softmax(-1).amax(-1))
    both = classifier(top_k=2, has_softmax=False, has_topk_softmax=True).scalings(HIDDEN)
    assert ((both > 0).sum(-1) == 2).all()
    torch.testing.assert_close(both.sum(-1), torch.ones(7, 2))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, [0.0, 0.0, 0.0]),
        ({"pass_value": 0.5, "weight": 3.0}, [1.5, 1.5, 1.5]),
        ({"has_topk_softmax": True, "top_k": 2}, [0.0, 0.0, 0.0]),
    ],
)
def test_the_first_pass_scales_all_alike(values: dict[str, Any], expected: list[float]) -> None:
    found = classifier(**values)
    assert found.first_scalings(2).tolist() == [[expected] * 2] * 2
    assert found.reads_adapted_rows is ("pass_value" in values)
