"""An inspection as people see it."""

from __future__ import annotations

import json
from pathlib import Path

from inference.modelling.families.config import Confidence
from models_registry.detection.describe import describe
from models_registry.detection.facts import FACTS
from models_registry.detection.inspection import inspect_checkpoint


def test_description_is_json_and_adds_up(hybrid: Path, llama: Path) -> None:
    for path in (hybrid, llama):
        found = inspect_checkpoint(path)
        text = describe(found)
        json.dumps(text, allow_nan=False)
        assert (
            sum(layer["num_parameters"] for layer in text["layers"]) + text["num_parameters_outside_layers"]
            == (text["num_parameters"])
        )
        for per in ("token", "sequence"):
            key = f"state_bytes_per_{per}"
            assert sum(layer[key] for layer in text["layers"]) == text[key]
        assert [layer["kind"] for layer in text["layers"]] == [layer.kind for layer in found.spec.layers]
        assert all(layer["sizes"] for layer in text["layers"])
        assert {item["name"] for item in text["overridable"]} <= set(FACTS)
        for item in text["facts"]:
            assert item["evidence"]
            assert item["confidence"] in set(Confidence)
