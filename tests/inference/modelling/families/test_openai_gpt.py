"""GPT (the first): norms behind the sums are those before the next mixers."""

from __future__ import annotations

import pytest

from inference.errors import CheckpointError
from inference.modelling.families.openai_gpt import build_spec
from tests.inference.modelling.families.headers import HIDDEN, VOCAB, Shapes, view_of

CONFIG = {"n_head": 4, "n_embd": HIDDEN}


def shapes(prefix: str = "transformer.") -> Shapes:
    found: Shapes = {"tokens_embed.weight": (VOCAB, HIDDEN), "positions_embed.weight": (64, HIDDEN)}
    for number in range(2):
        base = f"h.{number}."
        sizes = {"attn.c_attn": 3 * HIDDEN, "attn.c_proj": HIDDEN, "mlp.c_fc": 4 * HIDDEN}
        found |= {f"{base}{name}.weight": (HIDDEN, rows) for name, rows in sizes.items()}
        found |= {f"{base}{name}.bias": (rows,) for name, rows in sizes.items()}
        found |= {f"{base}mlp.c_proj.weight": (4 * HIDDEN, HIDDEN), f"{base}mlp.c_proj.bias": (HIDDEN,)}
        found |= {f"{base}ln_{at}.{leaf}": (HIDDEN,) for at in (1, 2) for leaf in ("weight", "bias")}
    return {prefix + name: shape for name, shape in found.items()}


@pytest.mark.parametrize("prefix", ["transformer.", ""])
def test_each_norm_is_the_one_before_the_next_mixer(prefix: str) -> None:
    spec = build_spec(view_of(shapes(prefix), CONFIG))
    first, second = spec.layers
    assert first.token_norm is None and second.token_norm == first.channel_norm
    assert first.replaces_stream and second.replaces_stream
    names = {name: source.pieces[0].name for name, source in spec.parameters.items()}
    assert names["layers.0.channel_norm.weight"] == f"{prefix}h.0.ln_1.weight"
    assert names["layers.1.token_norm.bias"] == f"{prefix}h.0.ln_2.bias"
    assert names["final_norm.weight"] == f"{prefix}h.1.ln_2.weight"
    assert spec.position_rows == spec.max_position_embeddings == 64
    assert first.channel_mixer.activation == "gelu_tanh"


def test_a_width_that_config_json_contradicts_is_refused() -> None:
    with pytest.raises(CheckpointError) as caught:
        build_spec(view_of(shapes(), CONFIG | {"n_embd": 32}))
    assert caught.value.param == "n_embd"
