"""Mllama: the text model without the layers that attend to a picture, against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from inference.errors import TensorShapeMismatch
from inference.modelling.families.config import CheckpointConfig, CheckpointView, Facts
from inference.modelling.families.registry import config_keys, family_builder
from tests.inference.modelling.harness import assert_matches_oracle, load_directory, read_view
from tests.inference.modelling.huggingface import Oracle, make_wrapped_checkpoint, read_config
from tests.inference.modelling.test_network_attention import BASE, LLAMA3

TEXT = BASE | {"num_hidden_layers": 4, "cross_attention_layers": [1, 3], "rope_parameters": LLAMA3}
VISION = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_global_layers": 1, "attention_heads": 2,
    "image_size": 16, "patch_size": 8, "max_num_tiles": 4, "vision_output_dim": 32, "intermediate_layers_indices": [0],
}  # fmt: skip


def make(directory: Path, *, is_of_hub: bool = True, **text: Any) -> Oracle:
    config = AutoConfig.for_model("mllama", text_config=TEXT | text, vision_config=VISION)
    return make_wrapped_checkpoint(config, directory, is_of_hub=is_of_hub)


@pytest.mark.parametrize("is_of_hub", [False, True], ids=["of transformers 5", "of the hub"])
def test_the_text_model_matches_transformers(is_of_hub: bool, tmp_path: Path) -> None:
    oracle = make(tmp_path, is_of_hub=is_of_hub)
    network = load_directory(tmp_path)
    assert_matches_oracle(network, oracle)
    assert (len(network.spec.layers), network.spec.vocab_size) == (2, 99)


def test_what_is_left_out_is_a_fact(tmp_path: Path) -> None:
    make(tmp_path)
    view = read_view(tmp_path)
    family_builder("mllama")(view)
    facts = {fact.name: fact.value for fact in view.facts.facts}
    assert (facts["vision"], facts["layers left out"]) == ("left out", 2)


def test_layers_that_config_json_and_the_tensors_name_differently_are_refused(tmp_path: Path) -> None:
    make(tmp_path)
    view, config = read_view(tmp_path), read_config(tmp_path)
    for stated in ([1], None):  # None: transformers' default, of which there is number 3
        config["text_config"]["cross_attention_layers"] = stated
        with pytest.raises(TensorShapeMismatch, match=r"attend to a picture, the tensors say \[1, 3\]"):
            family_builder("mllama")(CheckpointView(CheckpointConfig(config), view.tensors, Facts()))


def test_every_key_of_transformers_is_in_the_table() -> None:
    keys, text = config_keys("mllama"), config_keys("mllama")["text_config"].rules
    config = AutoConfig.for_model("mllama").to_dict()
    assert not [key for key in config if key not in keys and key[0] != "_"]
    assert not [key for key in config["text_config"] if key not in text and key[0] != "_"]
