"""Models around a text model: rules by its own type, what its config leaves out, and where it stands in the files."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModel, AutoModelForMultimodalLM

from inference.errors import UnsupportedArchitecture
from inference.modelling.families.config import CheckpointConfig, CheckpointView, Facts, TensorInfo, TensorTable
from inference.modelling.families.config_keys import check_config_keys
from inference.modelling.families.registry import FAMILIES, config_keys, family_builder
from inference.modelling.families.wrapped import ALIKE, CONFIG_KEYS, FLAT, LEFT_OUT, OMNI, TEXT_TYPES
from tests.inference.modelling.families.headers import llama, view_of
from tests.inference.modelling.test_network_attention import BASE, MOE

SHAPES = {f"language_model.{name}": shape for name, shape in llama(1).items()}
CONFIG: dict[str, Any] = {"num_attention_heads": 4, "max_position_embeddings": 64}


def test_every_type_has_keys_and_a_text_model_that_is_read() -> None:
    assert CONFIG_KEYS.keys() == TEXT_TYPES.keys() >= {*FLAT, *OMNI}
    assert {ALIKE.get(text, text) for text in TEXT_TYPES.values()} <= FAMILIES.keys()
    assert not (ALIKE.keys() & FAMILIES.keys())


def test_the_text_models_type_says_which_keys_it_may_have() -> None:
    stated = {"text_config": {"model_type": "qwen2", "max_window_layers": 3}}
    check_config_keys(view_of({}, stated), "llava", config_keys("llava"))
    stated["text_config"]["model_type"] = "granite"
    with pytest.raises(UnsupportedArchitecture, match=r"text_config\.max_window_layers"):
        check_config_keys(view_of({}, stated), "llava", config_keys("llava"))
    for unknown in ("internlm2", "llava"):
        stated["text_config"]["model_type"] = unknown
        with pytest.raises(UnsupportedArchitecture, match=f"the text model's type '{unknown}'"):
            check_config_keys(view_of({}, stated), "llava", config_keys("llava"))


def test_parts_beside_the_text_model_are_named_and_others_refused() -> None:
    beside = {"vision_tower.x.weight": (4, 4), "image_newline": (4,), "multi_modal_projector.linear_1.weight": (4, 4)}
    view = view_of({**SHAPES, **beside}, {"model_type": "llava", "text_config": CONFIG})
    assert family_builder("llava")(view).model_type == "llama"
    fact = next(fact for fact in view.facts.facts if fact.name == "vision")
    assert fact.evidence == "3 tensors beside the text model; pictures and sound aren't read"
    for other in ("value_head.weight", "language_model.model.layers.0.self_attn.gate.weight"):
        with pytest.raises(UnsupportedArchitecture, match="1 tensors have no place in llama"):
            family_builder("llava")(view_of({**SHAPES, other: (4, 4)}, {"model_type": "llava", "text_config": CONFIG}))


@pytest.mark.parametrize("model_type", OMNI)
def test_what_speaks_stays_in_the_files(model_type: str) -> None:
    text = {key: value for key, value in BASE.items() if key != "tie_word_embeddings"} | {"num_hidden_layers": 1}
    text |= {"head_dim": 8, **MOE, "num_experts": 4} if model_type == "qwen3_omni_moe" else {"layer_types": None}
    config = AutoConfig.for_model(f"{model_type}_thinker", text_config=text)
    with torch.device("meta"):
        model = AutoModelForMultimodalLM.from_config(config)
    shapes = {}
    for name, value in model.state_dict().items():
        hub = name.replace("model.language_model.", "model.").replace("model.visual.", "visual.")
        shapes[f"thinker.{hub.replace('model.audio_tower.', 'audio_tower.')}"] = tuple(value.shape)
    shapes |= {"talker.model.norm.weight": (4,), "token2wav.x.weight": (4, 4), "code2wav.x.weight": (4, 4)}
    whole = {"model_type": model_type, "thinker_config": config.to_dict(), "talker_config": {"x": 1}}
    spec = family_builder(model_type)(view_of(shapes, whole))
    assert (len(spec.layers), spec.parameters["embed_tokens.weight"].pieces[0].name) == (
        1, "thinker.model.embed_tokens.weight",
    )  # fmt: skip


def test_the_keys_of_llavas_authors_pass() -> None:
    stated = {
        "architectures": ["LlavaMistralForCausalLM"], "freeze_mm_mlp_adapter": False, "image_aspect_ratio": "anyres",
        "image_crop_resolution": 224, "image_grid_pinpoints": [[336, 672]], "image_split_resolution": 224,
        "mm_hidden_size": 1024, "mm_patch_merge_type": "spatial_unpad", "mm_projector_lr": None,
        "mm_projector_type": "mlp2x_gelu", "mm_use_im_patch_token": False, "mm_use_im_start_end": False,
        "mm_vision_select_feature": "patch", "mm_vision_select_layer": -2, "mm_vision_tower": "openai/clip",
        "mm_vision_tower_lr": 2e-06, "model_type": "llava_mistral", "sliding_window": None,
        "tokenizer_model_max_length": 4096, "tokenizer_padding_side": "right", "tune_mm_mlp_adapter": False,
        "unfreeze_mm_vision_tower": True, "use_mm_proj": True, **CONFIG,
    }  # fmt: skip
    beside = {"model.mm_projector.0.weight": (4, 4), "model.vision_tower.x.weight": (4, 4), "model.image_newline": (4,)}
    view = view_of({**llama(1), **beside}, stated)
    assert family_builder("llava_mistral")(view).model_type == "mistral"
    assert any(fact.name == "vision" for fact in view.facts.facts)


NOT_WHOLE = {"glm4v_moe_text", "qwen3_omni_moe_text"}
"""Types whose default width isn't a multiple of their default number of heads."""
EARLIER = {"persimmon"}
"""The base of its rotation has the default of transformers 4 here; published files state it."""
CLASSES = {
    "granite4_vision_text": "Granite4VisionTextModel", "paddleocr_vl_text": "PaddleOCRTextModel",
    "qwen2_5_omni_text": "Qwen2_5OmniThinkerTextModel",
}  # fmt: skip
"""Text models that ``AutoModel`` doesn't know."""


@pytest.mark.parametrize("text_type", sorted(LEFT_OUT.keys() - NOT_WHOLE - EARLIER))
def test_what_a_text_config_leaves_out_is_transformers_default(text_type: str) -> None:
    """Files of LLaVA hold only what differs from transformers' defaults."""
    config = AutoConfig.for_model(text_type)
    config.num_hidden_layers = 2
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[-2:]
    with torch.device("meta"):  # the sizes are those of the published models
        known = (
            getattr(transformers, CLASSES[text_type])._from_config if text_type in CLASSES else AutoModel.from_config
        )
        shapes = {name: value.shape for name, value in known(config).state_dict().items()}
    tensors = {f"model.language_model.{name}": TensorInfo("BF16", tuple(shape)) for name, shape in shapes.items()}
    full = config.to_dict() | {"model_type": text_type}
    bare = {key: full[key] for key in ("model_type", "num_hidden_layers", "layer_types") if full.get(key) is not None}
    specs = []
    for stated in (full, bare):
        values = {"model_type": "llava", "text_config": stated, "tie_word_embeddings": True}
        view = CheckpointView(CheckpointConfig(values), TensorTable(tensors), Facts())
        specs.append(family_builder("llava")(view))
    assert specs[0] == specs[1]
