"""The order of an X-LoRA's modules is that in which transformers makes them; other families need an ordering."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from inference.modelling.lora.xlora_plan import _ORDER, ORDERED_FAMILIES, _place_in_model

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 64,
    "pad_token_id": 0,
}


@pytest.mark.parametrize("family", sorted(ORDERED_FAMILIES))
def test_modules_have_the_numbers_that_peft_gives_them(family: str) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SIZES))
    names = [name for name, _ in model.named_modules() if name.rpartition(".")[2] in _ORDER]
    assert len(names) == 12 * 7 + 2
    assert sorted(names, key=_place_in_model) == names
