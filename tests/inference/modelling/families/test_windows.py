"""Which layers have a sliding window, and how wide it is."""

from __future__ import annotations

import pytest

from inference.errors import CorruptCheckpoint, UnsupportedArchitecture
from inference.modelling.families.config import Confidence
from inference.modelling.families.windows import TYPES, full_every, layer_types, sliding_window, window_of_each_layer
from tests.inference.modelling.families.headers import fact, view_of


def test_the_last_of_every_so_many_is_full() -> None:
    sliding, full = TYPES
    assert full_every(3, 7) == (sliding, sliding, full, sliding, sliding, full, sliding)
    assert full_every(1, 2) == (full, full)
    assert window_of_each_layer(full_every(2, 4), 9) == (9, None, 9, None)


def test_stated_types_have_to_fit_the_layers_and_the_family() -> None:
    assert layer_types(view_of({}, {}), 2, TYPES) is None
    assert layer_types(view_of({}, {"layer_types": list(TYPES)}), 2, TYPES) == TYPES
    with pytest.raises(CorruptCheckpoint, match="2 entries for 3 layers"):
        layer_types(view_of({}, {"layer_types": list(TYPES)}), 3, TYPES)
    with pytest.raises(UnsupportedArchitecture, match=r"'chunked_attention'.*supported are sliding_attention"):
        layer_types(view_of({}, {"layer_types": ["chunked_attention"]}), 1, TYPES)


@pytest.mark.parametrize(
    ("config", "expected"),
    [({"sliding_window": 5}, 5), ({"sliding_window": None}, None), ({"sliding_window": 0}, None)],
)
def test_null_and_0_mean_no_window(config: dict, expected: int | None) -> None:
    assert sliding_window(view_of({}, config), default=7) == expected


def test_the_familys_window_is_a_fact_of_low_confidence() -> None:
    view = view_of({}, {})
    assert sliding_window(view, default=7) == 7
    assert fact(view, "attention.sliding_window") == (7, Confidence.LOW)
