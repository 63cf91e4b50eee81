"""Encodings of what web processes and workers share."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from inference.transport import keys as redis_keys
from inference.transport.queue import task_envelope

TEXT = st.text(st.characters(codec=None))  # lone surrogates included


@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | TEXT, st.lists, max_leaves=8))
def test_values_survive_packing(value):
    assert redis_keys.unpack(redis_keys.pack(value)) == value


def test_a_redelivered_message_differs_by_its_marks_only():
    envelope = task_envelope("t", ("x",), task_id="t1", queue="q", delivery_tag="tag")
    before, after = json.loads(envelope), json.loads(redis_keys.as_redelivered(envelope))
    assert after["headers"].pop("redelivered") is True
    assert after["properties"]["delivery_info"].pop("redelivered") is True
    before["headers"].pop("redelivered", None)
    assert after == before
