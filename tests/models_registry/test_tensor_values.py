"""Statistics of a checkpoint's tensor, by the real child process."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from django.test import Client
from safetensors.numpy import load_file, save_file
from transformers import LlamaConfig

from inference.errors import ChecksumMismatch, InvalidRequest, NotFound, QueueFull
from inference.modelling.families.config import TensorInfo
from models_registry import services, tensor_values
from models_registry.selectors import checkpoint_inspection
from models_registry.tensor_values import run_child, tensor_changes, tensor_statistics, why_not
from tests.inference.modelling.encodings.checkpoints import write_pair
from tests.inference.modelling.encodings.formats import FORMATS
from tests.inference.modelling.gguf.converter import convert
from tests.inference.modelling.huggingface import make_checkpoint
from tests.models_registry.detection.builders import small_hybrid, write_checkpoint

pytestmark = pytest.mark.django_db


def test_a_child_reads_the_values(hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    name, values = next(iter(load_file(hybrid / "model.safetensors").items()))
    found = tensor_statistics(row, name)
    assert found["count"] == values.size
    assert found["mean"] == pytest.approx(float(values.astype(np.float64).mean()), abs=1e-9)
    with pytest.raises(NotFound, match="no tensor"):
        tensor_statistics(row, "nothing")


def test_changed_files_are_not_read(hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    with (hybrid / "model.safetensors").open("ab") as file:
        file.write(b"x")
    with pytest.raises(ChecksumMismatch):
        tensor_statistics(row, row.inspection["tensors"][0][0])


def test_changes_between_two_checkpoints(hybrid: Path, tmp_path: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    place = shutil.copytree(hybrid, tmp_path / "after")
    tensors = load_file(place / "model.safetensors")
    first, second = list(tensors)[:2]
    tensors[first] = tensors[first] * np.float32(1.5)
    save_file(tensors, place / "model.safetensors")
    found = tensor_changes(row, services.checkpoint_register(path=place))
    by_name = {item["name"]: item for item in found["changes"]}
    assert by_name[first]["relative"] == pytest.approx(0.5) and not by_name[first]["is_equal"]
    assert by_name[second]["is_equal"] and len(by_name) == len(tensors)
    assert (found["num_others"], found["num_unread"]) == (0, 0)


def test_other_shapes_and_formats_are_no_change(hybrid: Path, tmp_path: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    shapes, config = small_hybrid()
    half = services.checkpoint_register(path=write_checkpoint(tmp_path / "half", shapes, config, dtype="float16"))
    found = tensor_changes(row, half)
    assert found["num_others"] == 0 and all(item["relative"] < 1e-3 for item in found["changes"])
    one, other = map(checkpoint_inspection, (row, half))
    name = next(iter(one.tensors))
    one.tensors[name] = TensorInfo("F32", (1,), one.tensors[name].file, 0, 4)
    names, num_others = tensor_values._pairs(one, other)
    assert name not in names and num_others == 1


@pytest.mark.parametrize(
    ("info", "words"),
    [
        (TensorInfo("Q4_K", (256,), "a.gguf", 0, 144), "blocks of Q4_K"),
        (TensorInfo("F32", (4,), "a.gguf", 0, 8), "several pieces"),
        (TensorInfo("F32", (0,), "a", 0, 0), "no values"),
        (TensorInfo("F32", (2, 2), "a", 0, 16), ""),
    ],
)
def test_why_values_cannot_be_summed_up(info: TensorInfo, words: str) -> None:
    assert words in why_not(info) and bool(words) == bool(why_not(info))


def test_one_computation_runs_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_values, "WAIT_S", 0.01)
    with tensor_values._turn, pytest.raises(QueueFull, match="other tensors are being read"):
        run_child({"work": "summarise"})


def test_time_is_bounded(child_script) -> None:
    child_script("time.sleep(60)")
    with pytest.raises(InvalidRequest, match="took longer than"):
        run_child({"work": "summarise"}, max_seconds=0.2)
    assert not tensor_values._turn.locked()
    assert math.isfinite(tensor_values.MAX_SECONDS)


@pytest.fixture
def llama(tmp_path: Path) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2,
    )  # fmt: skip


def test_blocks_of_a_gguf_file_are_decoded(tmp_path: Path, llama: LlamaConfig, browser: Client) -> None:
    directory, _ = make_checkpoint(llama, tmp_path / "made")
    name = "model.layers.0.mlp.up_proj.weight"
    values = load_file(directory / "model.safetensors")[name].astype(np.float64)
    row = services.checkpoint_register(path=convert(directory, tmp_path / "tiny.gguf", "Q8_0"))
    found = tensor_statistics(row, name)
    assert (found["count"], found["num_read"]) == (values.size, values.size)
    assert found["mean"] == pytest.approx(values.mean(), abs=1e-3 * values.std())
    assert found["std"] == pytest.approx(values.std(), rel=1e-2)
    address = f"/models/{row.pk}/?tab=tensors&q=up_proj&tensor={name}"
    closed = browser.get(address).content.decode()
    assert "Read its values" in closed and "which decodes them" in closed
    text = browser.get(f"{address}&figures=1").content.decode()
    assert "Values decoded from Q8_0" in text and "All 4,096 values were read" in text


def test_the_weight_behind_codes_is_decoded(tmp_path: Path, llama: LlamaConfig, browser: Client) -> None:
    quantised, twin = write_pair(llama, tmp_path, FORMATS["gptq-4"])
    row = services.checkpoint_register(path=quantised)
    weight = "model.layers.0.mlp.up_proj.weight"
    name = weight.removesuffix("weight") + "qweight"
    values = load_file(twin / "model.safetensors")[weight].astype(np.float64)
    decoded, codes = tensor_statistics(row, name, of_weight=True), tensor_statistics(row, name)
    assert decoded["std"] == pytest.approx(values.std(), rel=1e-5) and decoded["count"] == values.size
    assert codes["count"] == values.size // 8
    with pytest.raises(InvalidRequest, match="no part of a quantised weight"):
        tensor_statistics(row, "model.norm.weight", of_weight=True)
    address = f"/models/{row.pk}/?tab=tensors&tensor={name}"
    closed = browser.get(address).content.decode()
    assert "Decode the weight" in closed and "Read its codes" in closed
    text = browser.get(f"{address}&figures=weight").content.decode()
    assert "decoded from its codes" in text and weight in text and "All 4,096 values" in text
    assert "its values aren&#x27;t the weight&#x27;s" not in text
    plain = browser.get(f"/models/{row.pk}/?tab=tensors&tensor=model.norm.weight&figures=weight").content.decode()
    assert "Read its values" in plain and "decoded" not in plain
