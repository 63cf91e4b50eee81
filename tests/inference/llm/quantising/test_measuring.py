"""Divergences of changed networks: those that two whole networks have."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inference.errors import InvalidRequest
from inference.llm.quality import WindowRunner
from inference.llm.quantising import measuring
from inference.llm.quantising.measuring import Measurement, measuring_bytes
from inference.llm.quantising.parts import KINDS
from inference.modelling.backends.backend import choose_backend
from inference.modelling.weights.loader import load_network
from models_registry.detection.inspection import Inspection
from tests.inference.llm.quantising.checkpoints import parts_of, random_tokens
from tests.inference.modelling.harness import load_directory
from tests.inference.modelling.huggingface import make_checkpoint
from tests.inference.modelling.test_network_dense import tiny_config
from tests.inference.modelling.test_network_large import CASES as LARGE_CASES
from tests.inference.modelling.test_network_linear import CASES as LINEAR_CASES
from tests.inference.modelling.test_network_recurrent import make_model


def runner_of(found: Inspection) -> WindowRunner:
    network = load_network(found.spec, found.weight_paths, dtype=torch.float32)
    return WindowRunner(network, 16, "float32", "cpu")


def test_a_changed_layer_is_computed_from_its_own_on(found: Inspection) -> None:
    windows = [random_tokens(found.spec.vocab_size, 16), random_tokens(found.spec.vocab_size, 9)]
    exact, changed = runner_of(found), runner_of(found)
    backend = choose_backend("cpu", torch.float32)
    with torch.inference_mode():
        measurement = Measurement(exact, backend, windows)
        stored = measurement.stored()
        assert (stored.mean_kl, stored.top1_agreement, stored.num_tokens) == (pytest.approx(0, abs=1e-6), 1, 23)
        for part in parts_of(found):
            with measurement.rounded({part: "int4"}):
                divergence = measurement.divergence(part.layer)
            for name in part.parameters:
                parameter = changed.network.get_parameter(name)
                parameter.data = measurement.rounded_values(parameter.data, "int4")
            expected = 0.0
            for window in windows:
                exact_log, found_log = (
                    one.network.compute_logits(one.hidden(window[:-1])).log_softmax(-1) for one in (exact, changed)
                )
                expected += float((exact_log.exp() * (exact_log - found_log)).sum())
            assert divergence.mean_kl == pytest.approx(expected / 23, rel=1e-3, abs=1e-6), part.name
            assert divergence.mean_kl > 0
            errors = [measurement.squared_error(part, form) for form in KINDS]
            assert errors == sorted(errors, reverse=True), "more bits, less error"
            for name in part.parameters:
                changed.network.get_parameter(name).data = exact.network.get_parameter(name).data
        assert measurement.divergence(-1).mean_kl == pytest.approx(0, abs=1e-6), "the values are back"


def test_the_bytes_of_a_measurement_are_those_while_a_plan_rounds_every_matrix(found: Inspection) -> None:
    """They were counted with one copy of the weights, and a plan is measured with two."""
    runner = runner_of(found)
    parameters = dict(runner.network.named_parameters())
    before = {name: parameter.data for name, parameter in parameters.items()}
    with torch.inference_mode():
        measurement = Measurement(runner, choose_backend("cpu", torch.float32), [random_tokens(64, 16)])
        with measurement.rounded(dict.fromkeys(parts_of(found), "int8")):
            held = {data.data_ptr(): data.nbytes for data in before.values()}
            held |= {parameter.data.data_ptr(): parameter.data.nbytes for parameter in parameters.values()}
    assert sum(held.values()) <= measuring_bytes(found.spec, 2, torch.float32) < 1.5 * sum(held.values())


def test_predictions_of_nan_are_refused(found: Inspection) -> None:
    runner = runner_of(found)
    with torch.inference_mode(), pytest.raises(InvalidRequest, match="hold NaN or infinity"):
        runner.network.get_parameter("final_norm.weight").data[0] = torch.nan
        Measurement(runner, choose_backend("cpu", torch.float32), [random_tokens(found.spec.vocab_size, 16)])


def test_of_many_predictions_some_are_compared(found: Inspection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "REFERENCE_BYTES", 4 * found.spec.vocab_size * 5)
    with torch.inference_mode():
        windows = [random_tokens(found.spec.vocab_size, 16)]
        measurement = Measurement(runner_of(found), choose_backend("cpu", torch.float32), windows)
        assert measurement.stored().num_tokens == 5


def test_layers_that_read_an_earlier_ones_cache_find_that_of_their_window(tmp_path: Path) -> None:
    directory, _ = make_checkpoint(tiny_config(*LARGE_CASES["gemma4_text-values-of-their-own"]), tmp_path)
    runner = WindowRunner(load_directory(directory), 16, "float32", "cpu")
    tokens = random_tokens(runner.network.spec.vocab_size, 16)
    windows = [tokens, tokens[::-1]]
    with torch.inference_mode():
        measurement = Measurement(runner, choose_backend("cpu", torch.float32), windows)
        for first in range(-1, measurement.num_layers + 1):
            assert measurement.divergence(first).mean_kl == pytest.approx(0, abs=1e-6), first


@pytest.mark.parametrize("name", ["qwen4_exp", "zaya"])
def test_what_layers_hand_on_beside_the_stream_is_kept(name: str, tmp_path: Path) -> None:
    """Several streams, the memory of routers."""
    make_model(*LINEAR_CASES[name]).save_pretrained(tmp_path)
    runner = WindowRunner(load_directory(tmp_path), 16, "float32", "cpu")
    tokens = random_tokens(runner.network.spec.vocab_size, 16)
    with torch.inference_mode():
        measurement = Measurement(runner, choose_backend("cpu", torch.float32), [tokens, tokens[::-1]])
        for first in range(-1, measurement.num_layers + 1):
            assert measurement.divergence(first).mean_kl == pytest.approx(0, abs=1e-6), first
