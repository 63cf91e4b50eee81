"""Which backend serves what, and what binding and packing do to a layer."""

from __future__ import annotations

import copy

import pytest
import torch

from inference.modelling.backends import backend as module
from inference.modelling.backends.backend import Backend, NativeBackend, bind_backend, choose_backend, pack_weights
from inference.modelling.backends.native import library
from inference.modelling.backends.native.forms import FORMS
from inference.modelling.layers.linear import Embedding, Linear
from inference.modelling.layers.mlp import MLP
from inference.modelling.layers.norm import Norm
from inference.modelling.specs.layers import MLPSpec
from inference.modelling.specs.parts import NormSpec

CPU = torch.device("cpu")
native_only = pytest.mark.skipif(not library.is_available(), reason="the native kernels are not built")


def test_the_choice_follows_device_and_dtype(monkeypatch):
    monkeypatch.setattr(module, "INTERPRETED", False)
    monkeypatch.setattr(library, "is_available", lambda: True)
    assert type(choose_backend("cpu", torch.bfloat16)) is NativeBackend
    assert type(choose_backend("cpu", torch.float16)) is Backend
    assert type(choose_backend("meta", torch.float32)) is Backend
    monkeypatch.setattr(library, "is_available", lambda: False)
    assert type(choose_backend("cpu", torch.bfloat16)) is Backend


@pytest.mark.skipif(not module.PRESENT, reason="triton is not installed")
def test_cuda_is_triton_and_so_is_a_cpu_under_the_interpreter(monkeypatch):
    assert choose_backend("cuda:1", torch.float16).warm_up_rows
    monkeypatch.setattr(module, "INTERPRETED", True)
    backend = choose_backend("cpu", torch.float32)
    assert isinstance(backend, module.TritonBackend)
    assert list(backend.warm_up_rows) == sorted(backend.warm_up_rows)


def test_a_form_takes_the_place_of_a_method_in_one_instance_only():
    bound, plain = Norm(NormSpec(), 8), Norm(NormSpec(), 8)

    class Doubling(Backend):
        def forms(self):
            return {Norm: {"normalise": lambda layer, hidden: 2 * layer.weight * hidden}}

    for layer in (bound, plain):
        layer.weight.fill_(1.0)
    hidden = torch.full((2, 8), 3.0)
    Doubling(CPU, torch.float32).bind(torch.nn.Sequential(bound))
    assert torch.equal(bound(hidden), 2 * hidden)
    assert torch.equal(copy.deepcopy(bound)(hidden), 2 * hidden)
    torch.testing.assert_close(plain(hidden), torch.ones(2, 8))
    Backend(CPU, torch.float32).bind(bound)
    assert torch.equal(bound(hidden), plain(hidden))


def test_layers_know_which_states_their_backend_reads_in_bfloat16():
    layer = Norm(NormSpec(), 8)
    assert layer.bfloat16_states == frozenset()
    NativeBackend(CPU, torch.float32).bind(layer)
    assert {"ssm_state", "conv_state"} <= layer.bfloat16_states
    Backend(CPU, torch.float32).bind(layer)
    assert layer.bfloat16_states == frozenset()


@native_only
def test_every_form_replaces_a_method_of_its_layer_type():
    for layer_type, forms in FORMS.items():
        for name in forms:
            assert callable(getattr(layer_type, name)), f"{layer_type.__name__}.{name}"


@native_only
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bound_and_packed_layers_compute_what_plain_ones_do(dtype, gated, monkeypatch):
    monkeypatch.setattr(module, "INTERPRETED", False)
    layer = MLP(MLPSpec(40, gated=gated), 24).to(dtype)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.2, generator=torch.Generator().manual_seed(1))
    hidden = torch.randn(5, 24, generator=torch.Generator().manual_seed(2)).to(dtype)
    wanted = layer(hidden)
    assert isinstance(bind_backend(layer), NativeBackend)
    assert pack_weights(layer) == 2
    found = layer(hidden)
    error = 1e-5 if dtype == torch.float32 else 2**-6
    torch.testing.assert_close(found, wanted, rtol=0, atol=error * float(wanted.abs().max()))


@native_only
def test_a_table_that_is_no_head_stays_plain():
    backend = NativeBackend(CPU, torch.float32)
    assert not backend.pack(Embedding(40, 32, is_head=False))
    head = Embedding(40, 32, is_head=True)
    assert not head.has_argmax
    assert backend.pack(head)
    assert head.has_argmax
    assert not backend.pack(head), "it is packed already"


@native_only
def test_rows_are_packed_as_they_come_only_where_that_gives_the_same():
    backend, shape = NativeBackend(CPU, torch.bfloat16), torch.Size((64, 40))
    layer = Linear(40, 64)

    def packs(stored: torch.dtype, kind, *, pack: bool = True) -> bool:
        packer = backend.row_packer(layer, "weight", shape, stored=stored, parts=[shape], kind=kind, pack=pack)
        return packer is not None

    assert packs(torch.bfloat16, None)
    assert not packs(torch.bfloat16, None, pack=False)
    assert not packs(torch.float32, None), "it is rounded first"
    assert packs(torch.float32, "int8") and packs(torch.bfloat16, "int4", pack=False)
    assert not packs(torch.float16, "int8")
    assert Backend(CPU, torch.bfloat16).row_packer(
        layer, "weight", shape, stored=torch.bfloat16, parts=[shape], kind=None, pack=True
    ) is None  # fmt: skip


def test_row_maxima_of_all_backends():
    rows = torch.tensor([[1.0, 5.0, 5.0], [0.0, torch.nan, 9.0], [-torch.inf] * 3])
    backends = [Backend(CPU, torch.float32)]
    if library.is_available():
        backends.append(NativeBackend(CPU, torch.float32))
    for backend in backends:
        places, values = backend.row_maxima(rows)
        assert places.dtype == torch.int64 and places[[0, 2]].tolist() == [1, 0]
        assert values[0] == 5.0 and values[1].isnan() and values[2] == -torch.inf
