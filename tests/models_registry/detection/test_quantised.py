"""Where a quantisation may be stated, and what inspections say of quantised checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import LlamaConfig

from inference.errors import MissingTensor, TensorShapeMismatch, UnsupportedFormat
from models_registry.detection.describe import describe
from models_registry.detection.inspection import inspect_checkpoint
from tests.faults.artefacts.quantised import GPTQ, QUERY, gptq_parts, write_quantised
from tests.inference.modelling.encodings.checkpoints import write_pair
from tests.inference.modelling.encodings.formats import FORMATS
from tests.models_registry.detection.builders import LLAMA_CONFIG, fact, write_json

SIZES = {
    "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 128, "tie_word_embeddings": False,
}  # fmt: skip


def test_a_quantised_checkpoint_is_read_as_the_one_before(tmp_path: Path) -> None:
    write_quantised(gptq_parts, GPTQ)(tmp_path)
    found = inspect_checkpoint(tmp_path)
    assert found.spec.model_type == "llama"
    assert {item.name for item in found.spec.encoded} >= {f"{QUERY}weight"}
    assert fact(found, "quantisation").value == "gptq, gptq, 4 bits, groups of 8"
    assert "14 of 21 weights" in fact(found, "quantisation").evidence
    assert describe(found)["num_parameters"] == found.spec.num_parameters()
    (warning,) = [warning for warning in found.warnings if "quantised weights" in warning]
    assert "14 of 14 quantised weights" in warning, "no product takes groups of 8"
    assert "quant int8 or int4" in warning, "what makes them small again is stated"


def test_codes_that_are_kept_cost_nothing(tmp_path: Path) -> None:
    write_pair(LlamaConfig(**SIZES), tmp_path, FORMATS["gptq-4"])
    assert not any("quantised weights" in warning for warning in inspect_checkpoint(tmp_path / "quantised").warnings)


@pytest.mark.parametrize("name", ["quantize_config.json"])
def test_the_file_beside_is_read_after_config_json(name: str, tmp_path: Path) -> None:
    write_quantised(gptq_parts, None)(tmp_path)
    write_json(tmp_path / name, GPTQ | {"bits": 8})
    with pytest.raises(TensorShapeMismatch, match=f"{name} says 8 bits"):
        inspect_checkpoint(tmp_path)
    write_json(tmp_path / "config.json", LLAMA_CONFIG | {"quantization_config": GPTQ})
    assert inspect_checkpoint(tmp_path).spec.encoded


def test_a_config_without_such_tensors_is_refused(llama: Path) -> None:
    write_json(llama / "config.json", LLAMA_CONFIG | {"quantization_config": {"quant_method": "gptq", "bits": 4}})
    with pytest.raises(UnsupportedFormat, match="no tensor is stored in that form"):
        inspect_checkpoint(llama)
    write_json(llama / "config.json", LLAMA_CONFIG | {"quantization_config": {"quant_method": "exl2"}})
    with pytest.raises(UnsupportedFormat, match="'exl2', which is not read; read are gptq"):
        inspect_checkpoint(llama)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    write_quantised(gptq_parts, GPTQ, {"scales": None})(tmp_path)
    with pytest.raises(MissingTensor, match=f"{QUERY}scales".replace(".", r"\.")):
        inspect_checkpoint(tmp_path)
