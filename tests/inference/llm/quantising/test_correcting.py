"""Correction of rounding errors: GPTQ's own steps, its effect on outputs, and the values that are written."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from inference.llm.quality import WindowRunner
from inference.llm.quantising import correcting
from inference.llm.quantising.correcting import (
    CORRECTED_FORMS,
    DAMPINGS,
    Correction,
    corrected_codes,
    correcting_bytes,
    rounding_bytes,
)
from inference.modelling.layers.code_search import find_codes, nearest_codes
from inference.modelling.quantisation import OWN_FORMS, FormName
from inference.modelling.weights.loader import load_network
from models_registry.detection.inspection import Inspection
from tests.inference.llm.quantising.checkpoints import inspect, parts_of, random_tokens
from tests.inference.modelling.huggingface import make_checkpoint
from tests.inference.modelling.test_network_dense import tiny_config
from tests.inference.modelling.test_network_large import CASES as LARGE_CASES


def inputs(count: int, width: int) -> torch.Tensor:
    """Correlated, some much larger than others."""
    generator = torch.Generator().manual_seed(3)
    mixing = torch.randn(width, width, generator=generator) * torch.logspace(-1, 1, width)
    return torch.randn(count, width, generator=generator) @ mixing


def weights(outputs: int, width: int) -> torch.Tensor:
    return torch.randn(outputs, width, generator=torch.Generator().manual_seed(4))


def by_elimination(weight: torch.Tensor, products: torch.Tensor, name: FormName) -> torch.Tensor:
    """The codes by the method's definition: H⁻¹ without each column that is done, in double precision."""
    form, left = OWN_FORMS[name], weight.double().clone()
    damped = products.double() + DAMPINGS[0] * products.double().diagonal().mean() * torch.eye(weight.shape[1])
    inverse = torch.linalg.inv(damped)
    levels = torch.tensor(form.levels or [code - form.zero for code in range(1 << form.bits)], dtype=torch.float64)
    codes, scales = find_codes(weight, form)
    for column in products.diagonal().argsort(descending=True).tolist():
        scale = scales[:, column // form.group].double()
        codes[:, column] = nearest_codes((left[:, column] / scale).float(), form)
        change = left[:, column] - levels[codes[:, column].int()] * scale
        left -= torch.outer(change, inverse[column] / inverse[column, column])
        inverse -= torch.outer(inverse[:, column], inverse[column]) / inverse[column, column]
        inverse[column, column] = 1.0  # done: no later column reaches it
    return codes


@pytest.mark.parametrize("name", CORRECTED_FORMS)
def test_it_is_the_methods_definition(name: FormName) -> None:
    weight, rows = weights(24, 256), inputs(600, 256)
    products = rows.T @ rows / len(rows)
    found = corrected_codes(weight, products, OWN_FORMS[name]).codes
    assert (found != by_elimination(weight, products, name)).float().mean() < 5e-3, "but for ties in single precision"


@pytest.mark.parametrize("name", CORRECTED_FORMS)
def test_outputs_change_less(name: FormName) -> None:
    weight, rows = weights(24, 192), inputs(600, 192)
    form = OWN_FORMS[name]
    corrected = corrected_codes(weight, rows.T @ rows / len(rows), form).dense(torch.float32)
    codes, scales = find_codes(weight, form)
    plain = correcting.Codes(codes, scales, None, form).dense(torch.float32)
    fresh = inputs(1200, 192)[600:]
    change, plain_change = ((fresh @ (weight - other).T).square().sum() for other in (corrected, plain))
    assert change < 0.7 * plain_change


@pytest.mark.parametrize("width", [96, 200])
def test_inputs_that_have_nothing_to_do_with_each_other_change_nothing(width: int) -> None:
    weight, form = weights(8, width), OWN_FORMS["int4"]
    found = corrected_codes(weight, torch.eye(width), form)
    codes, scales = find_codes(weight, form)
    assert torch.equal(found.codes, codes)
    assert torch.equal(found.scales, scales)


def storages(values: Any) -> list[torch.UntypedStorage]:
    return [one.untyped_storage() for one in tree_leaves(values) if isinstance(one, torch.Tensor)]


class LiveBytes(TorchDispatchMode):
    """Adds up the memory of all tensors that operators make and that are alive; ``most`` at once."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {storage.data_ptr() for storage in storages((args, kwargs))}
        for storage in storages(result):
            if storage.data_ptr() not in given | self._known:
                self._known.add(storage.data_ptr())
                self.live += storage.nbytes()
                weakref.finalize(storage, self._forget, storage.data_ptr(), storage.nbytes())
        self.most = max(self.most, self.live)
        return result

    def _forget(self, address: int, size: int) -> None:
        self._known.discard(address)
        self.live -= size


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("outputs", "width"), [(64, 256), (256, 256), (1024, 256)])
def test_memory_of_the_rounding_is_what_is_counted(outputs: int, width: int, dtype: torch.dtype) -> None:
    weight, products = weights(outputs, width).to(dtype), inputs(300, width)
    products = products.T @ products
    with LiveBytes() as found:
        corrected_codes(weight, products / 300, OWN_FORMS["int4"])
    counted = rounding_bytes((outputs, width))
    assert 0.8 * counted < found.most <= counted


def test_inputs_that_are_always_zero() -> None:
    weight, products = weights(8, 64), torch.zeros(64, 64)
    assert corrected_codes(weight, products, OWN_FORMS["int4"]).dense(torch.float32).isfinite().all()
    products[3, 3] = 2.0
    assert corrected_codes(weight, products, OWN_FORMS["int3"]).dense(torch.float32).isfinite().all()


def test_inputs_that_are_not_finite_are_of_no_use() -> None:
    weight, form = weights(8, 64), OWN_FORMS["int4"]
    found = corrected_codes(weight, torch.full((64, 64), torch.nan), form)
    assert torch.equal(found.codes, find_codes(weight, form)[0])


def test_values_of_the_network_are_those_of_the_codes(found: Inspection) -> None:
    network = load_network(found.spec, found.weight_paths, dtype=torch.float32)
    runner, tokens = WindowRunner(network, 24, "float32", "cpu"), random_tokens(found.spec.vocab_size, 48)
    correction = Correction(runner, [tokens[:24], tokens[24:]])
    names = [name for part in parts_of(found) for name in part.parameters]
    assert not correction.can_correct(names[0], "int8")
    forms: dict[str, FormName] = {name: "int4" for name in names if correction.can_correct(name, "int4")}
    assert forms
    assert not any("embed_tokens" in name or "experts." in name for name in forms)
    before = {name: network.get_parameter(name).data.clone() for name in forms}
    with torch.inference_mode(), correction.applied(forms):
        assert correction.codes.keys() == forms.keys()
        for name, codes in correction.codes.items():
            assert torch.equal(network.get_parameter(name).data, codes.dense(torch.float32)), name
            assert not torch.equal(codes.codes, find_codes(before[name], OWN_FORMS["int4"])[0]), name
    assert all(torch.equal(network.get_parameter(name).data, value) for name, value in before.items())
    assert all(getattr(module, "packed", None) in (None, {}) for module in network.modules())
    codes = sum(codes.codes.nbytes for codes in correction.codes.values())
    streams = 3 * 4 * found.spec.hidden_size * 48
    squares = max(4 * value.shape[1] ** 2 + rounding_bytes(value.shape) for value in before.values())
    assert correcting_bytes(found.spec, 48, torch.float32) >= 2 * codes + streams + squares


def test_layers_that_read_another_ones_cache_are_rounded_plainly(tmp_path: Path) -> None:
    directory, _ = make_checkpoint(tiny_config(*LARGE_CASES["gemma4_text-values-of-their-own"]), tmp_path)
    found = inspect(directory)
    network = load_network(found.spec, found.weight_paths, dtype=torch.float32)
    tokens = random_tokens(found.spec.vocab_size, 48)
    correction = Correction(WindowRunner(network, 24, "float32", "cpu"), [tokens[:24], tokens[24:]])
    names = [name for part in parts_of(found) for name in part.parameters]
    forms: dict[str, FormName] = {name: "int4" for name in names if correction.can_correct(name, "int4")}
    assert found.spec.state_numbers() == (0, 1, 0, 1)
    first = 2  # layer 1 keeps its own cache, though a later layer reads one that is older
    before = {name: network.get_parameter(name).data.clone() for name in forms}
    with torch.inference_mode(), correction.applied(forms):
        for name, codes in correction.codes.items():
            is_plain = torch.equal(codes.codes, find_codes(before[name], OWN_FORMS["int4"])[0])
            assert is_plain == (int(name.split(".")[1]) >= first), name
