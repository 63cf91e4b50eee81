"""Loading GGUF files in their own codes: the logits of their values, the memory of the file."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader
from transformers import LlamaConfig, Qwen3MoeConfig

from inference.modelling.backends import backend
from inference.modelling.backends.backend import Backend
from inference.modelling.layers.coded import JoinedRows, PlainCoded
from inference.modelling.layers.linear import network_bytes
from inference.modelling.quantisation import weights_bytes
from inference.modelling.weights.loader import load_network
from models_registry.detection.inspection import inspect_checkpoint
from tests.inference.modelling.gguf.converter import Converter, convert
from tests.inference.modelling.harness import SequenceRunner
from tests.inference.modelling.huggingface import make_checkpoint

SIZES = {
    "vocab_size": 99, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": None,
}  # fmt: skip
CONFIGS = {
    "llama": LlamaConfig(**SIZES),  # rows of q and k are permuted
    "tied": LlamaConfig(**SIZES | {"tie_word_embeddings": True}),
    "experts": Qwen3MoeConfig(
        **SIZES | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True}
    ),
}
TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4")


def logits(spec, path: Path, quant: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    network = load_network(spec, [path], dtype=dtype, quant=quant, pack=True)
    return SequenceRunner(network).step([("a", list(range(40)))])["a"].float()


def assert_near(found: torch.Tensor, expected: torch.Tensor, share: float) -> None:
    assert (found - expected).norm() < share * expected.norm()


@pytest.fixture(params=["native", "plain"])
def kernels(request, monkeypatch) -> str:
    """With the kernels and without."""
    if request.param == "plain":
        monkeypatch.setattr(backend, "choose_backend", lambda device, dtype: Backend(torch.device(device), dtype))
        monkeypatch.setattr("inference.modelling.weights.loader.choose_backend", backend.choose_backend)
    return request.param


@pytest.mark.parametrize("kind", TYPES)
def test_codes_give_the_logits_of_their_values(kind, tmp_path, kernels):
    for name in ("llama", "experts") if kind in ("Q4_1", "Q8_0") else ("llama",):
        directory, _ = make_checkpoint(CONFIGS[name], tmp_path / name)
        path = convert(directory, tmp_path / f"{name}.gguf", kind)
        spec = inspect_checkpoint(path).spec
        # What rounding activations to bytes costs; to 16 bits it costs next to nothing.
        share = 1e-6 if kernels == "plain" else 1e-3 if kind == "Q8_0" else 5e-2
        assert_near(logits(spec, path, "auto"), logits(spec, path, "none"), share)


def test_memory_is_that_of_the_file_and_is_planned(tmp_path, kernels):
    directory, _ = make_checkpoint(CONFIGS["tied"], tmp_path / "m")
    path = convert(directory, tmp_path / "m.gguf", "Q4_0")
    spec = inspect_checkpoint(path).spec
    network = load_network(spec, [path], dtype=torch.bfloat16, quant="auto", pack=True)
    tensors = sum(tensor.n_bytes for tensor in GGUFReader(path).tensors)
    assert weights_bytes(spec, "bfloat16", "auto") <= 1.01 * tensors
    blocks = 1.4 if kernels == "native" else 1.0  # rows that fill the last block of small matrices
    assert network_bytes(network) <= blocks * weights_bytes(spec, "bfloat16", "auto")
    assert weights_bytes(spec, "bfloat16", "none") > 3 * tensors
    assert isinstance(network.embed_tokens.packed, PlainCoded) == (kernels == "plain")


class MixedConverter(Converter):
    """The matrices of v in another type, as llama.cpp's recipes have them."""

    def run(self) -> None:
        plain = self.writer.add_tensor

        def add_tensor(name, value, raw_dtype=None):
            self.kind = GGMLQuantizationType["Q8_0" if "attn_q" in name else "Q4_0"]  # of the next one, v
            plain(name, value, raw_dtype=raw_dtype)

        self.writer.add_tensor = add_tensor
        super().run()


def test_rows_of_several_types_are_joined(tmp_path, kernels):
    directory, _ = make_checkpoint(CONFIGS["llama"], tmp_path / "m")
    path = tmp_path / "m.gguf"
    MixedConverter(directory, path, "Q4_0").run()
    spec = inspect_checkpoint(path).spec
    network = load_network(spec, [path], dtype=torch.float32, quant="auto", pack=True)
    joined = [module for module in network.modules() if isinstance(getattr(module, "packed", None), JoinedRows)]
    assert len({item.type for item in spec.encoded}) == 2
    assert len(joined) == 2
    assert_near(logits(spec, path, "auto"), logits(spec, path, "none"), 5e-2)


def test_what_no_product_takes_becomes_floats_and_is_said(tmp_path, caplog):
    directory, _ = make_checkpoint(CONFIGS["llama"], tmp_path / "m")
    path = convert(directory, tmp_path / "m.gguf", "Q4_0")
    spec = inspect_checkpoint(path).spec
    odd = tuple(dataclasses.replace(item, type="IQ2_S") if "down" in item.name else item for item in spec.encoded)
    with caplog.at_level(logging.INFO):
        logits(dataclasses.replace(spec, encoded=odd), path, "auto")
    assert "2 parameters" in caplog.text
    assert "layers.0.channel_mixer.down_proj.weight" in caplog.text
