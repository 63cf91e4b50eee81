"""What states in bfloat16 cost, measured on the demo model."""

from __future__ import annotations

import json

import pytest
import torch

from blazr_site.cli import main
from inference.demo.paths import PREBUILT_DIRECTORY
from inference.errors import InvalidRequest
from inference.llm import state_quality
from inference.llm.options import LLMOptions
from inference.llm.quality import WindowRunner, measure_quality
from inference.llm.state_quality import StepRunner, measure_state_dtype
from inference.modelling.weights.loader import load_network
from models_registry.detection.inspection import inspect_checkpoint


@pytest.fixture(scope="module")
def parts():
    found = inspect_checkpoint(PREBUILT_DIRECTORY)
    return found.spec, found.weight_paths


def tokens_of(count: int) -> list[int]:
    return torch.randint(3, 200, (count,), generator=torch.Generator().manual_seed(1)).tolist()


def test_windows_side_by_side_are_what_each_is_in_one_go(parts) -> None:
    network = load_network(*parts, dtype=torch.float32)
    windows = [tokens_of(40), tokens_of(29)[9:], [5]]
    whole, steps = WindowRunner(network, 40, "float32", "cpu"), StepRunner(network, 40, "float32", "float32", "cpu")
    with torch.inference_mode():
        for _ in range(2):  # the second time over the states of the first
            found = steps.hidden(windows)
            for window, hidden in zip(windows, found, strict=True):
                torch.testing.assert_close(hidden, whole.hidden(window), rtol=1e-4, atol=1e-4)


def test_rounded_states_cost_something_and_float32_ones_nothing(parts, monkeypatch) -> None:
    monkeypatch.setattr(state_quality, "MAX_WINDOWS", 3)
    tokens, shares = tokens_of(150), []
    given = {"options": LLMOptions(), "window": 32, "progress": lambda share, detail: shares.append((share, detail))}
    rounded = measure_state_dtype(*parts, tokens, "bfloat16", **given)
    assert shares == [(0.6, "bfloat16 states"), (1.0, "bfloat16 states")]
    assert (rounded.quant, rounded.state_dtype, rounded.num_tokens) == ("none", "bfloat16", 4 * 31 + 21)
    assert 0 < rounded.mean_kl < 1e-3 and rounded.top1_agreement > 0.95
    exact = measure_state_dtype(*parts, tokens, "float32", **given)
    assert (exact.mean_kl, exact.top1_agreement) == (0, 1)
    (whole,) = measure_quality(*parts, tokens, ["none"], options=LLMOptions(), window=32)
    assert exact.perplexity == pytest.approx(whole.perplexity, rel=1e-3)
    with pytest.raises(InvalidRequest, match="1 tokens; at least 2"):
        measure_state_dtype(*parts, [3], "bfloat16", **given)


def test_a_model_without_recurrent_state_is_refused(checkpoint) -> None:
    with pytest.raises(InvalidRequest, match=r"\(llama\) has no recurrent state, so state_dtype changes nothing"):
        measure_state_dtype(checkpoint.spec, checkpoint.files, [1, 2, 3], "bfloat16", options=LLMOptions(), window=32)


def test_the_command(capsys) -> None:
    options = ["quality", "--model", "demo", "--tokens", "40", "--window", "16", "--cpu", "--quant", "none"]
    assert main([*options, "--state-dtype", "bfloat16", "--json"]) == 0
    forms = json.loads(capsys.readouterr().out)["forms"]
    assert [(form["quant"], form["state_dtype"]) for form in forms] == [("none", "float32"), ("none", "bfloat16")]
    assert main([*options, "--state-dtype", "bfloat16"]) == 0
    assert "bfloat16 states" in capsys.readouterr().out
    assert main([*options, "--state-dtype", "bfloat16", "--against", "demo"]) == 2
    assert "leave one of them out" in " ".join(capsys.readouterr().err.split())
