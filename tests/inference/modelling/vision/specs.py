"""Read the spec of a checkpoint with what its preprocessor_config.json says."""

import json
from pathlib import Path

from inference.modelling.families.registry import family_builder
from inference.modelling.families.vision_part import PREPROCESSOR
from inference.modelling.spec import ModelSpec
from tests.inference.modelling.harness import read_view


def spec_of(directory: Path, **changes) -> ModelSpec:
    config = json.loads((directory / "config.json").read_text()) | changes
    beside = directory / "preprocessor_config.json"
    if beside.exists():
        config[PREPROCESSOR] = json.loads(beside.read_text())
    spec = family_builder(config["model_type"])(read_view(directory, config))
    assert ModelSpec.from_dict(json.loads(spec.to_json())) == spec
    return spec
