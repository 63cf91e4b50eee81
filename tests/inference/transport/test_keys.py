"""Encodings of what web processes and workers share."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference.transport import keys as redis_keys

TEXT = st.text(st.characters(codec=None))  # lone surrogates included


@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | TEXT, st.lists, max_leaves=8))
def test_values_survive_packing(value):
    assert redis_keys.unpack(redis_keys.pack(value)) == value
