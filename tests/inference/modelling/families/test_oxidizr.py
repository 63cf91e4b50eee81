"""The oxidizr family: what each layer is, and how large, with and without a (true) config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inference.errors import (
    CheckpointError,
    CorruptCheckpoint,
    InvalidRequest,
    MissingTensor,
    UnsupportedArchitecture,
    UnsupportedFormat,
)
from inference.modelling.families.config import (
    CheckpointConfig,
    CheckpointView,
    Confidence,
    Facts,
    TensorInfo,
    TensorTable,
)
from inference.modelling.families.oxidizr import build_spec
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.layers import Mamba2Spec, MoESpec
from inference.modelling.specs.linear import Mamba3Spec
from models_registry.detection.inspection import inspect_checkpoint
from tests.models_registry.detection.builders import (
    EXAMPLES,
    Shapes,
    gqa_mlp,
    mamba1,
    mamba2,
    mamba3,
    mla,
    model,
    moe,
    shapes_of,
    small_hybrid,
    write_header_only,
    write_json,
)

NANO_PARAMETERS = 123_157_248  # the trainer's own count


def read(
    shapes: Shapes, config: dict[str, Any] | None = None, overrides: dict[str, Any] | None = None, dtype: str = "F32"
) -> tuple[ModelSpec, Facts]:
    facts = Facts(overrides or {})
    tensors = {name: TensorInfo(dtype, shape) for name, shape in shapes.items()}
    spec = build_spec(CheckpointView(CheckpointConfig(config or {}), TensorTable(tensors), facts))
    assert ModelSpec.from_dict(json.loads(spec.to_json())) == spec
    assert spec.parameters.keys() == spec.parameter_shapes().keys()
    used = {name for source in spec.parameters.values() for name in source.tensor_names()}
    assert used == set(shapes), sorted(used ^ set(shapes))
    return spec, facts


def fact(facts: Facts, name: str) -> tuple[Any, Confidence]:
    found = next(item for item in facts.facts if item.name == name)
    return found.value, found.confidence


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("with_config", [True, False])
def test_every_example_is_read_in_full(tmp_path: Path, name: str, with_config: bool) -> None:
    config = EXAMPLES[name]
    write_header_only(tmp_path / "model.safetensors", shapes_of(config))
    if with_config:
        write_json(tmp_path / "config.json", config)
    found = inspect_checkpoint(tmp_path)
    spec = found.spec
    mambas = config["mamba_layers"]
    kind = "mamba3" if config.get("mamba3_enabled") else "mamba2"
    assert [layer.kind for layer in spec.layers] == [
        kind if n in mambas else "mla+moe" for n in range(len(spec.layers))
    ]
    assert (spec.hidden_size, spec.vocab_size) == (config["hidden_size"], config["vocab_size"])
    assert spec.max_position_embeddings == (config["max_seq_len"] if with_config else 4096)
    mixer = spec.layers[0].token_mixer
    assert isinstance(mixer, Mamba2Spec | Mamba3Spec)
    assert (mixer.num_heads, mixer.head_dim, mixer.state_size, mixer.num_groups) == (
        config["mamba2_num_heads"], config["mamba2_head_dim"], config["mamba2_state_size"], 1,
    )  # fmt: skip
    if name.endswith("mimo"):
        assert mixer.mimo_rank == 4
    for layer in spec.layers:
        if isinstance(layer.token_mixer, MLASpec):
            assert isinstance(layer.channel_mixer, MoESpec)
            assert layer.token_mixer.num_heads == config["num_attention_heads"]
            assert layer.channel_mixer.top_k == (config["experts_per_tok"] if with_config else 2)
    assert found.tokenizer.name == ("cl100k_base" if name == "nano-start" else "llama3")
    if name == "nano":
        assert len(found.tensors) == 127
        assert found.num_parameters == NANO_PARAMETERS


def test_top_k_is_a_doubtful_default_without_config(tmp_path: Path) -> None:
    """nano-start was trained with 1; nothing but config.json shows it."""
    config = EXAMPLES["nano-start"]
    spec, facts = read(shapes_of(config))
    assert fact(facts, "moe.top_k") == (2, Confidence.LOW)
    assert any("top_k" in warning for warning in facts.warnings)
    assert fact(read(shapes_of(config), config)[1], "moe.top_k") == (1, Confidence.CERTAIN)
    spec, facts = read(shapes_of(config), overrides={"moe.top_k": 1})
    assert spec.layers[3].channel_mixer.top_k == 1  # type: ignore[union-attr]
    assert fact(facts, "moe.top_k") == (1, Confidence.OVERRIDE)
    assert not any("top_k" in warning for warning in facts.warnings)


def test_a_stale_config_loses_and_is_doubted() -> None:
    shapes, config = small_hybrid()
    stale = config | {"hidden_size": 32, "vocab_size": 100, "num_layers": 9, "mamba_layers": [1, 2]}
    spec, facts = read(shapes, stale)
    assert (spec.hidden_size, spec.vocab_size, len(spec.layers)) == (16, 64, 3)
    assert [layer.kind for layer in spec.layers] == ["mamba2", "mla+moe", "attention+mlp"]
    text = " ".join(facts.warnings)
    for word in ("hidden_size 32", "vocab_size 100", "num_layers 9", "mamba_layers [1, 2]", "another model"):
        assert word in text
    assert fact(facts, "moe.top_k") == (2, Confidence.LOW)
    clean = read(shapes, config)[1]
    assert not clean.warnings
    assert fact(clean, "moe.top_k") == (2, Confidence.CERTAIN)


def test_impossible_top_k_of_a_stale_config() -> None:
    shapes, config = small_hybrid()
    for stated in (0, 9):
        _, facts = read(shapes, config | {"experts_per_tok": stated})
        assert fact(facts, "moe.top_k") == (2, Confidence.LOW)
    with pytest.raises(InvalidRequest, match="3 experts"):
        read(shapes, config, {"moe.top_k": 4})


def test_aliases_of_config_keys() -> None:
    shapes, _ = small_hybrid()
    config = {
        "num_hidden_layers": 3, "max_position_embeddings": 99, "moe": {"experts_per_tok": 1},
        "attention": {"num_heads": 4}, "ssm": {"state_size": 2}, "rope_theta": 7.5, "rms_norm_eps": 0.25,
    }  # fmt: skip
    spec, _ = read(shapes, config)
    assert spec.max_position_embeddings == 99
    assert spec.final_norm.eps == 0.25
    assert spec.layers[0].token_mixer.num_groups == 2  # type: ignore[union-attr]
    assert spec.layers[1].channel_mixer.top_k == 1  # type: ignore[union-attr]
    assert spec.layers[2].token_mixer.num_heads == 4  # type: ignore[union-attr]
    assert spec.layers[2].token_mixer.rope.theta == 7.5  # type: ignore[union-attr]
    assert spec.layers[0].token_norm.eps == 1e-6  # type: ignore[union-attr]


def test_rope_scaling_kinds() -> None:
    shapes, config = small_hybrid()
    scaled = {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    spec, _ = read(shapes, config | scaled)
    assert spec.layers[2].token_mixer.rope.scaling.factor == 4.0  # type: ignore[union-attr]
    with pytest.raises(CheckpointError, match="warp"):
        read(shapes, config | {"rope_scaling": {"rope_type": "warp", "factor": 4.0}})


@pytest.mark.parametrize("name", sorted(small_hybrid()[0]))
def test_every_missing_tensor_is_named(name: str) -> None:
    shapes, config = small_hybrid()
    del shapes[name]
    try:
        build(shapes, config)
    except CheckpointError as error:
        assert isinstance(error, MissingTensor | UnsupportedArchitecture), error
        assert name.rpartition(".")[0].rpartition(".")[0][:12] in error.message
    else:
        # without its down_proj the shared expert is still there; all of it would have to go
        pytest.fail(f"{name} was not missed")


@pytest.mark.parametrize("name", sorted(small_hybrid()[0]))
def test_every_wrong_shape_is_refused(name: str) -> None:
    shapes, config = small_hybrid()
    for wrong in ((*shapes[name], 1), (shapes[name][0] + 1, *shapes[name][1:]), (0,), ()):
        with pytest.raises(CheckpointError):
            build(shapes | {name: wrong}, config)


def build(shapes: Shapes, config: dict[str, Any] | None = None, dtype: str = "F32") -> ModelSpec:
    tensors = {name: TensorInfo(dtype, shape) for name, shape in shapes.items()}
    return build_spec(CheckpointView(CheckpointConfig(config or {}), TensorTable(tensors), Facts()))


def test_gaps_in_layer_numbers_are_errors() -> None:
    shapes = model(16, 64, gqa_mlp(0, 16, heads=2, kv=1, f=8), gqa_mlp(3, 16, heads=2, kv=1, f=8))
    with pytest.raises(MissingTensor, match="layer 1, 2, although layer 3"):
        build(shapes)


def test_unknown_layers_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedArchitecture, match=r"layer 0 is of no known kind.*rwkv"):
        build(model(16, 64, {"layers.0.rwkv.weight": (16, 16)}))
    with pytest.raises(UnsupportedArchitecture, match="no layers detected"):
        build(model(16, 64))
    with pytest.raises(UnsupportedArchitecture, match="no embedding"):
        build({"foo": (1,)})
    with pytest.raises(UnsupportedArchitecture, match="out of range"):
        build(model(16, 64, {"layers.99999.x": (1,)}))


def test_the_head_is_never_tied_unless_config_says_so() -> None:
    shapes, config = small_hybrid()
    del shapes["lm_head.weight"]
    with pytest.raises(MissingTensor, match=r"lm_head\.weight"):
        build(shapes, config)
    assert build(shapes, config | {"tie_word_embeddings": True}).tie_word_embeddings


@pytest.mark.parametrize(("stored", "dtype"), [("F32", "float32"), ("BF16", "bfloat16"), ("F16", "float16")])
def test_dtype_comes_from_the_file(stored: str, dtype: str) -> None:
    shapes, config = small_hybrid()
    assert build(shapes, config, stored).dtype == dtype
    with pytest.raises(UnsupportedFormat, match="I8"):
        build(shapes, config, "I8")


@pytest.mark.parametrize(
    "config",
    [
        {"hidden_size": 2**40}, {"num_layers": 10**9}, {"num_attention_heads": -1}, {"vocab_size": -1},
        {"rope_theta": float("nan")}, {"rope_theta": "x"}, {"rope_theta": 0}, {"rms_norm_eps": float("inf")},
        {"max_seq_len": 0}, {"max_seq_len": 2**70}, {"num_attention_heads": [4]}, {"mamba_layers": 5},
        {"mamba_layers": ["0"]}, {"experts_per_tok": True}, {"head_dim": 1.5}, {"rope_scaling": 5},
    ],
)  # fmt: skip
def test_wild_config_values_are_refused(config: dict[str, Any]) -> None:
    shapes, base = small_hybrid()
    with pytest.raises(CorruptCheckpoint, match=r"config\.json"):
        build(shapes, base | config)


def test_zero_heads_mean_unknown() -> None:
    """Pure Mamba models carry num_attention_heads of no meaning."""
    assert build(model(16, 64, mamba2(0, 16, H=4, P=8, S=4)), {"num_attention_heads": 0}).layers[0].kind == "mamba2"


def test_a_override_reaches_every_scan() -> None:
    h = 16
    shapes = model(h, 64, mamba2(0, h, H=4, P=8, S=4), mamba3(1, h, H=4, P=8, S=4), mamba1(2, h))
    spec, _ = read(shapes, overrides={"a_override": "-(1..H)"})
    assert [getattr(layer.token_mixer, "a_override", None) for layer in spec.layers] == ["-(1..H)", "-(1..H)", None]
    with pytest.raises(InvalidRequest):
        read(shapes, overrides={"a_override": "eval('1')"})


def test_many_experts_take_linear_time() -> None:
    import time

    h = 4
    layers = [mla(n, h, heads=2, kv_latent=2, q_latent=2, d_rope=2) | moe(n, h, experts=128, f=2) for n in range(100)]
    shapes = model(h, 8, *layers)
    began = time.process_time()
    build(shapes, {"experts_per_tok": 2})
    assert time.process_time() - began < 8.0
