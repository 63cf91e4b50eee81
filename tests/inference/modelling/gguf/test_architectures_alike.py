"""Architectures that compute what a family of another name does: its checkpoint, written by their names, as they do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from inference.errors import UnsupportedArchitecture
from inference.modelling.gguf.architectures import read_checkpoint
from tests.inference.modelling.gguf import converter
from tests.inference.modelling.gguf.dense_converter import DenseConverter
from tests.inference.modelling.gguf.test_architectures import load_gguf
from tests.inference.modelling.gguf.test_dense_configs import SIZES, read
from tests.inference.modelling.harness import assert_matches_oracle
from tests.inference.modelling.huggingface import make_checkpoint
from tests.inference.modelling.test_network_attention import BASE, LLAMA3, longrope
from tests.inference.modelling.test_network_dense import CASES as DENSE

LONG_CONTEXT_LLAMA3 = {**LLAMA3, "original_max_position_embeddings": 8192}
MINICPM = {
    "embedding_multiplier": 5.0, "residual_multiplier": 0.4, "logits_scaling": 3.0, "attention_multiplier": 8**-0.5,
}  # fmt: skip
UNSTATED = {
    "embedding_multiplier": 12.0, "residual_multiplier": 1.4 / math.sqrt(2), "logits_scaling": 32 / 256,
    "attention_multiplier": 8**-0.5,
}  # fmt: skip
SCALES = ("embedding_scale", "residual_scale", "logit_scale", "attention.scale")
ORION = {"use_parallel_residual": False, "qk_layernorm": False}
ROTATED = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}
ALPHA = {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 50.0, "factor": 1.0}


@dataclass(frozen=True)
class Alike:
    """A case.

    Attributes:
        model_type: The family that computes it.
        values: Of its config, beside the usual sizes.
        is_permuted: Whether the pairs that rotate are neighbours in the file.
        is_fused: Whether queries, keys and values are one tensor.
        left_out: Keys that the converter of this architecture doesn't write.
        keys: Writes those that only this one does.
    """

    model_type: str
    values: Mapping[str, Any] = field(default_factory=dict)
    is_permuted: bool = False
    is_fused: bool = False
    left_out: tuple[str, ...] = ()
    keys: Callable[[GGUFWriter], None] = lambda writer: None


CASES = {
    "exaone": Alike("llama", {"rope_parameters": LONG_CONTEXT_LLAMA3}),
    "exaone-tied": Alike("llama", {"tie_word_embeddings": True}),
    "minicpm": Alike("granite", MINICPM, is_permuted=True, left_out=("attention.scale",)),
    "minicpm-longrope": Alike(
        "granite",
        {**MINICPM, "rope_parameters": {**longrope(4, 256), "attention_factor": 1.0}},
        is_permuted=True,
        left_out=("attention.scale", "rope.scaling.original_context_length", "rope.scaling.attn_factor"),
    ),
    "minicpm-first-files": Alike("granite", UNSTATED, is_permuted=True, left_out=SCALES),
    "baichuan": Alike("llama", is_permuted=True),
    "qwen": Alike(
        "qwen2",
        {"num_key_value_heads": 4, "intermediate_size": 48},
        is_fused=True,
        left_out=("attention.head_count_kv", "feed_forward_length"),
        keys=lambda writer: writer.add_feed_forward_length(2 * 48),
    ),
    "xverse": Alike("llama", {"num_key_value_heads": 4}, is_permuted=True),
    "orion": Alike("stablelm", {**ORION, "rope_parameters": ROTATED}, left_out=("rope.dimension_count",)),
    "codeshell": Alike("starcoder2", {"sliding_window": None}, is_fused=True),
    "pangu-embedded": Alike("llama", {"attention_bias": True}),
    "hunyuan_vl": Alike(
        "hunyuan_v1_dense",
        {"head_dim": 8, "rope_parameters": ALPHA},
        left_out=("rope.freq_base",),
        keys=lambda writer: (writer.add_rope_freq_base(10000.0), writer.add_float32(ALPHA_KEY, 50.0)),
    ),
    "bailingmoe": Alike(
        "ernie4_5_moe",
        {**DENSE["ernie4_5_moe"][1], "moe_layer_start_index": 0, "use_bias": False, "head_dim": 16},
        keys=lambda writer: (writer.add_expert_weights_scale(1.0), writer.add_expert_weights_norm(True)),
    ),
    "bailingmoe2": Alike(
        "glm4_moe", {**DENSE["glm4_moe"][1], "attention_bias": False, "n_group": 4, "topk_group": 2}, is_fused=True
    ),
    "maincoder": Alike("hunyuan_v1_dense", {"head_dim": 8}, is_permuted=True),
    "paddleocr": Alike("llama", {"num_key_value_heads": 1, "head_dim": 16}),
}
ALPHA_KEY = "hunyuan_vl.rope.scaling.alpha"


class AlikeConverter(DenseConverter):
    """One conversion of a case."""

    def __init__(self, directory: Path, path: Path, case: Alike, *, drafts: int = 0) -> None:
        self.case = case
        super().__init__(directory, path, drafts=drafts)
        if case.is_fused:
            for name in [name for name in self.tensors if ".q_proj." in name]:
                parts = [self.tensors.pop(name.replace("q_proj", f"{letter}_proj")) for letter in "qkv"]
                self.tensors[name.replace("q_proj", "qkv_proj")] = np.concatenate(parts)

    def _changed(self, name: str, value: np.ndarray) -> list[tuple[str, np.ndarray]]:
        if self.case.is_permuted and name.endswith(("query_layernorm.weight", "key_layernorm.weight")):
            return [(name, converter.permuted(value, 1))]
        return super()._changed(name, value)

    def _keys(self) -> None:
        super()._keys()
        for key in self.case.left_out:
            self.writer.kv_data[0].pop(f"{self.writer.arch}.{key}", None)
        self.case.keys(self.writer)


@pytest.mark.parametrize("name", CASES)
def test_gives_the_same_logits(name, tmp_path, monkeypatch):
    case, arch = CASES[name], name.partition("-tied")[0].partition("-longrope")[0].partition("-first")[0]
    directory, oracle = make_checkpoint(AutoConfig.for_model(case.model_type, **(BASE | case.values)), tmp_path)
    monkeypatch.setitem(converter.ARCHITECTURES, case.model_type, arch)
    monkeypatch.setattr(converter, "PERMUTED", (case.model_type,) if case.is_permuted else ())
    path = tmp_path / "model.gguf"
    AlikeConverter(directory, path, case).run()
    found = read_checkpoint([path])
    assert (found.architecture, found.config["model_type"]) == (arch, case.model_type)
    assert_matches_oracle(load_gguf(path), oracle)


def test_a_layer_of_ling_2_that_drafts_is_the_models_head(tmp_path, monkeypatch):
    case = CASES["bailingmoe2"]
    directory, oracle = make_checkpoint(AutoConfig.for_model(case.model_type, **(BASE | case.values)), tmp_path)
    monkeypatch.setitem(converter.ARCHITECTURES, case.model_type, "bailingmoe2")
    tensors = load_file(directory / "model.safetensors")
    last = 1 + max(int(name.split(".")[2]) for name in tensors if name.startswith("model.layers."))
    head = {
        name.replace(f"layers.{last - 1}.", f"layers.{last}."): given.clone()
        for name, given in tensors.items()
        if f"layers.{last - 1}." in name
    }
    for part, size in (("eh_proj", (32, 64)), ("enorm", (32,)), ("hnorm", (32,)), ("final_layernorm", (32,))):
        head[f"model.layers.{last}.{part}.weight"] = torch.rand(size)
    save_file(head | tensors, directory / "model.safetensors")
    AlikeConverter(directory, tmp_path / "model.gguf", case, drafts=1).run()
    assert f"blk.{last}.layer_output_norm.weight" in read_checkpoint([tmp_path / "model.gguf"]).parts.tensors
    network = load_gguf(tmp_path / "model.gguf")
    assert network.spec.prediction_head is not None
    assert_matches_oracle(network, oracle)


def test_baichuan_with_a_bias_by_distance_is_refused(tmp_path):
    with pytest.raises(UnsupportedArchitecture, match=r"baichuan\.block_count is 40, .*ALiBi"):
        read(tmp_path, "baichuan", SIZES | {"block_count": 40})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"expert_weights_scale": 2.5}, r"expert_weights_scale is 2\.5; 1 is read"),
        ({"expert_weights_norm": False}, "bailingmoe.expert_weights_norm is false"),
        ({"expert_gating_func": 2}, r"expert_gating_func is 2; 1 \(softmax\) is read"),
    ],
)
def test_another_mixture_of_ling_is_refused(keys, message, tmp_path):
    with pytest.raises(UnsupportedArchitecture, match=message):
        read(tmp_path, "bailingmoe", SIZES | keys)


def test_the_first_qwen_states_the_width_of_two_matrices(tmp_path):
    keys = SIZES | {"feed_forward_length": 96, "attention.layer_norm_epsilon": 1e-6}
    found = read(tmp_path, "qwen", keys).config
    assert (found["intermediate_size"], found["rms_norm_eps"]) == (48, 1e-6)
