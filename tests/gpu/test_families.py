"""A network of each family that is read, from files onto the device, beside the same files on the CPU.

Needs transformers, which writes the checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from inference.engine.config import EngineConfig
from inference.engine.engine import Engine
from inference.engine.request import EngineRequest
from inference.modelling.families.registry import family_builder
from inference.modelling.network import HybridForCausalLM
from inference.modelling.spec import ModelSpec
from inference.modelling.weights.loader import load_network
from inference.values.sampling_params import SamplingParams

pytest.importorskip("transformers", reason="transformers writes the checkpoints, and is not installed")

from tests.inference.modelling import test_network_attention as attention
from tests.inference.modelling import test_network_dense as dense
from tests.inference.modelling import test_network_kimi as kimi
from tests.inference.modelling import test_network_large as large
from tests.inference.modelling import test_network_linear as linear
from tests.inference.modelling import test_network_oxidizr as oxidizr
from tests.inference.modelling import test_network_recurrent as recurrent
from tests.inference.modelling.harness import read_view
from tests.inference.modelling.huggingface import make_checkpoint

PROMPTS = (3, 21, 40)
TOLERANCE = 2e-3
"""Of log-probabilities: float32, summed in another order."""


def _save(family: str, values: dict, directory: Path) -> None:
    recurrent.make_model(family, values).save_pretrained(directory)


def _make(config, directory: Path, seed: int = 0) -> None:
    make_checkpoint(config() if callable(config) else config, directory, seed=seed)


def checkpoints() -> Iterator[tuple[str, Callable[[Path], object]]]:
    """The tiny checkpoints of the tests of families: their names, and what writes them into a directory."""
    for name, config in attention.CASES.items():
        yield name, partial(_make, config)
    for cases in (dense.CASES, large.CASES):
        for name, (model_type, values) in cases.items():
            yield name, partial(_make, partial(dense.tiny_config, model_type, values), seed=large.SEEDS.get(name, 0))
    for cases in (recurrent.CASES, linear.CASES, kimi.CASES):
        for name, (family, values) in cases.items():
            yield name, partial(_save, family, values)
    for name, config in oxidizr.CONFIGS.items():
        yield f"oxidizr {name}", partial(oxidizr.write, config=config)


CHECKPOINTS = dict(checkpoints())


def read_spec(directory: Path, name: str) -> ModelSpec:
    view = read_view(directory)
    model_type = "oxidizr" if name.startswith("oxidizr ") else view.config.string("model_type")
    return family_builder(model_type)(view)


def generate(network: HybridForCausalLM, spec: ModelSpec, device: str) -> list[list[tuple[int, float]]]:
    """Greedy tokens and their log-probabilities; prompts come in chunks of up to 12 tokens, beside decodes."""
    config = EngineConfig(
        64, num_blocks=64, num_state_slots=5, block_size=4, max_num_seqs=4, max_num_batched_tokens=12, device=device,
        dtype="float32",
    )  # fmt: skip
    engine = Engine(network, spec, config)
    generator = torch.Generator().manual_seed(5)
    found: dict[str, list[tuple[int, float]]] = {}
    for length in PROMPTS:
        prompt = torch.randint(0, spec.vocab_size, (length,), generator=generator).tolist()
        params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=1)
        engine.add_request(EngineRequest(f"r{length}", prompt, params))
        found[f"r{length}"] = []
    while engine.has_unfinished():
        for output in engine.step():
            assert output.error is None, output.error
            entries = zip(output.new_token_ids, output.logprobs or (), strict=True)
            found[output.request_id] += [(token, entry.logprob) for token, entry in entries]
    return list(found.values())


@pytest.mark.device_only
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_tokens_are_those_of_the_cpu(name, device, tmp_path):
    CHECKPOINTS[name](tmp_path)
    spec = read_spec(tmp_path, name)
    files = sorted(tmp_path.glob("*.safetensors"))
    on_device, on_cpu = (
        generate(load_network(spec, files, dtype=torch.float32, device=place), spec, place)
        for place in (str(device), "cpu")
    )
    for found, wanted in zip(on_device, on_cpu, strict=True):
        assert [token for token, _ in found] == [token for token, _ in wanted]
        assert [value for _, value in found] == pytest.approx([value for _, value in wanted], abs=TOLERANCE)
