"""Phi-3-vision: what its files may say, and what is refused."""

import json

import pytest

from inference.errors import UnsupportedArchitecture
from inference.modelling.families.phi3_v import MAX_TILES, MEAN, STD
from inference.modelling.families.registry import family_builder
from inference.modelling.families.vision_part import PREPROCESSOR
from tests.inference.modelling.harness import read_view
from tests.inference.modelling.vision.tiny import make_phi3_v


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return make_phi3_v(tmp_path_factory.mktemp("phi3_v")).directory


def build(directory, **changes):
    config = json.loads((directory / "config.json").read_text()) | changes
    view = read_view(directory, config)
    return family_builder("phi3_v")(view), view.facts


def test_defaults_without_a_preprocessor(directory):
    spec, facts = build(directory)
    assert (spec.vision.layout.max_tiles, spec.vision.mean, spec.vision.std) == (MAX_TILES, MEAN, STD)
    assert spec.vision.prompt.placeholder == "<|image|>" and not spec.vision.prompt.printed
    assert not spec.vision.sees_whole_image
    assert [fact.value for fact in facts.facts if fact.name == "vision"] == ["images"]


def test_the_preprocessor_says_how_many_tiles(directory):
    given = {"num_crops": 4, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.25, 0.25, 0.25]}
    spec, _ = build(directory, **{PREPROCESSOR: given})
    assert (spec.vision.layout.max_tiles, spec.vision.mean, spec.vision.std) == (4, (0.5,) * 3, (0.25,) * 3)


@pytest.mark.parametrize(
    "given", [{"num_crops": 0}, {"num_crops": 65}, {"image_std": [0, 1, 1]}, {"image_mean": [1]}, {"num_crops": "x"}]
)
def test_a_preprocessor_that_makes_no_sense_costs_only_the_images(directory, given):
    spec, facts = build(directory, **{PREPROCESSOR: given})
    assert spec.vision is None and spec.layers
    assert any(warning.startswith("images aren't read:") for warning in facts.warnings)


@pytest.mark.parametrize(
    ("part", "value"),
    [("hd_transform_order", "glb_sub"), ("use_hd_transform", False), ("projection_cls", "linear"), ("new_key", 1)],
)
def test_another_arithmetic_is_refused_by_name(directory, part, value):
    config = json.loads((directory / "config.json").read_text())
    with pytest.raises(UnsupportedArchitecture, match=f"embd_layer.{part}"):
        build(directory, embd_layer=config["embd_layer"] | {part: value})
