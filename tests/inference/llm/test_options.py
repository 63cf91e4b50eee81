"""LLMOptions: what is refused, and that the site's settings are fields of it."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from blazr_site import settings
from inference.errors import InvalidRequest
from inference.llm import LLM, SamplingParams
from inference.llm.options import LLMOptions
from tests.inference.llm.harness import Checkpoint


@pytest.mark.parametrize(
    "values",
    [
        {"device": "tpu"},
        {"device": "cpu:1"},
        {"dtype": "int3"},
        {"state_dtype": "float16"},
        {"max_model_len": 0},
        {"max_model_len": "64"},
        {"max_num_seqs": 0},
        {"max_num_seqs": 2.0},
        {"block_size": 0},
        {"cache_bytes": -1},
        {"cache_bytes": "1GB"},
        {"max_adapters": -1},
    ],
)
def test_bad_options(values: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        LLMOptions(**values)
    assert caught.value.param in values


def test_a_cache_directory_may_be_a_text(checkpoint: Checkpoint, tmp_path: Path) -> None:
    assert LLMOptions(cache_dir=str(tmp_path)) == LLMOptions(cache_dir=tmp_path)  # type: ignore[arg-type]
    with LLM.from_pretrained(checkpoint.directory, device="cpu", max_model_len=64, cache_dir=str(tmp_path)) as llm:
        llm.generate([[5] * 40], SamplingParams(max_tokens=1))
    assert list(tmp_path.glob("v1/*/*.block"))


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
