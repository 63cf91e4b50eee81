"""Encodings of what web processes and workers share."""

from __future__ import annotations

import pickle

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.transport import keys as redis_keys

TEXT = st.text(st.characters(codec=None))  # lone surrogates included


@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | TEXT, st.lists, max_leaves=8))
def test_values_survive_packing(value):
    assert redis_keys.unpack(redis_keys.pack(value)) == value


class Opened:
    """Unpickling this makes a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_in_entries_are_bytes(tmp_path, protocol):
    """CVE-2024-11041, CVE-2025-30165: whoever reaches Redis can send data, and no program."""
    content = pickle.dumps(Opened(str(tmp_path / "canary")), protocol)
    for packed in (content, msgpack.packb(content), msgpack.packb(msgpack.ExtType(1, content))):
        try:
            found = redis_keys.unpack(packed)
        except ValueError:  # msgpack's errors are some
            continue
        assert isinstance(found, bytes | int | msgpack.ExtType)
    assert not (tmp_path / "canary").exists()
