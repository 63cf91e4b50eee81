"""CheckpointConfig, TensorTable and Facts: typed and bounded reading of untrusted values."""

from __future__ import annotations

import math

import pytest

from inference.errors import CorruptCheckpoint, MissingTensor
from inference.modelling.families.config import CheckpointConfig, Confidence, Facts, TensorInfo, TensorTable


def test_the_first_key_that_is_not_null_is_read_and_dots_look_into_objects() -> None:
    config = CheckpointConfig({"a": None, "b": 3, "rope": {"theta": 2.5, "none": None}})
    assert config.integer("a", "b") == 3
    assert config.number("rope.theta") == 2.5
    assert "a" not in config and "rope.none" not in config and "rope.theta" in config
    assert config.get("b.deeper", default=7) == 7
    assert config.optional_integer("a", "c") is None


def test_infinities_are_decoded() -> None:
    config = CheckpointConfig({"limit": [0.0, {"__float__": "Infinity"}]})
    assert config.get("limit") == [0.0, math.inf]


@pytest.mark.parametrize(
    ("method", "value", "words"),
    [
        ("integer", None, "is missing; it must be an integer"),
        ("integer", True, "an integer"),
        ("integer", 2.5, "an integer"),
        ("integer", 0, "from 1 to"),
        ("number", float("nan"), "from"),
        ("number", 10**400, "from"),
        ("number", {"__float__": "x"}, "a number"),
        ("number", {"__float__": 10**400}, "a number"),
        ("number", 1e13, "from"),
        ("boolean", 1, "true or false"),
        ("string", 5, "a string"),
        ("numbers", [1, "2"], "a list of numbers"),
        ("numbers", [math.inf], "a list of numbers"),
        ("numbers", [math.nan], "a list of numbers"),
        ("numbers", [10**400], "a list of numbers"),
        ("strings", ["a", 1], "a list of strings"),
        ("integers", [1, True], "a list of integers"),
    ],
)
def test_wrong_types_and_ranges_are_refused_by_key(method: str, value: object, words: str) -> None:
    with pytest.raises(CorruptCheckpoint, match=words) as caught:
        getattr(CheckpointConfig({"key": value}), method)("key")
    assert caught.value.param == "key"


def test_whole_floats_are_integers_and_choices_bound_strings() -> None:
    assert CheckpointConfig({"n": 4.0}).integer("n") == 4
    with pytest.raises(CorruptCheckpoint, match="one of x, y"):
        CheckpointConfig({"kind": "z"}).string("kind", choices=("x", "y"))


def test_an_override_replaces_a_fact_and_a_later_fact_an_earlier_one() -> None:
    facts = Facts({"a": 9})
    assert facts.add("a", 1, "shape") == 9
    facts.add("b", 1, "first", Confidence.LOW)
    assert facts.add("b", 2, "second") == 2
    assert [(item.name, item.value, item.confidence) for item in facts.facts] == [
        ("a", 9, Confidence.OVERRIDE),
        ("b", 2, Confidence.CERTAIN),
    ]
    assert facts.facts[1].to_dict() == {"name": "b", "value": 2, "evidence": "second", "confidence": "certain"}


def test_a_warning_is_kept_once() -> None:
    facts = Facts()
    facts.warn("w")
    facts.warn("w")
    assert facts.warnings == ["w"]


def test_the_shape_of_a_missing_tensor_is_an_error_with_its_name() -> None:
    table = TensorTable({"a": TensorInfo("F32", (2,))})
    assert table.shape("a") == (2,) and len(table) == 1
    with pytest.raises(MissingTensor) as caught:
        table.shape("b")
    assert caught.value.param == "b"
