"""What config.json alone says of a model: read, refused, or to be decided by the tensors."""

from __future__ import annotations

import pytest

from inference.errors import CheckpointError
from models_registry.detection.config_check import check_config
from tests.models_registry.detection.builders import LLAMA_CONFIG


@pytest.mark.parametrize(
    ("config", "model_type"),
    [
        (LLAMA_CONFIG, "llama"),
        ({"architectures": ["LlamaForCausalLM"]}, "llama"),
        ({"model_type": "oxidizr"}, "oxidizr"),
        ({"hidden_size": 16}, ""),
        ({}, ""),
    ],
)
def test_what_is_read(config, model_type):
    assert check_config(config) == model_type


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            {"model_type": "unheard_of"},
            r"'unheard_of' is not supported; \d+ types are supported \([^)]*\)\.$",
        ),
        ({"model_type": "lama"}, "The nearest is llama"),
        ({"model_type": {"a": 1}}, "is not supported"),
        ({"architectures": ["T5Model"]}, "'T5Model' is not supported"),
        (LLAMA_CONFIG | {"new_kind_of_norm": 1}, "new_kind_of_norm"),
        (LLAMA_CONFIG | {"is_encoder_decoder": True}, "is_encoder_decoder"),
        (LLAMA_CONFIG | {"quantization_config": {"quant_method": "aqlm"}}, "quantised with 'aqlm', which is not read"),
        (
            {"model_type": "kimi_k25", "text_config": {"quantization_config": {"quant_method": "aqlm"}}},
            "quantised with 'aqlm'",
        ),
        ({"model_type": "\x1b[2J"}, "is not supported"),
    ],
)
def test_what_is_refused(config, words):
    with pytest.raises(CheckpointError, match=words) as raised:
        check_config(config)
    assert "\x1b" not in raised.value.message
