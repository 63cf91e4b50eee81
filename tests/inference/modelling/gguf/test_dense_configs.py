"""Attention decoders that differ from Llama in names and options: a checkpoint written as GGUF gives its logits."""

from __future__ import annotations

import json

import numpy as np
import pytest
from transformers import AutoConfig

from inference.errors import TensorShapeMismatch, UnsupportedArchitecture
from inference.modelling.gguf.architectures import read_checkpoint
from tests.inference.modelling.gguf.converter import ARCHITECTURES, NAMED_AS, convert
from tests.inference.modelling.gguf.dense_converter import DenseConverter, convert_dense
from tests.inference.modelling.gguf.test_architectures import load_gguf
from tests.inference.modelling.gguf.writer import Tensor, value, write_gguf
from tests.inference.modelling.harness import assert_matches_oracle
from tests.inference.modelling.huggingface import make_checkpoint
from tests.inference.modelling.test_network_attention import BASE, MOE
from tests.inference.modelling.test_network_dense import CASES, STRETCHED

MINISTRAL = {**STRETCHED, "llama_4_scaling_beta": 0.2, "mscale": 1.0, "mscale_all_dim": 0.7}
CHANGES = {
    "apertus": {},
    "apertus-unscaled": {},
    "arcee": {},
    "arcee-biases": {},
    "cohere": {},
    "cohere-qk-norm-biases-untied": {"tie_word_embeddings": True},
    "cohere2": {"layer_types": None, "tie_word_embeddings": True},
    "ernie4_5": {},
    "ernie4_5-biases-tied": {},
    "exaone4": {},
    "exaone4-all-full": {},
    "gemma": {},
    "glm": {},
    "glm4": {},
    "granite": {},
    "granite-biases-tied": {},
    "hunyuan_v1_dense": {},
    "hunyuan_v1_dense-alpha": {},
    "jais2": {},
    "nemotron": {},
    "nemotron-biases": {},
    "olmo": {},
    "olmo2": {},
    "olmo3": {},
    "phi": {"num_key_value_heads": 4},
    "seed_oss": {},
    "seed_oss-other-biases": {},
    "smollm3": {"num_hidden_layers": 5, "no_rope_layers": None},
    "stablelm": {},
    "stablelm-parallel-qk-norm": {},
    "starcoder2": {"sliding_window": None},
    "starcoder2-without-biases": {},
    "ministral3": {},
    "ministral3-magnitude": {"rope_parameters": MINISTRAL},
    "minicpm3": {"dim_model_base": 256, "scale_emb": 12, "scale_depth": 1.4},
    "internlm3": {},
    "internlm3-biases": {},
}
"""What a GGUF file can't state, as llama.cpp has it; command-r is always tied."""


def checkpoint(name: str, directory, **changes):
    model_type, values = CASES[name if name in CASES else name.partition("-")[0]]
    config = AutoConfig.for_model(model_type, **(BASE | values | changes))
    return make_checkpoint(config, directory)


@pytest.mark.parametrize("name", CHANGES)
def test_dense_decoders_give_the_same_logits(name, tmp_path):
    directory, oracle = checkpoint(name, tmp_path, **CHANGES[name])
    assert_matches_oracle(load_gguf(convert_dense(directory, tmp_path / "model.gguf")), oracle)


@pytest.mark.parametrize(
    "name",
    [
        "phi", "glm", "glm4", "apertus", "cohere", "exaone4", "gemma", "granite", "hunyuan_v1_dense",
        "nemotron-biases", "olmo2", "seed_oss", "smollm3", "starcoder2",
    ],
)  # fmt: skip
def test_queries_keys_and_values_may_be_one_tensor(name, tmp_path):
    """In the first files of Phi-2 and GLM-4, and in all that are converted so."""
    sizes = {"num_key_value_heads": 4 if name == "phi" else 2}
    directory, oracle = checkpoint(name, tmp_path, **CHANGES[name] | sizes)
    path = convert_dense(directory, tmp_path / "model.gguf", fused_qkv=True)
    assert "blk.1.attn_qkv.weight" in read_checkpoint([path]).parts.tensors
    assert_matches_oracle(load_gguf(path), oracle)


@pytest.mark.parametrize("stretch", [None, STRETCHED])
def test_mistral_3_is_llama_under_another_name(stretch, tmp_path):
    values = {"head_dim": 8, "sliding_window": None} | ({"rope_parameters": stretch} if stretch else {})
    directory, oracle = make_checkpoint(AutoConfig.for_model("mistral", **(BASE | values)), tmp_path)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"model_type": "mistral3"}))
    path = convert_dense(directory, tmp_path / "model.gguf")
    assert read_checkpoint([path]).architecture == "mistral3"
    assert_matches_oracle(load_gguf(path), oracle)


OTHERS = {
    "internlm2": ("llama", "llama", {}),
    "qwen2vl": ("qwen2", "qwen2", {}),
    "qwen3vl": ("qwen3", "qwen3", {"head_dim": 16}),
    "qwen3vlmoe": ("qwen3_moe", "qwen3moe", {**MOE, "num_experts": 8, "head_dim": 16, "norm_topk_prob": True}),
}
"""Architectures that compute what another one does, for text: its type, and the architecture by which it is written."""


@pytest.mark.parametrize("arch", OTHERS)
def test_others_are_read_as_what_they_compute(arch, tmp_path, monkeypatch):
    model_type, like, values = OTHERS[arch]
    directory, oracle = make_checkpoint(AutoConfig.for_model(model_type, **(BASE | values)), tmp_path)
    monkeypatch.setitem(ARCHITECTURES, model_type, arch)
    monkeypatch.setitem(NAMED_AS, arch, like)
    path = convert(directory, tmp_path / "model.gguf")
    found = read_checkpoint([path])
    assert (found.architecture, found.config["model_type"]) == (arch, model_type)
    assert_matches_oracle(load_gguf(path), oracle)


def read(tmp_path, arch: str, keys: dict, *tensors: Tensor):
    path = tmp_path / "m.gguf"
    write_gguf(path, {"general.architecture": arch} | {f"{arch}.{key}": given for key, given in keys.items()}, tensors)
    return read_checkpoint([path])


class WithDraft(DenseConverter):
    """Writes a copy of the last layer behind it, as one that drafts."""

    def _keys(self) -> None:
        self.num_layers += 1
        super()._keys()
        self.writer.add_nextn_predict_layers(1)

    def _tensors(self) -> dict[str, np.ndarray]:
        found = super()._tensors()
        last, next_ = (f"blk.{self.num_layers - place}." for place in (2, 1))
        copies = {name.replace(last, next_): given for name, given in found.items() if last in name}
        return found | copies | {f"{next_}nextn.{name}.weight": np.ones(32) for name in ("enorm", "hnorm")}


def test_a_layer_that_the_family_does_not_know_is_left_in_the_file(tmp_path):
    directory, oracle = checkpoint("exaone4", tmp_path)
    path = tmp_path / "model.gguf"
    WithDraft(directory, path).run()
    found = read_checkpoint([path])
    assert "blk.4.nextn.enorm.weight" in found.parts.tensors
    assert not any(name.startswith("model.layers.4.") for name in found.tensors)
    assert_matches_oracle(load_gguf(path), oracle)


@pytest.mark.parametrize("arch", ["exaone4", "cohere2moe"])
def test_layers_that_draft_are_not_counted(arch, tmp_path):
    keys = SIZES | {"nextn_predict_layers": 1, "attention.sliding_window": 8}
    found = read(tmp_path, arch, keys, Tensor("blk.3.nextn.enorm.weight", (2,), bytes(8))).config
    assert (found["num_hidden_layers"], len(found["layer_types"])) == (3, 3)


SIZES = {"block_count": 4, "embedding_length": 64, "attention.head_count": 4}


def test_the_larger_exaone_4_has_windows_without_a_word(tmp_path):
    found = read(tmp_path, "exaone4", SIZES | {"block_count": 64}).config
    assert found["sliding_window"] == 4096
    assert found["layer_types"].count("full_attention") == 16
    assert read(tmp_path, "exaone4", SIZES).config["sliding_window"] is None


def test_what_the_file_leaves_out_is_as_llama_cpp_has_it(tmp_path):
    found = read(tmp_path, "glm4", SIZES).config
    assert (found["rope_theta"], found["partial_rotary_factor"]) == (10000.0, 1.0)
    assert read(tmp_path, "command-r", SIZES).config["logit_scale"] == 1.0


def test_minicpm_3_stretches_from_the_context_that_it_states(tmp_path):
    factors = [Tensor(f"rope_factors_{name}.weight", (2,), value([1.0, 2.0], "f32")[-8:]) for name in ("long", "short")]
    found = read(tmp_path, "minicpm3", SIZES | {"context_length": 32768}, *factors).config["rope_scaling"]
    assert (found["rope_type"], found["attention_factor"]) == ("longrope", 1.0)
    assert found["original_max_position_embeddings"] == 32768


@pytest.mark.parametrize(
    ("arch", "keys", "message"),
    [
        ("glm4", {"rope.dimension_sections": value([8, 12, 12, 0], "i32")}, "positions are triples"),
        ("granite", {"rope.scaling.finetuned": False}, "attention has no positions"),
    ],
)
def test_what_would_be_computed_otherwise_is_refused(arch, keys, message, tmp_path):
    with pytest.raises(UnsupportedArchitecture, match=message):
        read(tmp_path, arch, SIZES | keys)


def test_a_fused_tensor_has_rows_of_whole_heads(tmp_path):
    tensor = Tensor("blk.0.attn_qkv.weight", (50, 2), bytes(400))
    with pytest.raises(TensorShapeMismatch, match=r"attn_qkv\.weight has 50 rows"):
        read(tmp_path, "phi2", SIZES, tensor)


def test_norms_of_heads_are_a_stack(tmp_path):
    tensor = Tensor("blk.0.attn_q_norm.weight", (8,), bytes(32))
    with pytest.raises(TensorShapeMismatch, match=r"attn_q_norm\.weight has shape \[8\]"):
        read(tmp_path, "stablelm", SIZES, tensor)
