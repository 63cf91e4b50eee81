"""What quantisation costs, measured on the demo model."""

from __future__ import annotations

import gc
import json
import math
import weakref

import pytest
import torch

from blazr_site.cli import main
from inference.demo.paths import PREBUILT_DIRECTORY
from inference.errors import InvalidRequest
from inference.llm import quality
from inference.llm.options import LLMOptions
from inference.llm.quality import Sums, WindowRunner, measure_quality
from inference.modelling.weights.loader import load_network
from models_registry.detection.inspection import inspect_checkpoint


@pytest.fixture(scope="module")
def inspection():
    return inspect_checkpoint(PREBUILT_DIRECTORY)


def measure(inspection, token_ids, quants, window=64):
    files = [inspection.directory / name for name in inspection.weight_files]
    return measure_quality(inspection.spec, files, token_ids, quants, options=LLMOptions(), window=window)


def test_sums_are_the_definitions() -> None:
    generator = torch.Generator().manual_seed(0)
    reference, found = (torch.randn(5, 7, generator=generator).log_softmax(-1) for _ in range(2))
    targets = torch.tensor([0, 6, 3, 3, 1])
    sums = Sums()
    sums.add(found[:2], reference[:2], targets[:2])
    sums.add(found[2:], reference[2:], targets[2:])
    result = sums.quality("int8", 10)
    assert result.num_tokens == 5
    assert result.perplexity == pytest.approx(math.exp(-sum(float(found[i, t]) for i, t in enumerate(targets)) / 5))
    assert result.top1_agreement == sum(int(found[i].argmax() == reference[i].argmax()) for i in range(5)) / 5
    divergence = torch.nn.functional.kl_div(found, reference, reduction="batchmean", log_target=True)
    assert result.mean_kl == pytest.approx(float(divergence), rel=1e-5)


def test_the_demo_model_loses_little(inspection) -> None:
    tokens = torch.randint(0, inspection.spec.vocab_size, (150,), generator=torch.Generator().manual_seed(1)).tolist()
    plain, int8, int4 = measure(inspection, tokens, ["int8", "int4", "int8"])
    assert [item.quant for item in (plain, int8, int4)] == ["none", "int8", "int4"]
    assert {item.num_tokens for item in (plain, int8, int4)} == {63 + 63 + 21}
    assert plain.top1_agreement == 1
    assert plain.mean_kl == 0
    assert 0 < int8.mean_kl < int4.mean_kl < 1
    assert int8.top1_agreement > 0.9
    assert plain.weights_bytes > 2.5 * int8.weights_bytes > 2.5 * int4.weights_bytes
    assert [item.quant for item in measure(inspection, tokens[:10], ["none"])] == ["none"]


def test_a_quantised_network_is_freed_before_the_next_one_is_loaded(inspection, monkeypatch) -> None:
    networks: list[list[weakref.ref]] = []
    num_alive: list[int] = []

    def loading(*arguments, **options):
        num_alive.append(sum(any(layer() is not None for layer in layers) for layers in networks))
        network = load_network(*arguments, **options)
        networks.append([weakref.ref(layer) for layer in network.modules()])
        return network

    monkeypatch.setattr(quality, "load_network", loading)
    gc.disable()
    try:
        measure(inspection, [1, 2, 3], ["int8", "int4"])
    finally:
        gc.enable()
    assert num_alive == [0, 1, 1], "only the network without quantisation stays"


def test_one_token_is_too_little(inspection) -> None:
    with pytest.raises(InvalidRequest, match="1 tokens; at least 2"):
        measure(inspection, [3], ["int8"])


def test_windows_start_from_nothing(inspection) -> None:
    files = [inspection.directory / name for name in inspection.weight_files]
    runner = WindowRunner(load_network(inspection.spec, files, dtype=torch.float32), 32, "float32", "cpu")
    with torch.inference_mode():
        first = runner.hidden([1, 2, 3]).clone()
        runner.hidden(list(range(32)))
        assert torch.equal(runner.hidden([1, 2, 3]), first)


def test_the_command(capsys, tmp_path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The statement is executed when the module is imported. " * 4)
    options = ["quality", "--model", "demo", "--tokens", "40", "--window", "16", "--text", str(text), "--cpu"]
    assert main([*options, "--quant", "int8", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["text"] == "text.txt"
    assert [form["quant"] for form in result["forms"]] == ["none", "int8"]
    assert main([*options, "--quant", "int9"]) == 2
    assert "--quant has 'int9'; it must be of auto, none, int8, int4." in capsys.readouterr().err
    assert main([*options[:-2], str(tmp_path / "missing.txt")]) == 2
    assert "can't be read as UTF-8" in capsys.readouterr().err
