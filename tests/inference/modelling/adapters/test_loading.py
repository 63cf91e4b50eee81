"""Loading an adapter for a network: memory, what is left out, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, MambaConfig

from inference.errors import UnsupportedFormat
from inference.modelling.adapters.loading import load_adapter
from inference.modelling.backends.backend import pack_weights
from tests.inference.modelling import test_network_recurrent as recurrent
from tests.inference.modelling.adapters.harness import make_adapter, plan_lora
from tests.inference.modelling.harness import load_directory
from tests.inference.modelling.huggingface import make_checkpoint
from tests.inference.modelling.test_network_attention import BASE


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("loading")
    return make_checkpoint(LlamaConfig(**BASE), directory / "base")[0]


def test_factors_lie_together_and_are_counted(base: Path, tmp_path: Path) -> None:
    make_adapter(base, tmp_path, target_modules=["q_proj", "down_proj"], r=3)
    network = load_directory(base)
    plan, weights = plan_lora(network, base, tmp_path)
    adapter = load_adapter(plan, weights, network)
    terms = [term for delta in adapter.deltas.values() for term in delta.terms]
    assert adapter.num_bytes == 4 * plan.num_values == sum(term.nbytes for term in terms)
    assert {part.untyped_storage().data_ptr() for term in terms for part in (term.a, term.b)} == {
        terms[0].a.untyped_storage().data_ptr()
    }
    assert all(part.data_ptr() % 64 == 0 for term in terms for part in (term.a, term.b))
    assert not adapter.is_eager


@pytest.mark.parametrize("pack", [False, True])
def test_tables_that_were_saved_but_not_trained_are_left_out(base: Path, tmp_path: Path, pack: bool) -> None:
    make_adapter(base, tmp_path, target_modules=["q_proj"], r=3)
    path = tmp_path / "adapter_model.safetensors"
    stored = load_file(base / "model.safetensors")
    table = stored["model.embed_tokens.weight"]
    save_file(load_file(path) | {"base_model.model.model.embed_tokens.weight": table.clone()}, path)
    network = load_directory(base)
    if pack:
        pack_weights(network)
    plan, weights = plan_lora(network, base, tmp_path)
    assert len(plan.wholes) == 1
    assert "embed_tokens" not in load_adapter(plan, weights, network).deltas
    save_file(load_file(path) | {"base_model.model.model.embed_tokens.weight": table + 1}, path)
    adapter = load_adapter(*plan_lora(network, base, tmp_path), network)
    assert adapter.deltas["embed_tokens"].whole is not None and adapter.is_eager


def test_norms_are_refused_by_name(base: Path, tmp_path: Path) -> None:
    make_adapter(base, tmp_path, target_modules=["q_proj"], r=3)
    path = tmp_path / "adapter_model.safetensors"
    save_file(load_file(path) | {"base_model.model.model.norm.weight": torch.full((32,), 2.0)}, path)
    network = load_directory(base)
    with pytest.raises(UnsupportedFormat, match=r"model.norm.weight, a part of Norm that can't be changed per request"):
        load_adapter(*plan_lora(network, base, tmp_path), network)


def test_step_sizes_of_several_heads_are_no_plain_product(tmp_path: Path) -> None:
    directory, _ = make_checkpoint(MambaConfig(**recurrent.CASES["mamba"][1]), tmp_path / "base")
    network = load_directory(directory)
    module = "backbone.layers.0.mixer.dt_proj"
    outputs, inputs = load_file(directory / "model.safetensors")[f"{module}.weight"].shape
    prefix = f"base_model.model.{module}"
    tensors = {f"{prefix}.lora_A.weight": torch.randn(2, inputs), f"{prefix}.lora_B.weight": torch.randn(outputs, 2)}
    (tmp_path / "adapter").mkdir()
    save_file(tensors, tmp_path / "adapter" / "adapter_model.safetensors")
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps({"r": 2, "target_modules": ["dt_proj"]}))
    found = plan_lora(network, directory, tmp_path / "adapter")
    assert load_adapter(*found, network).deltas["layers.0.token_mixer.dt_proj"].terms
    network.layers[0].token_mixer.dt_proj.num_heads = 2
    with pytest.raises(UnsupportedFormat, match="StepProjection"):
        load_adapter(*found, network)
