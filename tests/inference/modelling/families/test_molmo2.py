"""Molmo 2: both spellings of the files, the parts of the embedding, and what config.json may not contradict."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CheckpointError
from inference.modelling.families.molmo2 import build_spec
from inference.modelling.specs.layers import AttentionSpec
from inference.modelling.specs.sources import Piece, Source
from models_registry.detection.architecture import detect_model_type
from tests.inference.modelling.families.headers import HIDDEN, VOCAB, WIDTH, attention, mlp, norms, outer, view_of

CONFIG: dict[str, Any] = {
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "vocab_size": VOCAB, "additional_vocab_size": 6,
    "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6}, "rope_scaling_layers": [1],
}  # fmt: skip
OUTER = "model.transformer."


def published(*, rows: tuple[int, int] = (VOCAB, 6), norm: int = 4) -> dict[str, tuple[int, ...]]:
    names = zip(("wte.embedding", "wte.new_embedding"), rows, strict=True)
    found: dict[str, tuple[int, ...]] = {f"{OUTER}{name}": (count, HIDDEN) for name, count in names}
    found |= {f"{OUTER}ln_f.weight": (HIDDEN,), "lm_head.weight": (VOCAB, HIDDEN)}
    for number in range(2):
        layer = f"{OUTER}blocks.{number}."
        found |= norms(layer, "attn_norm", "ff_norm")
        found |= {f"{layer}self_attn.{name}_norm.weight": (norm,) for name in "qk"}
        found[f"{layer}self_attn.att_proj.weight"] = (HIDDEN + 16, HIDDEN)
        found[f"{layer}self_attn.attn_out.weight"] = (HIDDEN, HIDDEN)
        found[f"{layer}mlp.ff_proj.weight"] = (2 * WIDTH, HIDDEN)
        found[f"{layer}mlp.ff_out.weight"] = (HIDDEN, WIDTH)
    return found | {"model.vision_backbone.image_vit.patch_embedding.weight": (8, 8)}


def in_memory() -> dict[str, tuple[int, ...]]:
    found = outer(prefix="model.language_model.") | {"model.language_model.embed_tokens.weight": (VOCAB + 6, HIDDEN)}
    for number in range(2):
        layer = f"model.language_model.layers.{number}."
        found |= norms(layer) | attention(f"{layer}self_attn.") | mlp(f"{layer}mlp.")
        found |= {f"{layer}self_attn.{name}_norm.weight": (4,) for name in "qk"}
    return found | {"model.vision_tower.patch_embedding.weight": (8, 8)}


def wrapped(change: dict[str, Any] | None = None) -> dict[str, Any]:
    values = {key: value for key, value in (CONFIG | (change or {})).items() if value is not None}
    return {"text_config": values, "vision_config": {}}


def test_both_spellings_are_the_same_model() -> None:
    spec = build_spec(view_of(published(), wrapped()))
    assert spec.layers == build_spec(view_of(in_memory(), wrapped())).layers
    first, second = (layer.token_mixer for layer in spec.layers)
    assert isinstance(first, AttentionSpec) and isinstance(second, AttentionSpec)
    assert first.rope is not None and second.rope is not None
    assert first.rope.scaling is None and second.rope.scaling is not None
    assert first.qk_norm is not None and first.qk_norm_per_head and (first.num_heads, first.num_kv_heads) == (4, 2)


def test_published_names_say_the_type() -> None:
    view = view_of(published())
    assert detect_model_type(view.tensors, "huggingface", view.config, view.facts) == ("molmo2_text", True)


def test_up_stands_before_gate() -> None:
    spec = build_spec(view_of(published(), wrapped()))
    name = f"{OUTER}blocks.1.mlp.ff_proj.weight"
    expected = Source((Piece(name, rows=(WIDTH, 2 * WIDTH)), Piece(name, rows=(0, WIDTH))))
    assert spec.parameters["layers.1.channel_mixer.gate_up_proj.weight"] == expected


@pytest.mark.parametrize(
    ("rows", "expected"), [((VOCAB, 6), [(0, VOCAB)]), ((VOCAB - 10, 16), [(0, VOCAB - 10), (0, 10)])]
)
def test_rows_of_tokens_for_pictures_are_left_out(rows: tuple[int, int], expected: list[tuple[int, int]]) -> None:
    spec = build_spec(view_of(published(rows=rows), wrapped()))
    assert spec.vocab_size == VOCAB
    assert [piece.rows for piece in spec.parameters["embed_tokens.weight"].pieces] == expected


def test_norms_stand_behind_and_over_rows() -> None:
    shapes = published(norm=HIDDEN)
    for number in range(2):
        shapes[f"{OUTER}blocks.{number}.self_attn.k_norm.weight"] = (8,)
    spec = build_spec(view_of(shapes, wrapped({"qk_norm_type": "olmo", "norm_after": True})))
    assert all(layer.token_norm is None and layer.token_post_norm is not None for layer in spec.layers)
    assert not spec.layers[0].token_mixer.qk_norm_per_head


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"additional_vocab_size": 7}, "additional_vocab_size"),
        ({"vocab_size": VOCAB + 6}, "vocab_size"),
        ({"head_dim": 8}, "head_dim"),
        ({"num_key_value_heads": 3}, "num_attention_heads"),
        ({"intermediate_size": 9}, "intermediate_size"),
        ({"rope_scaling_layers": [2]}, "rope_scaling_layers"),
        ({"qk_norm_type": "layer"}, "qk_norm_type"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], param: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        build_spec(view_of(published(), wrapped(change)))
    assert caught.value.param == param


@pytest.mark.parametrize("missing", [f"{OUTER}wte.new_embedding", f"{OUTER}wte.embedding", "lm_head.weight"])
def test_parts_that_are_missing_are_named(missing: str) -> None:
    shapes = {name: shape for name, shape in published().items() if name != missing}
    with pytest.raises(CheckpointError) as caught:
        build_spec(view_of(shapes, wrapped()))
    assert caught.value.param is not None and caught.value.param in missing


@pytest.mark.parametrize(("leaf", "shape"), [("ff_proj.weight", (96, HIDDEN)), ("ff_out.weight", (HIDDEN, 12))])
def test_up_and_gate_are_all_rows_of_their_matrix(leaf: str, shape: tuple[int, ...]) -> None:
    name = next(name for name in published() if name.endswith(f"mlp.{leaf}"))
    stated = {key: value for key, value in CONFIG.items() if key != "intermediate_size"}
    with pytest.raises(CheckpointError, match=r"ff_proj\.weight has \d+ rows"):
        build_spec(view_of(published() | {name: shape}, stated))
