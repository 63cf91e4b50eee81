"""Layers in words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from models_registry.layer_words import WORDS, layer_rows, legend

CSS = (Path(__file__).parents[2] / "models_registry/static/registry/app.css").read_text()
LAYERS = [
    {"number": 0, "kind": "mamba2", "token_mixer": "mamba2", "channel_mixer": None, "sizes": {"heads": 4},
     "num_parameters": 1500, "state_bytes_per_token": 0, "state_bytes_per_sequence": 2048},
    {"number": 1, "kind": "mla+moe", "token_mixer": "mla", "channel_mixer": "moe", "sizes": {},
     "num_parameters": 10, "state_bytes_per_token": 8, "state_bytes_per_sequence": 0},
]  # fmt: skip


def test_titles_and_sizes() -> None:
    first, second = layer_rows(LAYERS)
    assert first["title"] == "Layer 0: Mamba-2"
    assert first["pairs"] == [("heads", "4"), ("parameters", "1.5 k"), ("state per sequence", "2.0 KiB")]
    assert second["title"] == "Layer 1: latent attention (MLA) + mixture of experts"


def test_the_legend_counts_layers_of_each_kind() -> None:
    assert legend(LAYERS) == [
        ("mamba2", "Mamba-2", 1), ("mla", "latent attention (MLA)", 1), ("moe", "mixture of experts", 1)
    ]  # fmt: skip


@pytest.mark.parametrize("kind", WORDS)
def test_each_kind_has_a_colour(kind: str) -> None:
    assert re.search(rf"\.k-{kind}\b", CSS)
