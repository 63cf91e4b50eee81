"""Loading quantised safetensors in their own codes: the logits of their values, the memory of the file."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from inference.modelling.backends import backend
from inference.modelling.backends.backend import Backend
from inference.modelling.layers.coded import JoinedRows, PermutedInputs
from inference.modelling.layers.linear import network_bytes
from inference.modelling.quantisation import Quant, coded_bytes, coded_parameters, weights_bytes
from inference.modelling.weights.loader import load_network
from models_registry.detection.inspection import Inspection, inspect_checkpoint
from tests.inference.modelling.encodings.checkpoints import write_pair
from tests.inference.modelling.encodings.formats import FORMATS
from tests.inference.modelling.harness import SequenceRunner

SIZES = {
    "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "intermediate_size": 128, "tie_word_embeddings": False,
}  # fmt: skip
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True}
CONFIGS = {
    "llama": transformers.LlamaConfig(**SIZES),
    "experts": transformers.Qwen3MoeConfig(**SIZES | MOE),
}
EXPANDED = ("hqq-columns",)
KEPT = [name for name in FORMATS if name not in EXPANDED]


def load(found: Inspection, quant: Quant, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    return load_network(found.spec, found.weight_paths, dtype=dtype, quant=quant, pack=True)


def logits(found: Inspection, quant: Quant) -> torch.Tensor:
    with torch.inference_mode():
        return SequenceRunner(load(found, quant)).step([("a", list(range(40)))])["a"].float()


@pytest.fixture(params=["native", "plain"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the kernels and without."""
    if request.param == "plain":
        monkeypatch.setattr(backend, "choose_backend", lambda device, dtype: Backend(torch.device(device), dtype))
        monkeypatch.setattr("inference.modelling.weights.loader.choose_backend", backend.choose_backend)
    return str(request.param)


def share_of(name: str, kernels: str) -> float:
    """What may differ: scales, offsets and tables in few bits; with the kernels also activations, in 8 or 16 bits.

    A product differs by a tenth of it (0.5 % with activations in 8 bits); these layers of random weights add to that,
    most where there are four levels.
    """
    if kernels == "native" and "8" not in name and name != "fbgemm":
        return 1e-1 if name.endswith("2") else 5e-2
    return 1e-2 if name.startswith(("nf4", "fp4")) else 2e-3


@pytest.mark.parametrize("name", KEPT)
def test_codes_give_the_logits_of_their_values(name: str, tmp_path: Path, kernels: str) -> None:
    for model in ("llama", "experts") if name in ("gptq-4", "awq", "compressed-w8a8", "nf4", "fbgemm") else ("llama",):
        quantised, _ = write_pair(CONFIGS[model], tmp_path / model, FORMATS[name])
        found = inspect_checkpoint(quantised)
        matrices = {key for key in found.spec.parameters if "_proj" in key}
        assert coded_parameters(found.spec, "auto").keys() == matrices
        assert not coded_parameters(found.spec, "none")
        expected = logits(found, "none")
        assert float(expected.std()) > 0.3, "weights so small that no mistake would show"
        assert (logits(found, "auto") - expected).norm() < share_of(name, kernels) * expected.norm()


@pytest.mark.parametrize("name", KEPT)
def test_memory_is_that_of_the_file_and_is_planned(name: str, tmp_path: Path, kernels: str) -> None:
    quantised, _ = write_pair(CONFIGS["llama"], tmp_path, FORMATS[name])
    found = inspect_checkpoint(quantised)
    tensors = load_file(found.weight_paths[0])
    stored = sum(tensors[part].nbytes for item in found.spec.encoded for part in item.parts.values())
    shapes = found.spec.parameter_shapes()
    kept = sum(
        coded_bytes((part.rows, shapes[key][-1]), part.form)
        for key, rows in coded_parameters(found.spec, "auto").items()
        for part in rows
    )
    most = 1.2 if name == "gptq-2" else 1.15  # offsets weigh most beside few bits
    assert kept <= most * stored
    planned = weights_bytes(found.spec, "bfloat16", "auto")
    assert planned < weights_bytes(found.spec, "bfloat16", "none") - math.prod(shapes["lm_head.weight"])
    blocks = 1.4 if kernels == "native" else 1.0  # rows that fill the last block of small matrices
    assert network_bytes(load(found, "auto", torch.bfloat16)) <= blocks * planned


@pytest.mark.parametrize("name", EXPANDED)
def test_what_no_product_takes_becomes_floats_and_is_said(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    quantised, _ = write_pair(CONFIGS["llama"], tmp_path, FORMATS[name])
    found = inspect_checkpoint(quantised)
    with caplog.at_level(logging.INFO):
        assert torch.equal(logits(found, "auto"), logits(found, "none"))
    assert "become floats, as no product takes their codes" in caplog.text
    assert any("14 of 14 quantised weights" in warning for warning in found.warnings)


def test_parts_of_a_joined_matrix_have_their_own_order_of_inputs(tmp_path: Path, kernels: str) -> None:
    quantised, _ = write_pair(CONFIGS["llama"], tmp_path, FORMATS["gptq-act-order"])
    network = load(inspect_checkpoint(quantised), "auto")
    joined = [module.packed for module in network.modules() if isinstance(getattr(module, "packed", None), JoinedRows)]
    assert len(joined) == 4, "q, k and v, and gate and up, of two layers"
    for matrix in joined:
        orders = [part.order.tolist() for part in matrix.parts if isinstance(part, PermutedInputs)]
        assert len({tuple(order) for order in orders}) == len(matrix.parts)


def test_experts_with_an_order_of_inputs_each_become_floats(tmp_path: Path) -> None:
    quantised, _ = write_pair(CONFIGS["experts"], tmp_path, FORMATS["gptq-act-order"])
    found = inspect_checkpoint(quantised)
    kept = coded_parameters(found.spec, "auto")
    assert kept
    assert not any("experts" in name for name in kept)
    assert (logits(found, "auto") - logits(found, "none")).norm() < 5e-2 * logits(found, "none").norm()
