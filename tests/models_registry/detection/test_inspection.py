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
)
from inference.modelling.families.config import Confidence
from models_registry.detection.inspection import Inspection, inspect_checkpoint
from tests.models_registry.detection.builders import (
    LLAMA_CONFIG,
    fact,
    llama_shapes,
    mamba2,
    model,
    write_json,
    write_tensors,
)


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
    assert sorted(found.other_files) == ["config.json", "tokenizer.json"]
    assert found.size_bytes == (hybrid / "model.safetensors").stat().st_size
    assert {file.path: file.role for file in found.files} == {
        "model.safetensors": "weights", "config.json": "config", "tokenizer.json": "tokenizer",
    }  # fmt: skip
    assert found.num_parameters == sum(math.prod(info.shape) for info in found.tensors.values())


def test_the_real_demo_values(hybrid: Path) -> None:
    """Header positions are where the library finds the values."""
    from safetensors import safe_open

    found = inspect_checkpoint(hybrid)
    content = (hybrid / "model.safetensors").read_bytes()
    with safe_open(hybrid / "model.safetensors", framework="np") as handle:
        for name, info in found.tensors.items():
            stored = np.frombuffer(content[info.begin : info.end], np.float32).reshape(info.shape)
            assert np.array_equal(stored, handle.get_tensor(name))


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


def test_shapes_that_contradict_are_named_with_both(llama: Path) -> None:
    shapes = llama_shapes() | {"model.layers.1.input_layernorm.weight": (17,)}
    write_tensors(llama / "model.safetensors", shapes)
    with pytest.raises(TensorShapeMismatch) as caught:
        inspect_checkpoint(llama)
    for word in ("model.layers.1.input_layernorm.weight", "[17]", "[16]"):
        assert word in caught.value.message


def test_integer_weights_are_refused_by_name(llama: Path) -> None:
    tensors = {name: np.zeros(shape, np.float32) for name, shape in llama_shapes().items()}
    tensors["model.layers.0.mlp.up_proj.weight"] = np.zeros((24, 16), np.int8)
    save_file(tensors, llama / "model.safetensors")
    with pytest.raises(MissingTensor, match=r"up_proj\.weight is stored as I8, but .*up_proj\.weight_scale"):
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
    with pytest.raises(UnsupportedArchitecture, match="has 90000 keys that llama isn't known to have") as caught:
        inspect_checkpoint(llama)
    assert len(caught.value.message) < 1000
    assert time.process_time() - began < 4
    (llama / "config.json").write_text(text + " " * (1 << 20))
    with pytest.raises(CorruptCheckpoint, match="the limit is 1048576"):
        inspect_checkpoint(llama)


def tied_llama(directory: Path, change: float, at: int) -> Path:
    """A tied llama with a stored head that is a copy of the embedding but for one value."""
    generator = np.random.default_rng(0)
    tensors = {name: generator.standard_normal(shape).astype("float32") for name, shape in llama_shapes().items()}
    head = tensors["model.embed_tokens.weight"].copy()
    head.reshape(-1)[at] += change
    save_file(tensors | {"lm_head.weight": head}, directory / "model.safetensors")
    write_json(directory / "config.json", LLAMA_CONFIG | {"tie_word_embeddings": True})
    return directory


def test_a_stored_head_beside_a_tied_embedding_is_a_copy(llama: Path) -> None:
    assert inspect_checkpoint(tied_llama(llama, 0.0, 0)).spec.tie_word_embeddings
    for at in (0, -1):
        tied_llama(llama, 1.0, at)
        with pytest.raises(TensorShapeMismatch, match=r"tie_word_embeddings.*lm_head\.weight is stored and differs"):
            inspect_checkpoint(llama)
    for tied in (True, False):
        found = inspect_checkpoint(llama, overrides={"tie_word_embeddings": tied})
        assert found.spec.tie_word_embeddings is tied


def test_unknown_keys_are_refused_until_an_operator_leaves_them_out(llama: Path) -> None:
    write_json(llama / "config.json", LLAMA_CONFIG | {"logit_scale": 0.0625, "use_qk_norm": True})
    with pytest.raises(UnsupportedArchitecture, match=r"logit_scale, use_qk_norm.*--override config\.ignored_keys="):
        inspect_checkpoint(llama)
    found = inspect_checkpoint(llama, overrides={"config.ignored_keys": "logit_scale,use_qk_norm"})
    assert fact(found, "config.ignored_keys").confidence is Confidence.OVERRIDE
    with pytest.raises(InvalidRequest, match="bos_token_id, which would not be refused"):
        inspect_checkpoint(llama, overrides={"config.ignored_keys": "bos_token_id,logit_scale,use_qk_norm"})


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
