"""Decoders from before Llama: a checkpoint written as GGUF gives its logits."""

from __future__ import annotations

import pytest

from inference.modelling.gguf.architectures import read_checkpoint
from tests.inference.modelling.gguf.early_converter import convert_early
from tests.inference.modelling.gguf.test_architectures import load_gguf
from tests.inference.modelling.gguf.test_dense_configs import read
from tests.inference.modelling.harness import assert_matches_oracle
from tests.inference.modelling.huggingface import make_checkpoint
from tests.inference.modelling.test_network_dense import CASES, tiny_config

CHANGES = {
    "bloom": {},
    "falcon": {},
    "falcon-groups-one-norm": {},
    "falcon-groups-two-norms": {"bias": False},
    "gpt2": {},
    "gpt_bigcode": {},
    "gpt_neox": {},
    "gpt_neox-one-after-the-other": {},
    "mpt": {},
    "mpt-six-heads-clip-scale": {
        "attn_config": {"clip_qkv": 0.7, "softmax_scale": None},
    },
}
"""What a GGUF file can't state, as llama.cpp has it."""


@pytest.mark.parametrize("name", CHANGES)
def test_early_decoders_give_the_same_logits(name, tmp_path):
    model_type, values = CASES[name]
    directory, oracle = make_checkpoint(tiny_config(model_type, values | CHANGES[name]), tmp_path)
    assert_matches_oracle(load_gguf(convert_early(directory, tmp_path / "model.gguf")), oracle)


def test_falcons_second_norm_is_the_attentions(tmp_path):
    model_type, values = CASES["falcon-groups-two-norms"]
    directory, _ = make_checkpoint(tiny_config(model_type, values), tmp_path)
    found = read_checkpoint([convert_early(directory, tmp_path / "model.gguf")])
    assert found.config["num_ln_in_parallel_attn"] == 2
    assert {"transformer.h.0.ln_attn.weight", "transformer.h.0.ln_mlp.weight"} <= found.tensors.keys()


def test_mpt_without_alibi_is_stated(tmp_path):
    sizes = {"block_count": 1, "embedding_length": 64, "attention.head_count": 4}
    assert read(tmp_path, "mpt", sizes).config["attn_config"] == {"alibi": False}
    stated = read(tmp_path, "mpt", sizes | {"attention.max_alibi_bias": 8.0, "attention.clamp_kqv": 6.0})
    assert stated.config["attn_config"] == {"alibi": True, "alibi_bias_max": 8.0, "clip_qkv": 6.0}
