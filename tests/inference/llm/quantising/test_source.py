"""GGUF files and quantised safetensors as sources: what isn't rounded anew has the values that it had, in its codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from inference.engine.model_runner import TORCH_DTYPES
from inference.llm.quantising.parts import find_parts, fixed_bytes
from inference.llm.quantising.quantise import Limit
from inference.llm.quantising.source import kept_members
from inference.llm.quantising.writing import write_checkpoint
from inference.modelling.quantisation import GGUF_FORMS, FormName, Quant, coded_parameters
from inference.modelling.weights.loader import load_network
from models_registry.detection.inspection import Inspection
from tests.inference.llm.quantising.checkpoints import inspect, quantise, source_of, tensors_of
from tests.inference.modelling.encodings.checkpoints import write_pair
from tests.inference.modelling.encodings.formats import FORMATS
from tests.inference.modelling.gguf.converter import convert
from tests.inference.modelling.gguf.test_architectures import CONFIGS as GGUF_CONFIGS
from tests.inference.modelling.gguf.test_architectures import RECURRENT_CASES
from tests.inference.modelling.harness import SequenceRunner
from tests.inference.modelling.huggingface import make_checkpoint
from tests.inference.modelling.test_network_recurrent import CASES as RECURRENT
from tests.inference.modelling.test_network_recurrent import make_model
from tests.inference.modelling.weights.test_loader_kept import CONFIGS


def write(found: Inspection, target: Path, forms: dict[str, FormName] | None = None) -> Inspection:
    """Write a checkpoint whose parameters have forms, all others as they are."""
    network = load_network(found.spec, found.weight_paths, dtype=torch.float32) if forms else None
    tensors = tensors_of(found)
    size = write_checkpoint(
        target, source_of(found), tensors, found.spec, forms or {},
        lambda name: network.get_parameter(name).data, measured={}, plan={"curve": []},  # type: ignore[union-attr]
    )  # fmt: skip
    again = inspect(target)
    assert size == again.size_bytes
    if not forms:
        parts = find_parts(found.spec, tensors.tensors)
        assert size <= fixed_bytes(parts, tensors.tensors) + sum(part.stored_bytes for part in parts)
    return again


def logits(found: Inspection, quant: Quant = "auto") -> torch.Tensor:
    dtype = TORCH_DTYPES[found.spec.dtype]
    network = load_network(found.spec, found.weight_paths, dtype=dtype, quant=quant, pack=True)
    with torch.inference_mode():
        return SequenceRunner(network).step([("a", list(range(24)))])["a"].float()


@pytest.mark.parametrize("name", FORMATS)
def test_codes_of_safetensors_are_kept(name: str, tmp_path: Path) -> None:
    for model in ("llama", "experts") if name in ("gptq-4", "awq", "nf4", "fbgemm") else ("llama",):
        directory, _ = write_pair(CONFIGS[model], tmp_path / model, FORMATS[name])
        source = inspect(directory)
        again = write(source, tmp_path / f"{model}-out")
        is_permuted = any(item.is_permuted for item in source.spec.encoded)
        kept = coded_parameters(source.spec, "auto").keys()
        assert is_permuted or coded_parameters(again.spec, "none").keys() == kept
        quant: Quant = "none" if is_permuted else "auto"
        assert torch.equal(logits(again), logits(source, quant)), model
        assert again.spec.layers == source.spec.layers


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "TQ2_0"])
def test_codes_of_gguf_are_kept(kind: str, tmp_path: Path) -> None:
    directory, _ = make_checkpoint(CONFIGS["experts"], tmp_path / "made")
    convert(directory, tmp_path / "m.gguf", kind)
    source = inspect(tmp_path / "m.gguf")
    again = write(source, tmp_path / "out")
    assert torch.equal(logits(again), logits(source))
    assert coded_parameters(again.spec, "none").keys() == coded_parameters(source.spec, "auto").keys()
    if kind in GGUF_FORMS:
        stated = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
        assert stated["version"] == 2
        assert kept_members(GGUF_FORMS[kind]) in stated["tensors"].values()
        assert "model.layers.0.mlp.experts.{e}.down_proj.weight" in stated["tensors"]
        assert not any(".experts.0." in name for name in stated["tensors"])


@pytest.mark.parametrize("name", [*GGUF_CONFIGS, *RECURRENT_CASES])
def test_every_architecture(name: str, tmp_path: Path) -> None:
    if name in GGUF_CONFIGS:
        directory, _ = make_checkpoint(GGUF_CONFIGS[name], tmp_path / "made")
    else:
        directory = tmp_path / "made"
        make_model(RECURRENT[name][0], RECURRENT[name][1] | RECURRENT_CASES[name]).save_pretrained(directory)
    convert(directory, tmp_path / "m.gguf", "Q8_0")
    source = inspect(tmp_path / "m.gguf")
    again = write(source, tmp_path / "out")
    assert again.spec.layers == source.spec.layers
    assert torch.equal(logits(again), logits(source))
    assert again.tokenizer.eos_token_ids == source.tokenizer.eos_token_ids


def test_some_weights_are_rounded_and_others_kept(tmp_path: Path) -> None:
    directory, _ = make_checkpoint(CONFIGS["llama"], tmp_path / "made")
    convert(directory, tmp_path / "m.gguf", "Q4_1")
    source = inspect(tmp_path / "m.gguf")
    found = quantise(source, tmp_path / "out", Limit(size_bytes=source.size_bytes * 9 // 10))
    assert "stored" in found.plan.forms.values()
    assert len(set(found.plan.forms.values())) > 1
    again = inspect(tmp_path / "out")
    assert again.size_bytes == found.size_bytes <= source.size_bytes * 9 // 10
    assert {item.form for item in again.spec.encoded} > {""}
    (fact,) = [fact for fact in again.facts if fact.name == "quantisation"]
    assert "kept 4-bit" in fact.value
    assert Inspection.from_dict(again.to_dict()) == again


def test_nothing_is_rounded_where_there_is_room_for_all(tmp_path: Path) -> None:
    directory, _ = make_checkpoint(CONFIGS["llama"], tmp_path / "made")
    source = inspect(directory)
    found = quantise(source, tmp_path / "out", Limit(size_bytes=2 * source.size_bytes))
    assert set(found.plan.forms.values()) == {"stored"}
    assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())
    assert torch.equal(logits(inspect(tmp_path / "out")), logits(source))
