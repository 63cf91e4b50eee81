"""BitNet's weights of three values against transformers, in each form that the files hold them in.

The inputs of the products are rounded to 8 bits, so that one input in some ten thousand falls to the other side when it
differs in its last bit: few of several short texts may be further apart than the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from transformers.integrations.bitnet import ActQuant, pack_weights, replace_with_bitnet_linear
from transformers.utils.quantization_config import BitNetQuantConfig

from inference.engine.config import EngineConfig
from inference.engine.engine import Engine
from inference.errors import CheckpointError
from inference.modelling.backends.backend import pack_weights as pack_network
from inference.modelling.layers.linear import Linear, network_bytes, rounded_to_bytes
from inference.modelling.network import HybridForCausalLM
from inference.modelling.quantisation import Quant, weights_bytes
from inference.modelling.weights.loader import load_network
from models_registry.detection.inspection import inspect_checkpoint
from tests.inference.engine.fakes import request, run
from tests.inference.modelling.harness import SequenceRunner
from tests.inference.modelling.test_network_dense import tiny_config

FORMS: dict[str, dict[str, Any]] = {
    "packed": {},
    "packed-multiplied": {"linear_class": "autobitlinear", "quantization_mode": "offline"},
    "rounded-at-load": {"linear_class": "autobitlinear", "quantization_mode": "online"},
}
FAMILIES = {"bitnet": {"hidden_size": 64}, "llama": {"hidden_size": 64, "attention_bias": True}}
Oracle = Callable[[torch.Tensor], torch.Tensor]


def write(directory: Path, family: str, form: str) -> Oracle:
    """Save a random model in a form; returns the logits of transformers' own."""
    torch.manual_seed(0)
    stated = {"quant_method": "bitnet", **FORMS[form]}
    config = tiny_config(family, FAMILIES[family])
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    state = {name: 8 * value if value.dim() > 1 else value for name, value in model.state_dict().items()}
    state |= {name: torch.randn(value.shape) for name, value in state.items() if name.endswith(".bias")}
    model = replace_with_bitnet_linear(model, ["lm_head"], BitNetQuantConfig(**FORMS[form]))
    stored = dict(state)
    for name in [name for name in state if name.endswith("_proj.weight") and form != "rounded-at-load"]:
        scale = state[name].abs().mean()
        ternary = (state[name] / scale).round().clamp(-1, 1)
        multiplies = form == "packed-multiplied"
        stored[name] = pack_weights(ternary.clone())
        stored[f"{name}_scale"] = state[f"{name}_scale"] = (scale if multiplies else 1 / scale).view(1)
        # AutoBitLinear keeps values, which transformers unpacks when it reads a file.
        state[name] = ternary if multiplies else stored[name]
    model.load_state_dict(state, assign=True)
    directory.mkdir(exist_ok=True)
    save_file({name: value.contiguous() for name, value in stored.items()}, directory / "model.safetensors")
    values = config.to_dict() | {"quantization_config": stated, "architectures": [type(model).__name__]}
    (directory / "config.json").write_text(json.dumps(values))

    def oracle(tokens: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode(), torch.compiler.set_stance("force_eager"):
            return model.eval()(tokens.unsqueeze(0), use_cache=False).logits[0].float()

    return oracle


def load(directory: Path, quant: Quant) -> HybridForCausalLM:
    spec = inspect_checkpoint(directory).spec
    return load_network(spec, [directory / "model.safetensors"], dtype=torch.float32, quant=quant)


def count_far(network: HybridForCausalLM, oracle: Oracle, tolerance: float) -> int:
    """How many of four texts, computed in three ways each, are further from the oracle than the tolerance."""
    differences = []
    for seed in range(4):
        tokens = torch.randint(0, 99, (10,), generator=torch.Generator().manual_seed(seed))
        wanted = oracle(tokens)
        found = [SequenceRunner(network).run("a", tokens.tolist(), chunk) for chunk in (10, 3, 1)]
        differences += [float((logits - wanted).abs().max()) for logits in found]
    return sum(difference > tolerance for difference in differences)


@pytest.mark.parametrize(
    ("family", "form"),
    [
        *((family, form) for family in FAMILIES for form in FORMS if form != "packed-multiplied"),
        ("bitnet", "packed-multiplied"),
    ],
)
def test_logits_are_those_of_transformers(family: str, form: str, tmp_path: Path) -> None:
    oracle = write(tmp_path, family, form)
    network = load(tmp_path, "none")
    linears = {name: part for name, part in network.named_modules() if isinstance(part, Linear)}
    assert {name for name, part in linears.items() if part.rounds_inputs} == set(linears) - {"lm_head"}
    assert count_far(network, oracle, 1e-4) <= 4


def test_codes_stay_in_two_bits(tmp_path: Path) -> None:
    oracle = write(tmp_path, "bitnet", "packed-multiplied")
    kept, expanded = load(tmp_path, "auto"), load(tmp_path, "none")
    assert network_bytes(kept) < 0.6 * network_bytes(expanded)
    assert weights_bytes(kept.spec, "float32", "auto") < 0.6 * weights_bytes(kept.spec, "float32", "none")
    # The scales become float16, and the kernels round inputs once more, in groups.
    assert count_far(kept, oracle, 0.2) <= 4
    assert pack_network(kept) > 0
    assert count_far(kept, oracle, 0.2) <= 4


def test_without_the_rounding_the_logits_are_others(tmp_path: Path) -> None:
    oracle = write(tmp_path, "bitnet", "packed")
    network = load(tmp_path, "none")
    for part in network.modules():
        if isinstance(part, Linear):
            part.rounds_inputs = False
    assert count_far(network, oracle, 1e-3) == 12


def test_rows_are_rounded_as_transformers_does() -> None:
    rows = torch.randn(50, 40, generator=torch.Generator().manual_seed(0))
    rows[3], rows[4] = 0.0, rows[4] * 1e-7
    with torch.compiler.set_stance("force_eager"):
        for dtype in (torch.float32, torch.bfloat16):
            assert torch.equal(rounded_to_bytes(rows.to(dtype)), ActQuant.apply(rows.to(dtype)))


def test_a_bias_that_would_be_scaled_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "llama", "packed-multiplied")
    with pytest.raises(CheckpointError, match=r"_proj\.bias is there, which transformers multiplies"):
        inspect_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"use_rms_norm": True}, "use_rms_norm"),
        ({"linear_class": "other"}, "linear_class 'other'"),
        ({"quantization_mode": "never"}, "quantization_mode 'never'"),
    ],
)
def test_other_variants_are_refused(change: dict[str, Any], named: str, tmp_path: Path) -> None:
    write(tmp_path, "llama", "packed")
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] |= change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=named):
        inspect_checkpoint(tmp_path)


def test_an_engine_decodes_what_the_network_says(tmp_path: Path) -> None:
    """Also by recorded steps, which begin after a few of them."""
    write(tmp_path, "bitnet", "packed")
    network = load(tmp_path, "none")
    assert pack_network(network) > 0
    engine = Engine(network, network.spec, EngineConfig(max_model_len=64, num_blocks=20, num_state_slots=3))
    prompt = [5, 9, 2, 17, 30, 8]
    tokens = run(engine, request("r", prompt, max_tokens=24))["r"].tokens
    logits = SequenceRunner(network).run("a", [*prompt, *tokens], 1)
    near = [row.max() - row[token] < 0.05 for row, token in zip(logits[len(prompt) - 1 :], tokens, strict=False)]
    assert len(tokens) == 24 and all(near)
