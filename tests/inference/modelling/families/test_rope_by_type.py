"""Rotations of windowed and full layers, in transformers 5's naming and the older one."""

from __future__ import annotations

import pytest

from inference.errors import CorruptCheckpoint
from inference.modelling.families.attention_decoder import AttentionDecoder
from inference.modelling.families.rope_by_type import ropes_by_type
from inference.modelling.families.windows import TYPES
from tests.inference.modelling.families.headers import llama, view_of

LINEAR = {"rope_type": "linear", "factor": 4.0}


def read(config: dict, **options: float) -> list[tuple[float, bool]]:
    """Base, and whether it is stretched, of each type."""
    view = view_of(llama(1), {"num_attention_heads": 4, "max_position_embeddings": 64} | config)
    found = ropes_by_type(view, AttentionDecoder.read(view).rope, theta=1e6, **options)
    return [(found[kind].theta, found[kind].scaling is not None) for kind in TYPES]


@pytest.mark.parametrize(
    ("config", "options", "expected"),
    [
        ({}, {}, [(1e6, False), (1e6, False)]),
        ({"rope_theta": 5e5, "rope_scaling": LINEAR}, {}, [(5e5, False), (5e5, True)]),
        ({}, {"local_theta": 1e4}, [(1e4, False), (1e6, False)]),
        ({"rope_local_base_freq": 300.0}, {"local_theta": 1e4}, [(300.0, False), (1e6, False)]),
        (
            {"rope_parameters": {TYPES[0]: {"rope_theta": 7e3}, TYPES[1]: {"rope_theta": 8e3, **LINEAR}}},
            {"local_theta": 1e4},
            [(7e3, False), (8e3, True)],
        ),
    ],
)
def test_the_two_rotations(config: dict, options: dict, expected: list) -> None:
    assert read(config, **options) == expected


@pytest.mark.parametrize(
    "value",
    [
        "x",
        {TYPES[0]: {"rope_theta": 1e4, **LINEAR}, TYPES[1]: {"rope_theta": 1e4}},
        {TYPES[0]: {"type": "linear", "factor": 4.0}, TYPES[1]: {"rope_theta": 1e4}},
        {TYPES[0]: {"partial_rotary_factor": 0.5}, TYPES[1]: {"rope_theta": 1e4}},
    ],
)
def test_what_is_refused(value: object) -> None:
    with pytest.raises(CorruptCheckpoint, match=r"rope_parameters|windowed layers"):
        read({"rope_parameters": value})
