"""Text models within models that see or hear, whichever type they are of, against transformers 5."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from inference.errors import UnsupportedArchitecture
from inference.modelling.families.registry import family_builder
from inference.modelling.families.wrapped import OMNI, TEXT_TYPES
from tests.inference.modelling.harness import assert_matches_oracle, load_directory, read_view
from tests.inference.modelling.huggingface import make_wrapped_checkpoint, read_config
from tests.inference.modelling.test_network_attention import BASE
from tests.inference.modelling.wrapped import text_config, wrapped_config

FACTORS: dict[str, Callable[[dict[str, Any]], float]] = {
    "aya_vision": lambda text: text["logit_scale"],
    "cohere2_vision": lambda text: text["logit_scale"],
    "granite_speech": lambda text: 1 / text["logits_scaling"],
}
"""What transformers multiplies the text model's logits by where it is alone, and leaves out here."""
TYPES = sorted(TEXT_TYPES.keys() - {"internvl_chat", "llava_llama", "llava_mistral", "llava_qwen", *OMNI})
"""Those that transformers has, without those around a part of another type."""
OF_HUB = [name for name in TYPES if name != "qianfan_ocr"]
"""Types whose hub's names transformers writes as it reads them."""


@pytest.mark.parametrize("model_type", TYPES)
def test_the_text_model_in_the_names_of_transformers_5(model_type, tmp_path):
    _check(model_type, tmp_path, is_of_hub=False)


@pytest.mark.parametrize("model_type", OF_HUB)
def test_the_text_model_in_the_names_of_the_hub(model_type, tmp_path):
    _check(model_type, tmp_path, is_of_hub=True)


def _check(model_type, directory, *, is_of_hub):
    oracle = make_wrapped_checkpoint(wrapped_config(model_type), directory, is_of_hub=is_of_hub)
    config = read_config(directory)
    factor = FACTORS[model_type](config["text_config"]) if model_type in FACTORS else 1.0
    view = read_view(directory)
    family_builder(model_type)(view)
    assert [fact.value for fact in view.facts.facts if fact.name == "vision"] == ["left out"]
    assert_matches_oracle(load_directory(directory), lambda tokens: factor * oracle(tokens))


@pytest.mark.parametrize("naming", ["of transformers 5", "of the hub"])
@pytest.mark.parametrize("text", ["ministral3", "mistral4"])
def test_later_text_models_of_mistral_3(text, naming, tmp_path):
    config = wrapped_config("mistral3", text_config(text))
    oracle = make_wrapped_checkpoint(config, tmp_path, is_of_hub=naming == "of the hub", enlarged=True)
    assert any("vision_tower" in name for name in read_view(tmp_path).tensors)
    network = load_directory(tmp_path)
    assert network.spec.model_type == text and network.spec.layers[0].token_mixer.query_growth == (0.3, 16)
    assert_matches_oracle(network, oracle)


@pytest.mark.parametrize("text", ["mistral", "qwen2", "qwen3", "gemma2"])
def test_the_text_model_may_be_of_another_type(text, tmp_path):
    own = {"head_dim": 8} if text == "gemma2" else {}
    config = wrapped_config("llava", {"model_type": text, **BASE, **own})
    oracle = make_wrapped_checkpoint(config, tmp_path, is_of_hub=True)
    assert_matches_oracle(load_directory(tmp_path), oracle)


def test_a_text_model_of_an_unknown_type_is_refused(tmp_path):
    make_wrapped_checkpoint(wrapped_config("llava"), tmp_path, is_of_hub=True)
    config = read_config(tmp_path)
    config["text_config"]["model_type"] = "internlm2"
    with pytest.raises(UnsupportedArchitecture, match="the text model's type 'internlm2' is not supported"):
        load_directory(tmp_path, config)


def test_names_and_keys_of_internvls_authors(tmp_path):
    oracle = make_wrapped_checkpoint(wrapped_config("internvl"), tmp_path, is_of_hub=False)
    path = tmp_path / "model.safetensors"
    renamed = {
        "model.language_model.": "language_model.model.", "lm_head.": "language_model.lm_head.",
        "model.vision_tower.": "vision_model.", "model.multi_modal_projector.": "mlp1.",
    }  # fmt: skip
    tensors = load_file(path)
    for new, old in renamed.items():
        tensors = {
            old + name.removeprefix(new) if name.startswith(new) else name: value for name, value in tensors.items()
        }
    save_file(tensors, path)
    config = {
        "architectures": ["InternVLChatModel"], "model_type": "internvl_chat", "template": "internvl2_5",
        "llm_config": read_config(tmp_path)["text_config"], "vision_config": {}, "use_llm_lora": 0, "select_layer": -1,
    }  # fmt: skip
    assert_matches_oracle(load_directory(tmp_path, config), oracle)
    with pytest.raises(UnsupportedArchitecture, match="use_llm_lora is '16'"):
        load_directory(tmp_path, config | {"use_llm_lora": 16})


@pytest.mark.parametrize("model_type", ["hunyuan_vl", "paddleocr_vl"])
def test_keys_of_the_text_model_beside_the_others(model_type, tmp_path):
    """As the published files have them."""
    oracle = make_wrapped_checkpoint(wrapped_config(model_type), tmp_path, is_of_hub=True)
    stated = read_config(tmp_path)
    flat = stated.pop("text_config") | stated
    assert_matches_oracle(load_directory(tmp_path, flat), oracle)


@pytest.mark.parametrize(("inner", "outer"), [(True, False), (False, True)])
@pytest.mark.parametrize("is_tied", [True, False])
def test_a_head_is_read_where_it_is_stored_whatever_is_stated(inner, outer, is_tied, tmp_path):
    """Files of transformers 4 state it in ``text_config``, those of transformers 5 outside of it."""
    text = text_config("llama") | {"tie_word_embeddings": is_tied}
    oracle = make_wrapped_checkpoint(wrapped_config("llava", text), tmp_path, is_of_hub=True)
    config = read_config(tmp_path) | {"tie_word_embeddings": outer}
    config["text_config"]["tie_word_embeddings"] = inner
    assert_matches_oracle(load_directory(tmp_path, config), oracle)
    assert load_directory(tmp_path, config).spec.tie_word_embeddings == is_tied


def test_a_tower_beside_a_model_that_is_text_alone_is_refused(tmp_path):
    make_wrapped_checkpoint(wrapped_config("llava"), tmp_path, is_of_hub=False)
    with pytest.raises(UnsupportedArchitecture, match="tensors have no place in llama"):
        load_directory(tmp_path, read_config(tmp_path)["text_config"])
