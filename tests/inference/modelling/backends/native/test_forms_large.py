"""The larger families on native kernels, which leave what they don't have to PyTorch: the logits of transformers."""

from __future__ import annotations

import pytest

from inference.modelling.backends.backend import pack_weights
from inference.modelling.backends.native import library
from tests.inference.modelling.harness import assert_matches_oracle, load_directory
from tests.inference.modelling.huggingface import make_checkpoint
from tests.inference.modelling.test_network_dense import CASES as DENSE_CASES
from tests.inference.modelling.test_network_dense import tiny_config
from tests.inference.modelling.test_network_large import CASES
from tests.inference.modelling.test_network_linear import CASES as LINEAR_CASES
from tests.inference.modelling.test_network_recurrent import make_model, oracle_of

pytestmark = pytest.mark.skipif(not library.is_available(), reason="needs the native library")
NAMES = (
    "gemma4_text", "gemma3n_text", "llama4_text", "deepseek_v32", "mimo_v2_flash", "longcat_flash",
    "minimax_m3_vl_text", "axk1", "axk2-groups-biases", "glm_moe_dsa", "hy_v4", "deepseek_v4",
    "bitnet", "diffllama", "jetmoe", "xglm", "mistral4", "step3p5",
    "molmo2_text", "muse_glimmer_text", "muse_spark_text", "mistral_large4_text", "dots3_note_text",
    "dots3_note_text-all-seen-or-windows-biases",
)  # fmt: skip
MIXED = (
    "lfm3", "zaya", "zaya-biases-kernels-untied", "qwen4_exp", "qwen4_exp-two-tokens-sigmoid-tied", "inkling",
    "inkling-whole-vocabulary-unscaled-scores", "inkling2", "inkling2-usual-layers-each-a-block-one-tap",
    "glm5_next", "glm5_next-decays-without-bound-groups-windows-of-eight",
)  # fmt: skip
"""Families of which some layers are recurrent."""


@pytest.mark.parametrize("name", NAMES)
def test_kernels_give_the_logits_of_transformers(name, tmp_path):
    directory, oracle = make_checkpoint(tiny_config(*(CASES | DENSE_CASES)[name]), tmp_path)
    network = load_directory(directory)
    assert pack_weights(network) > 0
    assert_matches_oracle(network, oracle, tolerance=2e-4)


@pytest.mark.parametrize("name", MIXED)
def test_kernels_give_the_logits_of_mixed_families(name, tmp_path):
    model = make_model(*LINEAR_CASES[name])
    model.save_pretrained(tmp_path)
    network = load_directory(tmp_path)
    assert pack_weights(network) > 0
    assert_matches_oracle(network, oracle_of(model), tolerance=2e-4)
