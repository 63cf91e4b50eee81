"""EncodedTensor travels in specs, as JSON."""

from __future__ import annotations

import json
from dataclasses import replace

from inference.modelling.encoded_tensor import EncodedTensor
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.parts import NormSpec

PLAIN = ModelSpec("huggingface", "llama", 8, 16, 64, (), NormSpec())


def test_specs_with_encoded_tensors_round_trip() -> None:
    encoded = (
        EncodedTensor("a.weight", (4, 8), "scaled", {"codes": "a.weight", "scale": "a.scale"}, block=(2, 4)),
        EncodedTensor("b.weight", (4, 8), "bnb4", {"packed": "b.weight"}, group_size=64, offset=0.5, nested_size=256),
    )
    spec = replace(PLAIN, encoded=encoded)
    assert ModelSpec.from_dict(json.loads(spec.to_json())) == spec


def test_specs_without_stay_as_they_were() -> None:
    assert "encoded" not in PLAIN.to_dict()
