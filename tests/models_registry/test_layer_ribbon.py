"""The ribbon of a model's layers: its cells, its words, and its size for many layers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from inference.modelling.spec import LayerSpec
from models_registry.detection.inspection import inspect_checkpoint
from models_registry.layer_ribbon import Band, layer_ribbon, ribbon_legend
from models_registry.layer_words import STRIPED, WORDS
from tests.live.conftest import ROOT


@pytest.fixture
def layers(hybrid: Path) -> tuple[LayerSpec, ...]:
    """mamba2, mla+moe, attention+mlp."""
    return inspect_checkpoint(hybrid).spec.layers


def test_cells_stand_where_their_layers_are(layers: tuple[LayerSpec, ...]) -> None:
    mamba, mla, attention = layers
    ribbon = layer_ribbon([mamba, mamba, mla, mamba, attention])
    assert ribbon.bands == (
        Band("mamba2", 14, "M0 7h20M30 7h10"),
        Band("mla", 8, "M20 4h10"),
        Band("moe", 2.15, "M20 10.07h10M20 12.92h10"),
        Band("attention", 8, "M40 4h10"),
        Band("mlp", 5, "M40 11.5h10"),
    )
    assert (ribbon.width, ribbon.words) == (50, "5 layers: 3 mamba2, 1 mla+moe, 1 attention+mlp")
    assert ribbon_legend([ribbon])[:2] == [("attention", "attention (GQA)"), ("mla", "latent attention (MLA)")]


def test_what_the_layers_mix_with(layers: tuple[LayerSpec, ...]) -> None:
    mamba, mla, attention = layers
    without = replace(attention, token_mixer=None, token_norm=None)
    assert layer_ribbon([mamba, without]).mix == "recurrent"
    assert layer_ribbon([mla, attention]).mix == "attention"
    assert layer_ribbon(layers).mix == "mixed"
    assert [layer_ribbon(found).mix for found in ([], [without])] == ["", ""]
    assert layer_ribbon([]).words == "no layers"


def test_a_hundred_layers_are_few_lines(layers: tuple[LayerSpec, ...]) -> None:
    ribbon = layer_ribbon([*[layers[0]] * 5, layers[2]] * 17)
    assert ribbon.words == "102 layers: 85 mamba2, 17 attention+mlp"
    assert len(ribbon.bands) == 3 and sum(len(band.path) for band in ribbon.bands) < 700


def test_the_style_sheet_stripes_the_same_kinds() -> None:
    """Kinds of one colour differ by their stripes, in drawings and in elements."""
    sheet = (ROOT / "models_registry" / "static" / "registry" / "app.css").read_text()
    (listed,) = re.findall(r":is\(([^()]*)\):is\(i,rect\) \{\s*clip-path", sheet)
    assert {name.removeprefix(".k-") for name in listed.split(",")} == STRIPED <= set(WORDS)


def test_a_whole_striped_cell_has_three_stripes(layers: tuple[LayerSpec, ...]) -> None:
    experts = replace(layers[1], token_mixer=None, token_norm=None)
    (band,) = layer_ribbon([experts]).bands
    assert band == Band("moe", 3.36, "M0 1.68h10M0 7h10M0 12.32h10")
