"""Which matrices get a form of their own, and the bytes that each form takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from inference.errors import UnsupportedFormat
from inference.llm.quantising.parts import find_parts, fixed_bytes
from inference.llm.quantising.source import SourceTensor
from inference.modelling.quantisation import OWN_FORMS, coded_bytes
from tests.inference.llm.quantising.checkpoints import inspect, parts_of, tensors_of
from tests.inference.modelling.huggingface import make_checkpoint
from tests.inference.modelling.test_quantisation import ATTENTION, CONFIGS, SIZES


def test_matrices_of_a_layer_and_both_stacks_of_experts(tmp_path: Path) -> None:
    directory, _ = make_checkpoint(CONFIGS["granitemoehybrid"](), tmp_path)
    found = inspect(directory)
    parts = parts_of(found)
    names = [part.name for part in parts]
    assert names[0] == "embed_tokens.weight"
    assert [part.layer for part in parts] == sorted(part.layer for part in parts)
    (experts,) = [part for part in parts if part.name == "layers.0.channel_mixer.experts"]
    assert {name.rpartition(".")[2] for name in experts.parameters} == {"gate_up_proj", "down_proj"}
    for name, form in OWN_FORMS.items():
        assert experts.sizes[name] >= sum(coded_bytes(shape, form) for shape in experts.parameters.values())
    assert list(experts.sizes.values()) == sorted(experts.sizes.values())
    assert not any(word in name for name in names for word in ("A_log", "norm", "router", "conv1d", "dt_bias"))
    stored = fixed_bytes(parts, tensors_of(found).tensors) + sum(part.stored_bytes for part in parts)
    assert found.size_bytes <= stored < found.size_bytes + 200 * (len(found.tensors) + 2)


def test_a_matrix_whose_columns_fill_no_bytes_stays(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(**SIZES | ATTENTION | {"intermediate_size": 100})
    directory, _ = make_checkpoint(config, tmp_path)
    found = inspect(directory)
    names = {name for part in parts_of(found) for name in part.parameters}
    assert "layers.0.channel_mixer.gate_up_proj.weight" in names
    assert "layers.0.channel_mixer.down_proj.weight" not in names, "100 codes of 3 bits end within a byte"


def test_experts_whose_rows_fill_no_blocks_stay(tmp_path: Path) -> None:
    directory, _ = make_checkpoint(CONFIGS["deepseek_v2"](), tmp_path)
    found = inspect(directory)
    experts = [name for part in parts_of(found) for name in part.parameters if "experts." in name]
    assert experts == ["layers.1.channel_mixer.experts.down_proj"], "gate and up have 40 rows each"


def test_matrices_in_doubles_stay(tmp_path: Path) -> None:
    directory, _ = make_checkpoint(CONFIGS["llama"](), tmp_path)
    found = inspect(directory)
    narrow = {name: SourceTensor(info.shape, "F64", 4) for name, info in found.tensors.items()}
    with pytest.raises(UnsupportedFormat, match="no matrix of the checkpoint is large enough"):
        find_parts(found.spec, narrow)
