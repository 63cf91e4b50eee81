"""Format and model_type: stated, known by another name, guessed aloud, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.errors import (
    InvalidRequest,
    UnsupportedArchitecture,
)
from inference.modelling.families.config import CheckpointConfig, Confidence, Facts
from inference.modelling.families.registry import FAMILIES
from models_registry.detection.architecture import ARCHITECTURE_NAMES, detect_model_type
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


NO_TYPE = {key: value for key, value in LLAMA_CONFIG.items() if key not in ("model_type", "architectures")}


@pytest.mark.parametrize("model_type", ["brandnew", "doge", "emu3", "reformer", "hrm_text", "blt", 7])
def test_a_type_outside_the_list_is_refused_with_the_override(llama: Path, model_type: object) -> None:
    """Although every tensor has llama's name and shape: another type may compute with other multipliers."""
    write_json(llama / "config.json", LLAMA_CONFIG | {"model_type": model_type, "architectures": None})
    with pytest.raises(UnsupportedArchitecture) as caught:
        inspect_checkpoint(llama)
    for part in (
        str(model_type),
        f"{len(FAMILIES)} types are supported",
        "nearest is llama",
        "--override model_type=llama",
    ):
        assert part in caught.value.message
    assert caught.value.param == "model_type"
    assert inspect_checkpoint(llama, overrides={"model_type": "llama"}).spec.model_type == "llama"


@pytest.mark.parametrize(
    ("stated", "nearest"),
    [("mistral9", "mistral"), ("Qwen2", "qwen2"), ("gemma9", "gemma")],
)
def test_the_nearest_type_goes_by_spelling_first(llama: Path, stated: str, nearest: str) -> None:
    write_json(llama / "config.json", LLAMA_CONFIG | {"model_type": stated})
    with pytest.raises(UnsupportedArchitecture, match=f"nearest is {nearest} .*--override model_type={nearest}"):
        inspect_checkpoint(llama)


def test_a_type_that_computes_otherwise_is_refused_with_the_reason(llama: Path) -> None:
    write_json(llama / "config.json", LLAMA_CONFIG | {"model_type": "paligemma"})
    with pytest.raises(UnsupportedArchitecture, match="'paligemma' is not supported: every token of a prompt sees all"):
        inspect_checkpoint(llama)


def test_a_missing_type_is_inferred_loudly(llama: Path) -> None:
    write_json(llama / "config.json", NO_TYPE)
    found = inspect_checkpoint(llama)
    assert (found.spec.model_type, fact(found, "model_type").confidence) == ("llama", Confidence.LOW)
    assert any("no model_type" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("stated", "class_"),
    [
        (None, "DogeForCausalLM"),
        (None, "LlamaForSequenceClassification"),
        ("llama", "BitnetForCausalLM"),
        ("llama", "MistralForCausalLM"),
        ("llama", "LlamaEncoderModel"),
    ],
)
def test_a_class_outside_the_list_is_refused(llama: Path, stated: str | None, class_: str) -> None:
    write_json(llama / "config.json", LLAMA_CONFIG | {"model_type": stated, "architectures": [class_]})
    with pytest.raises(UnsupportedArchitecture, match=f"architectures '{class_}'.*not supported.*override") as caught:
        inspect_checkpoint(llama)
    assert caught.value.param == "architectures"
    assert inspect_checkpoint(llama, overrides={"model_type": "llama"}).spec.model_type == "llama"


@pytest.mark.parametrize("class_", ["LLaMAForCausalLM", "LlamaModel"])
def test_spellings_of_a_known_class(llama: Path, class_: str) -> None:
    write_json(llama / "config.json", LLAMA_CONFIG | {"architectures": [class_]})
    assert inspect_checkpoint(llama).spec.model_type == "llama"


@pytest.mark.parametrize("stated", ["kimi_k2", "deepseek_v3"])
def test_two_types_of_one_class(stated: str) -> None:
    """Kimi K2 names DeepSeek V3's class."""
    config = CheckpointConfig({"model_type": stated, "architectures": ["DeepseekV3ForCausalLM"]})
    assert detect_model_type(["model.norm.weight"], "huggingface", config, Facts()) == (stated, False)
    unstated = CheckpointConfig({"architectures": ["DeepseekV3ForCausalLM"]})
    assert detect_model_type(["model.norm.weight"], "huggingface", unstated, Facts()) == ("deepseek_v3", False)


def test_a_guess_that_leaves_tensors_over_is_refused(llama: Path) -> None:
    write_json(llama / "config.json", NO_TYPE)
    write_tensors(llama / "model.safetensors", llama_shapes() | {"model.layers.0.self_attn.sinks": (4,)})
    with pytest.raises(UnsupportedArchitecture, match="sinks"):
        inspect_checkpoint(llama)


def test_names_without_a_prefix_go_by_the_stated_type(tmp_path: Path) -> None:
    """A base model saved alone has the names of oxidizr's attention layers, and its family's arithmetic."""
    shapes = {name.removeprefix("model."): shape for name, shape in llama_shapes().items()}
    path = write_checkpoint(tmp_path, shapes, LLAMA_CONFIG)
    assert (inspect_checkpoint(path).spec.format, inspect_checkpoint(path).spec.model_type) == ("huggingface", "llama")
    write_json(path / "config.json", LLAMA_CONFIG | {"model_type": "doge", "architectures": ["DogeModel"]})
    with pytest.raises(UnsupportedArchitecture, match="'doge' is not supported"):
        inspect_checkpoint(path)
    write_json(path / "config.json", NO_TYPE)
    assert inspect_checkpoint(path).spec.model_type == "oxidizr"
    assert inspect_checkpoint(path, overrides={"model_type": "mistral"}).spec.model_type == "mistral"


def test_oxidizr_stated_for_prefixed_names_is_refused(llama: Path) -> None:
    write_json(llama / "config.json", LLAMA_CONFIG | {"model_type": "oxidizr"})
    with pytest.raises(UnsupportedArchitecture, match=r"'oxidizr', but .*nearest is llama"):
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
