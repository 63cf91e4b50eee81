"""Whole networks with quantised weights through the engine, and through the loader: what a ``--quant`` load serves."""

from __future__ import annotations

import itertools
from dataclasses import replace
from itertools import product

import pytest
import torch
from safetensors.torch import save_file

from bench.gpu_models import NORM, quantise_network, random_network
from inference.engine.engine import Engine
from inference.modelling.backends import backend as kernels
from inference.modelling.encoded_tensor import EncodedTensor
from inference.modelling.layers.coded import packed_rows, quantised_rows
from inference.modelling.layers.linear import network_bytes
from inference.modelling.layers.packed import PlainQuantised
from inference.modelling.quantisation import OWN_FORMS, is_quantisable, weights_bytes
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.layers import MLPSpec, MoESpec
from inference.modelling.specs.sources import tensor
from inference.modelling.weights.loader import load_network
from tests.gpu.test_cuda_graphs import assert_padding_changes_nothing
from tests.gpu.test_networks import MIXERS, VOCAB, config, generate

KINDS = ("int8", "int4")
MLP = MLPSpec(40)
BOTH, FIRST = MoESpec(4, 2, 36), MoESpec(4, 2, 24, shared_intermediate_size=32)
"""Experts with both stacks quantised, and with the second one too narrow for it."""
STACKS = {
    "llama": [("attention", MLP), ("normed", MLP)],
    "deepseek": [("mla", MLP), ("mla", BOTH)],
    "nemotron": [("mamba2", MLPSpec(48, "relu2", gated=False)), ("attention", FIRST)],
}


COVERING = [("llama", "int8"), ("deepseek", "int4"), ("nemotron", "int8")]
ALL = [
    pytest.param(*pair, marks=() if pair in COVERING else pytest.mark.device_only) for pair in product(STACKS, KINDS)
]
"""The interpreter takes up to half a minute for a pair; there each stack and each kind has one."""


def make_spec(name: str, *, tied: bool) -> ModelSpec:
    layers = tuple(LayerSpec(MIXERS[mixer], NORM, None, channel, NORM) for mixer, channel in STACKS[name])
    spec = ModelSpec("huggingface", name, 32, VOCAB, 128, layers, NORM, "float32", tie_word_embeddings=tied)
    return replace(spec, parameters={name: tensor(name) for name in spec.parameter_shapes()})


def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "INTERPRETED", False)
    monkeypatch.setattr("inference.modelling.backends.native.library.is_available", lambda: False)


@pytest.mark.parametrize(("name", "quant"), ALL)
def test_tokens_are_those_of_the_reference(name, quant, device, monkeypatch):
    spec = make_spec(name, tied=quant == "int8")
    prompts = [torch.randint(0, VOCAB, (length,)).tolist() for length in (3, 14)]
    network = quantise_network(random_network(spec, device, torch.float32, 3), quant)
    assert kernels.can_capture(network), "a layer waits for the device"
    found = generate(Engine(network, spec, config(device)), prompts)
    network = random_network(spec, device, torch.float32, 3).cpu()
    without_kernels(monkeypatch)
    quantise_network(network, quant)
    assert isinstance(network.embed_tokens.packed, PlainQuantised)
    assert found == generate(Engine(network, spec, config("cpu")), prompts)


@pytest.mark.parametrize(("name", "quant"), [("deepseek", "int8")])
def test_padding_rows_change_nothing(name, quant, device, monkeypatch):
    spec = make_spec(name, tied=True)
    network = quantise_network(random_network(spec, device, torch.float32, 3), quant)
    assert_padding_changes_nothing(network, spec, device, monkeypatch)


@pytest.mark.device_only
@pytest.mark.parametrize(("name", "quant"), list(product(STACKS, KINDS)))
def test_replayed_decodes_are_the_eager_ones(name, quant, device, monkeypatch):
    spec = make_spec(name, tied=True)
    prompts = [torch.randint(0, VOCAB, (length,)).tolist() for length in (5, 11, 2, 30)]
    network = quantise_network(random_network(spec, device, torch.float32, 3), quant)
    engine, eager = (Engine(network, spec, config(device)) for _ in range(2))
    assert engine._runner._graphs is not None
    monkeypatch.setattr(eager._runner, "_graphs", None)
    assert generate(engine, prompts) == generate(eager, prompts)


@pytest.mark.parametrize(("name", "quant"), ALL)
def test_a_load_gives_the_device_form(name, quant, device, tmp_path, monkeypatch):
    """Every matrix that is planned to be quantised, with the values that a load without kernels has."""
    from inference.modelling.backends.triton.quantised import DeviceQuantised

    spec = make_spec(name, tied=False)
    stored = random_network(spec, device, torch.float32, 5).state_dict()
    files = [tmp_path / "model.safetensors"]
    save_file({key: value.cpu() for key, value in stored.items()}, files[0])
    network = load_network(spec, files, dtype=torch.float32, device=device, quant=quant, pack=True)
    without_kernels(monkeypatch)
    plain = load_network(spec, files, dtype=torch.float32, quant=quant)
    count = 0
    for key, shape in spec.parameter_shapes().items():
        path, _, leaf = key.rpartition(".")
        if not is_quantisable(key, shape):
            continue
        found, wanted = (packed_of(part.get_submodule(path), leaf) for part in (network, plain))
        assert isinstance(found, DeviceQuantised), key
        assert found.shape == shape
        assert torch.equal(found.dense(torch.float32).cpu(), wanted.dense(torch.float32)), key
        count += 1
    assert count > 4
    # Rows are filled up to whole pieces of 16 bytes: much where they are as short as these, nothing in real ones.
    planned = weights_bytes(spec, "float32", quant)
    assert planned <= network_bytes(network) < 1.3 * planned


@pytest.mark.parametrize("name", STACKS)
def test_codes_of_a_file_are_kept(name, device, tmp_path):
    """int4 and int8 in the layout of their kernels, the others in the rows of the files."""
    from inference.modelling.backends.triton.coded import DeviceCoded
    from inference.modelling.backends.triton.quantised import DeviceQuantised

    spec, forms = make_spec(name, tied=False), itertools.cycle(OWN_FORMS)
    tensors = {key: value.cpu() for key, value in random_network(spec, device, torch.float32, 5).state_dict().items()}
    encoded, wanted = [], {}
    for key, value in list(tensors.items()):
        if value.dim() == 2 and is_quantisable(key, value.shape):
            form, parts = next(forms), {"codes": f"{key}.codes", "scales": f"{key}.scales"}
            codes, scales = quantised_rows(tensors.pop(key), form)
            tensors |= {parts["codes"]: codes, parts["scales"]: scales}
            encoded.append(EncodedTensor(key, tuple(value.shape), "blazr", parts, form=form))
            wanted[key] = packed_rows(codes, scales, form, value.shape[-1]).dense(torch.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    spec = replace(spec, encoded=tuple(encoded))
    network = load_network(
        spec, [tmp_path / "model.safetensors"], dtype=torch.float32, device=device, quant="auto", pack=True
    )
    for key, values in wanted.items():
        path, _, leaf = key.rpartition(".")
        found = packed_of(network.get_submodule(path), leaf)
        assert isinstance(found, DeviceQuantised | DeviceCoded), key
        assert torch.equal(found.dense(torch.float32).cpu(), values), key
    assert len(wanted) > 5
    assert kernels.can_capture(network), "a layer waits for the device"


def packed_of(owner: torch.nn.Module, leaf: str) -> object:
    """Of a layer with one matrix, or of a layer with several."""
    return owner.packed[leaf] if isinstance(owner.packed, dict) else owner.packed
