"""GPT-Neo: which layers have a window."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CorruptCheckpoint
from inference.modelling.families.gpt_neo import build_spec
from tests.inference.modelling.families.headers import HIDDEN, VOCAB, view_of

CONFIG = {"num_heads": 4, "window_size": 8}


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"wte.weight": (VOCAB, HIDDEN), "wpe.weight": (64, HIDDEN)}
    for number in range(layers):
        base = f"h.{number}."
        found |= {f"{base}attn.attention.{name}_proj.weight": (HIDDEN, HIDDEN) for name in ("q", "k", "v", "out")}
        found |= {f"{base}mlp.c_fc.weight": (24, HIDDEN), f"{base}mlp.c_proj.weight": (HIDDEN, 24)}
        found |= {f"{base}attn.attention.out_proj.bias": (HIDDEN,), f"{base}attn.attention.masked_bias": ()}
        found |= {f"{base}mlp.c_fc.bias": (24,), f"{base}mlp.c_proj.bias": (HIDDEN,)}
    for norm in ("ln_f", *(f"h.{number}.ln_{which}" for number in range(layers) for which in (1, 2))):
        found |= {f"{norm}.weight": (HIDDEN,), f"{norm}.bias": (HIDDEN,)}
    return found


@pytest.mark.parametrize(
    ("stated", "windows"),
    [
        ({}, [None, 8, None, 8]),
        ({"attention_types": [[["local"], 1], [["global"], 3]]}, [8, None, None, None]),
        ({"attention_layers": ["global", "local"] * 2}, [None, 8, None, 8]),
    ],
)
def test_windows_of_the_layers(stated: dict[str, Any], windows: list[int | None]) -> None:
    spec = build_spec(view_of(shapes(4), CONFIG | stated))
    assert [layer.token_mixer.sliding_window for layer in spec.layers] == windows
    assert spec.layers[0].token_mixer.scale == 1.0


@pytest.mark.parametrize(
    "stated",
    [
        {"attention_types": [[["global", "local"], 3]]},
        {"attention_types": [[["global", "other"], 2]]},
        {"attention_types": 5},
        {"attention_types": [[[["global"]], 4]]},
        {"attention_layers": ["global"] * 4},
    ],
)
def test_other_types_are_refused(stated: dict[str, Any]) -> None:
    with pytest.raises(CorruptCheckpoint, match=next(iter(stated))):
        build_spec(view_of(shapes(4), CONFIG | stated))
