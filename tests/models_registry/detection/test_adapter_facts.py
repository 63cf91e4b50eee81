"""An adapter inspected in a child process: what it finds, and that its refusals arrive as they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from inference.errors import CorruptCheckpoint, UnsupportedFormat
from inference.llm.merging import stored_shapes
from inference.modelling.adapters.network import NetworkAdapters
from inference.modelling.lora.modules import BaseModules
from inference.modelling.weights.loader import load_network
from models_registry.detection.adapter_facts import InspectedAdapter, base_facts, inspect_adapter
from models_registry.detection.child import inspect_adapter_in_child
from models_registry.detection.inspection import Inspection, inspect_checkpoint
from models_registry.detection.xlora_files import read_files
from tests.inference.llm.adapter_writing import factors, write_adapter, write_xlora
from tests.inference.llm.harness import Checkpoint


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Inspection:
    directory = tmp_path_factory.mktemp("base")
    Checkpoint(directory)
    return inspect_checkpoint(directory)


def test_a_child_finds_what_this_process_finds(base: Inspection, tmp_path: Path) -> None:
    path = write_adapter(tmp_path / "sql", 1)
    found = inspect_adapter_in_child(path, base)
    assert found == inspect_adapter(path, json.loads(json.dumps(base_facts(base))))
    assert found == InspectedAdapter.from_dict(found.to_dict())
    assert (found.rank, found.num_values) == (4, sum(tensor.numel() for tensor in factors(1).values()))


def test_values_of_an_xlora_take_what_it_will_take_in_any_dtype(base: Inspection, tmp_path: Path) -> None:
    """The classifier is in float32 whatever the base's dtype is; a row's values are counted in that one."""
    path = write_xlora(tmp_path / "x", 1)
    found, files = inspect_adapter(path, base_facts(base)), read_files(path)
    for dtype in (torch.float32, torch.bfloat16):
        network = load_network(base.spec, base.weight_paths, dtype=dtype)
        plan = files.plan(BaseModules(base.spec, stored_shapes(base.spec, base.weight_paths).__getitem__))
        assert NetworkAdapters(network, 1).size_of(plan) <= found.num_values * dtype.itemsize


def test_the_digest_is_that_of_the_content(base: Inspection, tmp_path: Path) -> None:
    facts = base_facts(base)
    paths = [write_adapter(tmp_path / name, seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    first, same, other = (inspect_adapter(path, facts).digest for path in paths)
    assert first == same != other


def test_another_tokenizer_is_refused(base: Inspection, tmp_path: Path) -> None:
    path = write_adapter(tmp_path / "sql", 1)
    tokens = json.loads((base.directory / "tokenizer.json").read_text())
    vocabulary = tokens["model"]["vocab"]
    one, two = list(vocabulary)[-2:]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    (path / "tokenizer.json").write_text(json.dumps(tokens))
    with pytest.raises(UnsupportedFormat, match="was trained with another tokenizer"):
        inspect_adapter_in_child(path, base)
    scores = [[token, -1.0] for token in [*vocabulary][50:]]
    (path / "tokenizer.json").write_text(json.dumps({"model": {"type": "Unigram", "vocab": scores}}))
    with pytest.raises(UnsupportedFormat, match="was trained with another tokenizer"):
        inspect_adapter_in_child(path, base)
    (path / "tokenizer.json").rename(write_xlora(tmp_path / "x") / "adapters" / "adapter_1" / "tokenizer.json")
    with pytest.raises(UnsupportedFormat, match="was trained with another tokenizer"):
        inspect_adapter_in_child(tmp_path / "x", base)
    (path / "tokenizer.json").write_text("{")
    with pytest.raises(CorruptCheckpoint, match=r"tokenizer\.json is not JSON.*; copy the adapter again"):
        inspect_adapter_in_child(path, base)


def test_a_norm_is_refused(base: Inspection, tmp_path: Path) -> None:
    norm = {"base_model.model.model.norm.weight": torch.ones(32)}
    with pytest.raises(UnsupportedFormat, match="which is no matrix"):
        inspect_adapter_in_child(write_adapter(tmp_path / "norm", tensors=factors(1) | norm), base)


def test_broken_files_are_refused_in_words(base: Inspection, tmp_path: Path) -> None:
    path = write_adapter(tmp_path / "sql", 1)
    (path / "adapter_model.safetensors").write_bytes(b"no header")
    with pytest.raises(CorruptCheckpoint):
        inspect_adapter_in_child(path, base)


def test_values_that_are_no_numbers_are_found_in_the_child(base: Inspection, tmp_path: Path) -> None:
    tensors = factors(1)
    name = next(iter(tensors))
    tensors[name][0, 0] = torch.nan
    with pytest.raises(CorruptCheckpoint, match=f"{name} of the adapter has values that are infinite or no numbers"):
        inspect_adapter_in_child(write_adapter(tmp_path / "nan", tensors=tensors), base)
