"""Whole inspections: files in, one value out, or one sentence that says why not."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from inference.errors import (
    BlazrError,
    CheckpointError,
    CorruptCheckpoint,
    InvalidRequest,
    MissingTensor,
    TensorShapeMismatch,
    UnsupportedArchitecture,
    UnsupportedFormat,
)
from inference.modelling.families.config import Confidence
from inference.modelling.families.registry import FAMILIES
from models_registry.detection.architecture import ARCHITECTURE_NAMES
from models_registry.detection.describe import describe
from models_registry.detection.facts import ALIASES, FACTS
from models_registry.detection.inspection import Inspection, inspect_checkpoint
from tests.models_registry.detection.builders import (
    Shapes,
    gqa_mlp,
    mamba2,
    model,
    small_hybrid,
    write_checkpoint,
    write_json,
    write_tensors,
)

LLAMA_CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 24, "vocab_size": 64,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "torch_dtype": "float32",
}  # fmt: skip


def llama_shapes() -> Shapes:
    shapes = model(16, 64, *(gqa_mlp(n, 16, heads=4, kv=2, f=24) for n in range(2)))
    return {name if name.startswith("lm_head") else f"model.{name}": shape for name, shape in shapes.items()}


@pytest.fixture
def hybrid(tmp_path: Path) -> Path:
    shapes, config = small_hybrid()
    return write_checkpoint(tmp_path / "hybrid", shapes, config)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "llama", llama_shapes(), LLAMA_CONFIG)


def fact(found: Inspection, name: str) -> Any:
    return next(item for item in found.facts if item.name == name)


# --- what comes out ----------------------------------------------------------------------------


def test_json_round_trip_is_equal(hybrid: Path, llama: Path) -> None:
    for path in (hybrid, llama):
        found = inspect_checkpoint(path)
        text = json.dumps(found.to_dict(), allow_nan=False)
        assert Inspection.from_dict(json.loads(text)) == found


def test_files_sizes_and_paths(hybrid: Path) -> None:
    write_json(hybrid / "tokenizer.json", {"added_tokens": []})
    found = inspect_checkpoint(hybrid)
    assert found.directory == hybrid
    assert found.weight_files == ("model.safetensors",)
    assert found.weight_paths == (hybrid / "model.safetensors",)
    assert found.size_bytes == (hybrid / "model.safetensors").stat().st_size
    assert {file.path: file.role for file in found.files} == {
        "model.safetensors": "weights", "config.json": "config", "tokenizer.json": "tokenizer",
    }  # fmt: skip
    assert found.num_parameters == sum(math.prod(info.shape) for info in found.tensors.values())


def test_moving_takes_the_tokenizer_along(hybrid: Path, tmp_path: Path) -> None:
    write_json(hybrid / "tokenizer.json", {"added_tokens": []})
    found = inspect_checkpoint(hybrid)
    hybrid.rename(tmp_path / "elsewhere")
    moved = found.moved_to(tmp_path / "elsewhere")
    assert moved == inspect_checkpoint(tmp_path / "elsewhere")


def test_the_real_demo_values(hybrid: Path) -> None:
    """Header positions are where the library finds the values."""
    from safetensors import safe_open

    found = inspect_checkpoint(hybrid)
    content = (hybrid / "model.safetensors").read_bytes()
    with safe_open(hybrid / "model.safetensors", framework="np") as handle:
        for name, info in found.tensors.items():
            stored = np.frombuffer(content[info.begin : info.end], np.float32).reshape(info.shape)
            assert np.array_equal(stored, handle.get_tensor(name))


def test_huggingface_by_model_type(llama: Path) -> None:
    found = inspect_checkpoint(llama)
    assert (found.spec.format, found.spec.model_type) == ("huggingface", "llama")
    assert fact(found, "model_type").confidence is Confidence.CERTAIN
    assert found.tokenizer.kind == "none"


def test_sharded_with_and_without_an_index(tmp_path: Path) -> None:
    shapes = llama_shapes()
    names = sorted(shapes)
    files = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    parts = {files[0]: names[:7], files[1]: names[7:]}
    for file, members in parts.items():
        write_tensors(tmp_path / file, {name: shapes[name] for name in members})
    write_json(tmp_path / "config.json", LLAMA_CONFIG)
    plain = inspect_checkpoint(tmp_path)
    assert plain.weight_files == files
    weight_map = {name: file for file, members in parts.items() for name in members}
    write_json(tmp_path / "model.safetensors.index.json", {"weight_map": weight_map})
    assert inspect_checkpoint(tmp_path).spec == plain.spec
    write_json(tmp_path / "model.safetensors.index.json", {"weight_map": weight_map | {"model.more": files[1]}})
    with pytest.raises(MissingTensor, match=r"model\.more should be in model-00002"):
        inspect_checkpoint(tmp_path)
    write_tensors(tmp_path / files[1], {name: shapes[name] for name in names[6:]})
    write_json(tmp_path / "model.safetensors.index.json", {"weight_map": weight_map})
    with pytest.raises(CorruptCheckpoint, match=r"is in model-00001.* and in model-00002"):
        inspect_checkpoint(tmp_path)


# --- model_type --------------------------------------------------------------------------------


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


# --- refusals ----------------------------------------------------------------------------------


def test_shapes_that_contradict_are_named_with_both(llama: Path) -> None:
    shapes = llama_shapes() | {"model.layers.1.input_layernorm.weight": (17,)}
    write_tensors(llama / "model.safetensors", shapes)
    with pytest.raises(TensorShapeMismatch) as caught:
        inspect_checkpoint(llama)
    for word in ("model.layers.1.input_layernorm.weight", "[17]", "[16]"):
        assert word in caught.value.message


def test_quantised_weights_are_refused(llama: Path) -> None:
    write_json(llama / "config.json", LLAMA_CONFIG | {"quantization_config": {"quant_method": "gptq", "bits": 4}})
    with pytest.raises(UnsupportedFormat, match="gptq"):
        inspect_checkpoint(llama)
    write_json(llama / "config.json", LLAMA_CONFIG)
    write_tensors(llama / "model.safetensors", llama_shapes() | {"model.layers.0.mlp.up_proj.qweight": (2, 2)})
    with pytest.raises(UnsupportedFormat, match="qweight"):
        inspect_checkpoint(llama)


def test_integer_weights_are_refused_by_name(llama: Path) -> None:
    tensors = {name: np.zeros(shape, np.float32) for name, shape in llama_shapes().items()}
    tensors["model.layers.0.mlp.up_proj.weight"] = np.zeros((24, 16), np.int8)
    save_file(tensors, llama / "model.safetensors")
    with pytest.raises(UnsupportedFormat, match=r"up_proj\.weight is stored as I8"):
        inspect_checkpoint(llama)


def test_a_file_without_tensors_is_refused(tmp_path: Path) -> None:
    save_file({}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="holds no tensors"):
        inspect_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        "[" * 100_000, '{"a":' * 50_000, "[]", "{", '{"hidden_size": 1099511627776}', '{"num_hidden_layers": 10000000}',
        '{"num_attention_heads": 0}', '{"vocab_size": -1}', '{"rope_theta": NaN}', '{"rope_theta": 1e999}',
        '{"hidden_act": "os.system"}', '{"num_attention_heads": "4"}', '{"head_dim": 7}', '{"rope_scaling": "x"}',
        '{"rope_parameters": [1]}', '{"num_key_value_heads": {}}', '{"max_position_embeddings": 1.5}',
        '{"tie_word_embeddings": "yes"}', '{"rms_norm_eps": null, "rope_scaling": {"rope_type": "dragon"}}',
        '{"num_attention_heads": ' + "9" * 5000 + "}",
    ],
)  # fmt: skip
def test_hostile_configs_are_refused_quickly(llama: Path, config: str) -> None:
    """Refused, or (where the tensors say otherwise) overruled; never a crash, never slow."""
    if config.startswith('{"') and config.endswith("}"):
        merged = json.loads(json.dumps(LLAMA_CONFIG))
        text = json.dumps(merged)[:-1] + "," + config[1:]
    else:
        text = config
    (llama / "config.json").write_text(text)
    began = time.process_time()
    try:
        found = inspect_checkpoint(llama)
    except BlazrError as error:
        assert len(error.message) < 1000
    else:
        assert found.warnings
    assert time.process_time() - began < 2


def test_a_million_keys_are_cheap(llama: Path) -> None:
    text = json.dumps(LLAMA_CONFIG)[:-1] + "".join(f',"{n:x}":0' for n in range(90_000)) + "}"
    (llama / "config.json").write_text(text)
    began = time.process_time()
    inspect_checkpoint(llama)
    assert time.process_time() - began < 4
    (llama / "config.json").write_text(text + " " * (1 << 20))
    with pytest.raises(CorruptCheckpoint, match="the limit is 1048576"):
        inspect_checkpoint(llama)


def test_auto_map_is_noted_and_never_run(llama: Path) -> None:
    canary = llama / "canary"
    (llama / "modeling_evil.py").write_text(f"open({str(canary)!r}, 'w')")
    write_json(llama / "config.json", LLAMA_CONFIG | {"auto_map": {"AutoModelForCausalLM": "modeling_evil.Evil"}})
    found = inspect_checkpoint(llama)
    assert any("auto_map" in warning and "never run" in warning for warning in found.warnings)
    assert not canary.exists()


def test_inspection_imports_neither_torch_nor_django(hybrid: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from models_registry.detection import child, describe, inspection\n"
        f"describe.describe(inspection.inspect_checkpoint(Path({str(hybrid)!r})))\n"
        "heavy = {'torch', 'django', 'transformers', 'safetensors', 'numpy', 'jinja2', 'tokenizers'}\n"
        "found = heavy & set(sys.modules)\n"
        "assert not found, found\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


# --- overrides ---------------------------------------------------------------------------------


def test_overrides_reach_the_spec(hybrid: Path) -> None:
    overrides = {
        "top_k": 3, "rope_theta": 5e5, "rms_norm_eps": 1e-3, "max_seq_len": 7, "head_dim": 4, "vocabulary": "llama3",
        "a_override": "-(1..H)", "mamba2.num_groups": 2,
    }  # fmt: skip
    found = inspect_checkpoint(hybrid, overrides=overrides)
    spec = found.spec
    assert spec.layers[1].channel_mixer.top_k == 3  # type: ignore[union-attr]
    assert spec.layers[2].token_mixer.rope.theta == 5e5  # type: ignore[union-attr]
    assert spec.final_norm.eps == 1e-3
    assert spec.max_position_embeddings == 7
    assert spec.layers[2].token_mixer.head_dim == 4  # type: ignore[union-attr]
    assert spec.layers[0].token_mixer.a_override == "-(1..H)"  # type: ignore[union-attr]
    assert spec.layers[0].token_mixer.num_groups == 2  # type: ignore[union-attr]
    assert found.tokenizer.name == "llama3"
    for name in ("moe.top_k", "rope.theta", "norm.eps", "attention.head_dim", "vocabulary", "a_override"):
        assert fact(found, name).confidence is Confidence.OVERRIDE, name


@pytest.mark.parametrize(
    "overrides",
    [
        {"unknown": 1}, {"top_k": 0}, {"top_k": 9}, {"top_k": 1.5}, {"top_k": True}, {"top_k": None}, {"top_k": "2"},
        {"rope_theta": float("nan")}, {"rope_theta": float("inf")}, {"rope_theta": 10**400}, {"norm.eps": -1},
        {"eps": 1e-3, "norm.eps": 1e-3}, {"top_k": 1, "moe.top_k": 1},
        {"max_position_embeddings": 2**40}, {"a_override": "1"}, {"vocabulary": ""},
        {"tie_word_embeddings": 1}, {"tie_word_embeddings": True}, {"attention.num_heads": 3},
    ],
)  # fmt: skip
def test_illegal_overrides_are_refused(hybrid: Path, overrides: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        inspect_checkpoint(hybrid, overrides=overrides)


def test_an_override_without_effect_is_refused(llama: Path) -> None:
    for overrides in ({"a_override": "-(1..H)"}, {"top_k": 2}, {"mamba2.num_groups": 1}):
        with pytest.raises(InvalidRequest, match="no layer of this model has it"):
            inspect_checkpoint(llama, overrides=overrides)


@pytest.mark.parametrize(
    ("name", "value"),
    [("norm.eps", 0.125), ("rope.theta", 77.0), ("attention.head_dim", 8), ("max_position_embeddings", 9),
     ("activation", "gelu")],
)  # fmt: skip
def test_overrides_of_a_huggingface_family(llama: Path, name: str, value: Any) -> None:
    found = inspect_checkpoint(llama, overrides={name: value})
    assert (fact(found, name).value, fact(found, name).confidence) == (value, Confidence.OVERRIDE)


# --- A_log -------------------------------------------------------------------------------------


def with_a_log(path: Path, values: Any, dtype: str) -> Path:
    h = 16
    shapes = model(h, 64, mamba2(0, h, H=4, P=8, S=4), mamba2(1, h, H=4, P=8, S=4))
    import torch
    from safetensors.torch import save_file as save_torch

    kind = getattr(torch, dtype)
    tensors = {name: torch.zeros(shape, dtype=kind) for name, shape in shapes.items()}
    for name in tensors:
        if name.endswith("A_log"):
            tensors[name] = torch.tensor(values, dtype=kind)
    path.mkdir()
    save_torch(tensors, path / "model.safetensors")
    return path


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_log_near_zero_is_warned_of(tmp_path: Path, dtype: str) -> None:
    found = inspect_checkpoint(with_a_log(tmp_path / "zero", [0.0, 0.01, -0.02, 0.1], dtype))
    assert any("A_log is near 0 in all 2 Mamba layers (largest value 0.1)" in warning for warning in found.warnings)
    assert fact(found, "a_override").confidence is Confidence.LOW
    for override in ("-(1..H)", None):
        answered = inspect_checkpoint(tmp_path / "zero", overrides={"a_override": override})
        assert not any("A_log" in warning for warning in answered.warnings)
    real = inspect_checkpoint(with_a_log(tmp_path / "real", [math.log(n) for n in (1, 2, 3, 4)], dtype))
    assert not any("A_log" in warning for warning in real.warnings)
    assert fact(real, "a_override").confidence is Confidence.CERTAIN


def test_a_log_with_nan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptCheckpoint, match="NaN"):
        inspect_checkpoint(with_a_log(tmp_path / "nan", [0.0, math.nan, 0.0, 0.0], "float32"))


# --- describe ----------------------------------------------------------------------------------


def test_description_is_json_and_adds_up(hybrid: Path, llama: Path) -> None:
    for path in (hybrid, llama):
        found = inspect_checkpoint(path)
        text = describe(found)
        json.dumps(text, allow_nan=False)
        assert (
            sum(layer["num_parameters"] for layer in text["layers"]) + text["num_parameters_outside_layers"]
            == (text["num_parameters"])
        )
        for per in ("token", "sequence"):
            key = f"state_bytes_per_{per}"
            assert sum(layer[key] for layer in text["layers"]) == text[key]
        assert [layer["kind"] for layer in text["layers"]] == [layer.kind for layer in found.spec.layers]
        assert all(layer["sizes"] for layer in text["layers"])
        assert {item["name"] for item in text["overridable"]} <= set(FACTS)
        for item in text["facts"]:
            assert item["evidence"]
            assert item["confidence"] in set(Confidence)
