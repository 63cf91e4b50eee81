"""LLMOptions: what is refused, and that the site's settings are fields of it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from blazr_site import settings
from inference.errors import InvalidRequest
from inference.llm.options import LLMOptions


@pytest.mark.parametrize(
    "values", [{"device": "tpu"}, {"device": "cpu:1"}, {"dtype": "int3"}, {"max_model_len": 0}, {"cache_bytes": -1}]
)
def test_bad_options(values: Any) -> None:
    with pytest.raises(InvalidRequest):
        LLMOptions(**values)


def test_the_site_sets_fields_of_the_options() -> None:
    assert settings.BLAZR_LLM_OPTIONS.keys() <= {field.name for field in fields(LLMOptions)}
    assert LLMOptions(**settings.BLAZR_LLM_OPTIONS) == LLMOptions(), "the defaults are the same"


@pytest.mark.parametrize(("device", "kind"), [("cpu", "cpu"), ("cuda", "cuda"), ("cuda:1", "cuda")])
def test_kind_of_device(device: str, kind: str) -> None:
    assert LLMOptions(device=device).device_kind == kind


@pytest.mark.parametrize(
    ("num_active", "tokens"), [(10**6, 512), (2 * 10**8, 512), (5 * 10**8, 256), (10**9, 128), (10**11, 128)]
)
def test_a_step_on_a_cpu_has_fewer_tokens_of_a_larger_model(num_active: int, tokens: int) -> None:
    assert LLMOptions().step_tokens(num_active) == tokens
    assert LLMOptions(device="cuda").step_tokens(num_active) == 512
    assert LLMOptions(max_num_batched_tokens=40).step_tokens(num_active) == 64, "every running request decodes"
    assert LLMOptions(max_num_batched_tokens=80).step_tokens(num_active) == 80
