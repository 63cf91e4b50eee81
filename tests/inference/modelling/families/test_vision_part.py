"""The part that sees is read whole, or left out with the reason."""

import re

import pytest

from inference.errors import UnsupportedArchitecture
from inference.modelling.families.config import CheckpointConfig
from inference.modelling.families.vision_part import colours, vision_part
from tests.inference.modelling.harness import read_view
from tests.inference.modelling.vision.specs import spec_of
from tests.inference.modelling.vision.tiny import make_gemma3


def test_tensors_without_a_place_leave_it_out(tmp_path):
    make_gemma3(tmp_path)
    view, spec = read_view(tmp_path), spec_of(tmp_path)
    owned = re.compile(r"vision_tower|multi_modal_projector|language_model\.model\.norm")
    assert vision_part(view, owned, lambda _: spec.vision) is None
    assert any(
        "1 tensors have no place in it: language_model.model.norm.weight" in text for text in view.facts.warnings
    )


def test_a_missing_tensor_leaves_it_out(tmp_path):
    make_gemma3(tmp_path)
    view, spec = read_view(tmp_path), spec_of(tmp_path)
    broken = {**spec.vision.parameters, "tower.position_embedding": spec.parameters["embed_tokens.weight"]}
    import dataclasses

    found = vision_part(view, re.compile("vision_tower"), lambda _: dataclasses.replace(spec.vision, parameters=broken))
    assert found is None and any("has shape" in text for text in view.facts.warnings)
    assert vision_part(view, re.compile("nothing"), lambda _: spec.vision) is None


def test_colours():
    assert colours(CheckpointConfig({"image_mean": [1, 2, 3]}), "image_mean", (0.0,)) == (1, 2, 3)
    with pytest.raises(UnsupportedArchitecture, match="there must be three numbers"):
        colours(CheckpointConfig({"image_mean": [1]}), "image_mean", ())
