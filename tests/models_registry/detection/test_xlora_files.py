"""Files of X-LoRAs: both layouts, where the adapters are, orderings, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from inference.errors import CheckpointError, CorruptCheckpoint, MissingTensor, TensorShapeMismatch, UnsupportedFormat
from inference.modelling.lora.modules import BaseModules
from inference.modelling.lora.xlora_plan import XLoraPlan
from models_registry.detection.adapter_facts import base_facts
from models_registry.detection.child import inspect_adapter_in_child
from models_registry.detection.inspection import inspect_checkpoint
from models_registry.detection.xlora_files import XLoraFiles, read_files
from tests.inference.llm.adapter_writing import SHAPES, factors, write_adapter, write_xlora
from tests.inference.llm.harness import Checkpoint

MODULES = [f"model.layers.{layer}.{name}" for layer in range(2) for name in SHAPES]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("base")
    Checkpoint(directory)
    return inspect_checkpoint(directory)


def plan(base: Any, path: Path) -> XLoraPlan:
    shapes = {name: tuple(shape) for name, shape in base_facts(base)["shapes"].items()}
    files = read_files(path)
    assert isinstance(files, XLoraFiles)
    return files.plan(BaseModules(base.spec, shapes.__getitem__))


def change(path: Path, **values: Any) -> None:
    content = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in content.items() if value != "gone"}))


@pytest.mark.parametrize("is_old", [False, True])
def test_both_layouts_are_read(base: Any, tmp_path: Path, is_old: bool) -> None:
    found = plan(base, write_xlora(tmp_path / "x", is_old=is_old, layerwise_scalings=True))
    assert found.num_scaled == 14 and len(found.adapters) == 2 and found.config.has_relu is not is_old
    numbers = {matrix.module: matrix.scaling for matrix in found.adapters[1].matrices}
    assert numbers == {module: (number, 1) for number, module in enumerate(MODULES)}
    files = read_files(tmp_path / "x")
    digest = files.digest()
    assert len(files.weight_files) == 3 and digest == read_files(tmp_path / "x").digest()
    write_adapter(tmp_path / "x" / "adapters" / "adapter_1", 77)
    assert digest != read_files(tmp_path / "x").digest()


def test_the_child_reads_adapters_below_the_directory(base: Any, tmp_path: Path) -> None:
    found = inspect_adapter_in_child(write_xlora(tmp_path / "x"), base)
    assert found.is_xlora and found.rank == 4 and "q_proj" in found.targets
    assert not inspect_adapter_in_child(write_adapter(tmp_path / "a"), base).is_xlora


def test_checkpoints_of_a_training_beside_its_adapter_are_left_alone(base: Any, tmp_path: Path) -> None:
    path = write_adapter(tmp_path / "run")
    for number in range(70):
        (path / f"checkpoint-{number}").mkdir()
        (path / f"checkpoint-{number}" / "adapter_config.json").touch()
    assert not inspect_adapter_in_child(path, base).is_xlora
    write_xlora(path)
    with pytest.raises(CorruptCheckpoint, match="more than 64 adapters in it; leave those"):
        inspect_adapter_in_child(path, base)


def test_an_ordering_file_says_which_output_is_whose(base: Any, tmp_path: Path) -> None:
    path = write_xlora(tmp_path / "x", is_old=True, layerwise_scalings=True)
    layers = {module: number for number, module in enumerate(reversed(MODULES))}
    ordering = path / "my-ordering.json"
    ordering.write_text(json.dumps({"order": ["adapter_1", "adapter_0"], "layers": layers}))
    found = plan(base, path)
    assert [name for name, _ in found.config.adapters] == ["adapter_1", "adapter_0"]
    assert {matrix.module: matrix.scaling[0] for matrix in found.adapters[0].matrices if matrix.scaling} == layers
    for content, message in (
        ({"order": ["adapter_1"]}, "name different adapters"),
        ({"layers": {MODULES[0]: 1}}, "numbers from 0 on"),
        ({"layers": {MODULES[0]: 0}}, "no number for"),
        ({"order": 5}, "order = '5'"),
    ):
        ordering.write_text(json.dumps(content))
        with pytest.raises(CheckpointError, match=message):
            plan(base, path)
    (path / "ordering.json").write_text("{}")
    with pytest.raises(CorruptCheckpoint, match="2 ordering files"):
        read_files(path)


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"hidden_size": 64}, TensorShapeMismatch, "hidden_size 64, the base's is 32"),
        ({"hidden_size": True}, CorruptCheckpoint, "hidden_size"),
        ({"adapters": {}}, CorruptCheckpoint, "1 to 64 adapters"),
        ({"adapters": {"adapter_0": 7}}, CorruptCheckpoint, "1 to 64 adapters"),
        ({"adapters": {"../../etc": "../../etc", "b": "b"}}, CorruptCheckpoint, "isn't there once"),
        ({"adapters": ["adapter_0"]}, TensorShapeMismatch, r"shape \[2, 32\]; it must be \[1, 32\]"),
        ({"xlora_depth": 2}, MissingTensor, "1 matrices, adapter_config.json says xlora_depth 2"),
        ({"xlora_depth": 10**9}, CorruptCheckpoint, "xlora_depth"),
        ({"layerwise_scalings": True}, TensorShapeMismatch, r"it must be \[28, 32\]"),
        ({"softmax_temperature": 0}, CorruptCheckpoint, "more than 0"),
        ({"top_k_lora": 3}, CorruptCheckpoint, "top_k_lora = '3'; it must be a number from 1 to 2"),
        ({"global_scaling_weight": "a"}, CorruptCheckpoint, "global_scaling_weight"),
        ({"new_gate": 4}, UnsupportedFormat, "new_gate = '4', which isn't known of X-LoRA"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    base: Any, tmp_path: Path, values: dict[str, Any], error: type[Exception], message: str
) -> None:
    path = write_xlora(tmp_path / "x")
    change(path / "adapter_config.json", **values)
    with pytest.raises(error, match=message):
        plan(base, path)


def test_a_broken_adapter_is_named(base: Any, tmp_path: Path) -> None:
    own = write_xlora(tmp_path / "x") / "adapters" / "adapter_1"
    write_adapter(own, tensors=factors(1, layers=3))
    with pytest.raises(MissingTensor, match=r"adapter 'adapter_1' of the X-LoRA: the adapter changes model\.layers\.2"):
        plan(base, tmp_path / "x")
    (own / "adapter_config.json").write_text("{")
    with pytest.raises(CorruptCheckpoint, match=r"adapter 'adapter_1' of the X-LoRA: adapter_config\.json is not JSON"):
        read_files(tmp_path / "x")


def test_adapters_that_can_not_be_scaled_are_refused(base: Any, tmp_path: Path) -> None:
    path = write_xlora(tmp_path / "x")
    own = path / "adapters" / "adapter_1"
    tensors = factors(1)
    bias = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.bias"
    write_adapter(own, tensors=tensors | {bias: torch.zeros(32)}, lora_bias=True)
    with pytest.raises(UnsupportedFormat, match="adapter 'adapter_1' of the X-LoRA has lora_bias"):
        plan(base, path)
    head = {"base_model.model.model.embed_tokens.weight": torch.zeros(base.spec.vocab_size, 32)}
    write_adapter(own, tensors=tensors | head, modules_to_save=["embed_tokens"])
    with pytest.raises(UnsupportedFormat, match=r"has base_model.*embed_tokens"):
        plan(base, path)


def test_broken_classifiers_are_refused(base: Any, tmp_path: Path) -> None:
    path = write_xlora(tmp_path / "x", is_old=True)
    file = path / "xlora_classifier.safetensors"
    for tensors, error, message in (
        ({"last.weight": torch.zeros(3, 32)}, TensorShapeMismatch, r"\[3, 32\]; it must be \[2, 32\]"),
        ({"last.weight": torch.zeros(2, 32), "last.bias": torch.zeros(3)}, TensorShapeMismatch, r"\[3\]"),
        ({"last.bias": torch.zeros(2)}, MissingTensor, "no last.weight"),
        ({"last.weight": torch.zeros(2, 32), "gate.weight": torch.zeros(2)}, UnsupportedFormat, "gate.weight"),
        ({"last.weight": torch.zeros(2, 32, dtype=torch.int8)}, UnsupportedFormat, "I8"),
    ):
        save_file(tensors, str(file))
        with pytest.raises(error, match=message):
            plan(base, path)
    file.unlink()
    with pytest.raises(CorruptCheckpoint, match=r"no xlora_classifier\.safetensors beside it"):
        read_files(path)


def test_links_lead_to_no_adapters(base: Any, tmp_path: Path) -> None:
    path = write_xlora(tmp_path / "x")
    (path / "adapters" / "adapter_1").rename(tmp_path / "elsewhere")
    (path / "adapters" / "adapter_1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorruptCheckpoint, match=r"'adapter_1'.*isn't there once"):
        read_files(path)
