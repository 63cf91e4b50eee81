"""Bodies of runs are checked for types, and what is left out stays out."""

from __future__ import annotations

import pytest

from models_registry.api.run_serializers import (
    PromoteSerializer,
    RunCreateSerializer,
    RunDeleteSerializer,
    RunOptionsSerializer,
    RunStepSerializer,
)
from models_registry.models import RunStep
from tests.models_registry.runs.test_measuring import SAMPLE


def test_options_that_are_left_out_stay_out() -> None:
    made = RunOptionsSerializer(data={"seed": 3, "prompts": [" a "]})
    assert made.is_valid()
    assert made.validated_data == {"seed": 3, "prompts": [" a "]}
    assert RunDeleteSerializer(data={}).fields["with_models"].default is False


@pytest.mark.parametrize(
    ("serializer", "body", "member"),
    [
        (RunCreateSerializer, {}, "directory"), (RunCreateSerializer, {"directory": "a\0b"}, "directory"),
        (RunOptionsSerializer, {"prompts": [{"a": 1}]}, "prompts"), (RunOptionsSerializer, {"seed": "x"}, "seed"),
        (PromoteSerializer, {"alias": "a" * 97}, "alias"), (RunDeleteSerializer, {"with_models": "x"}, "with_models"),
    ],
)  # fmt: skip
def test_wrong_types_are_refused(serializer, body, member) -> None:
    made = serializer(data=body)
    assert not made.is_valid()
    assert set(made.errors) == {member}


def test_a_step_has_its_label_and_samples() -> None:
    shown = RunStepSerializer(RunStep(name="a", number=None, samples=[SAMPLE], loss=2.5)).data
    assert (shown["label"], shown["samples"], shown["loss"], shown["checkpoint"]) == ("final", [SAMPLE], 2.5, None)
