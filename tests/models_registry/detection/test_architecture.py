"""Format and model_type: stated, known by another name, guessed aloud, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.errors import (
    InvalidRequest,
    UnsupportedArchitecture,
    UnsupportedFormat,
)
from inference.modelling.families.config import Confidence
from inference.modelling.families.registry import FAMILIES
from models_registry.detection.architecture import ARCHITECTURE_NAMES
from models_registry.detection.facts import ALIASES, FACTS
from models_registry.detection.inspection import inspect_checkpoint
from tests.models_registry.detection.builders import (
    LLAMA_CONFIG,
    fact,
    llama_shapes,
    small_hybrid,
    write_checkpoint,
    write_json,
    write_tensors,
)


def test_huggingface_by_model_type(llama: Path) -> None:
    found = inspect_checkpoint(llama)
    assert (found.spec.format, found.spec.model_type) == ("huggingface", "llama")
    assert fact(found, "model_type").confidence is Confidence.CERTAIN
    assert found.tokenizer.kind == "none"


def test_model_type_from_architectures(llama: Path) -> None:
    config = {key: value for key, value in LLAMA_CONFIG.items() if key != "model_type"}
    write_json(llama / "config.json", config)
    found = inspect_checkpoint(llama)
    assert (found.spec.model_type, fact(found, "model_type").confidence) == ("llama", Confidence.HIGH)


def test_unknown_model_type_with_known_names_is_a_loud_guess(llama: Path) -> None:
    write_json(llama / "config.json", LLAMA_CONFIG | {"model_type": "brandnew", "architectures": ["BrandNew"]})
    found = inspect_checkpoint(llama)
    assert (found.spec.model_type, fact(found, "model_type").confidence) == ("llama", Confidence.LOW)
    assert any("brandnew" in warning for warning in found.warnings)


def test_a_guess_that_leaves_tensors_over_is_refused(llama: Path) -> None:
    write_json(llama / "config.json", LLAMA_CONFIG | {"model_type": "brandnew"})
    write_tensors(llama / "model.safetensors", llama_shapes() | {"model.layers.0.self_attn.sinks": (4,)})
    with pytest.raises(UnsupportedArchitecture, match="sinks"):
        inspect_checkpoint(llama)


@pytest.mark.parametrize("model_type", ["gemma", "cohere", "granite", "olmo2", "qwen3_next", "gpt_oss"])
def test_types_that_only_look_alike_are_refused(llama: Path, model_type: str) -> None:
    write_json(llama / "config.json", LLAMA_CONFIG | {"model_type": model_type})
    with pytest.raises(UnsupportedArchitecture, match=f"{model_type}.*not supported; supported are"):
        inspect_checkpoint(llama)


def test_unrecognisable_names_are_refused_with_some_of_them(tmp_path: Path) -> None:
    for names in ({"model.foo.weight": (2, 2)}, {"encoder.weight": (2, 2)}):
        path = write_checkpoint(tmp_path / next(iter(names)), names, {"model_type": "what"})
        with pytest.raises(UnsupportedArchitecture, match=next(iter(names))):
            inspect_checkpoint(path)


def test_the_operators_model_type_wins(llama: Path) -> None:
    found = inspect_checkpoint(llama, overrides={"model_type": "mistral"})
    assert found.spec.model_type == "mistral"
    assert fact(found, "model_type").confidence is Confidence.OVERRIDE
    with pytest.raises(InvalidRequest, match="one of"):
        inspect_checkpoint(llama, overrides={"model_type": "gpt5"})


def test_oxidizr_names_win_over_a_stated_type(hybrid: Path) -> None:
    write_json(hybrid / "config.json", small_hybrid()[1] | {"model_type": "llama"})
    found = inspect_checkpoint(hybrid)
    assert found.spec.model_type == "oxidizr"
    assert any("llama" in warning for warning in found.warnings)


def test_tables_of_types_agree_with_the_registry() -> None:
    assert set(ARCHITECTURE_NAMES.values()) <= set(FAMILIES)
    assert set(ALIASES.values()) <= set(FACTS)
    assert not set(ALIASES) & set(FACTS)


def test_quantised_weights_are_refused(llama: Path) -> None:
    write_json(llama / "config.json", LLAMA_CONFIG | {"quantization_config": {"quant_method": "gptq", "bits": 4}})
    with pytest.raises(UnsupportedFormat, match="gptq"):
        inspect_checkpoint(llama)
    write_json(llama / "config.json", LLAMA_CONFIG)
    write_tensors(llama / "model.safetensors", llama_shapes() | {"model.layers.0.mlp.up_proj.qweight": (2, 2)})
    with pytest.raises(UnsupportedFormat, match="qweight"):
        inspect_checkpoint(llama)
