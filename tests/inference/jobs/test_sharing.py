"""Places divided between tenants: priority, then the fewest jobs, then age."""

from __future__ import annotations

import pytest

from inference.jobs.sharing import share_places

A = [(0, key) for key in range(1, 9)]


@pytest.mark.parametrize(
    ("waiting", "running", "limit", "expected"),
    [
        ({}, {}, 4, []),
        ({"a": A}, {}, 3, [1, 2, 3]),
        ({"a": A, "b": [(0, 20)], "c": []}, {}, 4, [1, 20, 2, 3]),
        ({"a": A, "b": [(0, 20), (0, 21)]}, {"a": 4}, 3, [20, 21, 1]),
        ({"a": A, "b": [(0, 20), (0, 21)]}, {"a": 1, "b": 9}, 3, [1, 2, 3]),
        ({"a": A, "b": [(-5, 20), (0, 21)]}, {"b": 9}, 3, [20, 1, 2]),
        ({"a": A[:1], "b": [(0, 20)]}, {}, 9, [1, 20]),
    ],
)
def test_places_are_shared(waiting, running, limit, expected):
    assert share_places(waiting, running, limit) == expected
