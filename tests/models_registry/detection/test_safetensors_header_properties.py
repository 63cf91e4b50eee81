"""Rules that hold for every input: no crash, and nothing accepted that the library refuses."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import deserialize

from inference.errors import CheckpointError
from models_registry.detection.safetensors_header import DTYPE_BITS, read_header
from tests.models_registry.detection.builders import framed

PLACE = Path(tempfile.gettempdir()) / f"blazr-header-{os.getpid()}.safetensors"


@pytest.fixture(autouse=True, scope="module")
def _clean_up():
    yield
    PLACE.unlink(missing_ok=True)


def verdict(content: bytes) -> None:
    """Read; whatever is accepted, the library must accept with the same result."""
    PLACE.write_bytes(content)
    try:
        found = read_header(PLACE)
    except CheckpointError:
        return
    oracle = dict(deserialize(content))
    assert {name: (info.dtype, list(info.shape)) for name, info in found.items()} == {
        name: (info["dtype"], info["shape"]) for name, info in oracle.items()
    }
    for name, info in found.items():
        assert content[info.begin : info.end] == bytes(oracle[name]["data"])


numbers = st.one_of(st.integers(0, 9), st.integers(-2, 2**70), st.floats(), st.booleans(), st.just(2**63))
names = st.one_of(st.sampled_from(["a", "b", "model.layers.0.w", "__metadata__", "../x", ""]), st.text(max_size=8))
entries = st.fixed_dictionaries(
    {
        "dtype": st.one_of(st.sampled_from([*DTYPE_BITS, "F4", "C64", "x"]), st.text(max_size=4)),
        "shape": st.lists(numbers, max_size=9),
        "data_offsets": st.lists(numbers, max_size=3),
    },
    optional={"extra": numbers},
)
values = st.one_of(entries, st.recursive(numbers | st.text(max_size=3) | st.none(), st.lists, max_leaves=5))


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_crash(content: bytes) -> None:
    verdict(content)


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=120), st.binary(max_size=20))
def test_arbitrary_headers_never_crash(header: bytes, data: bytes) -> None:
    verdict(framed(header, data))


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(names, values, max_size=4), st.binary(max_size=64), st.sampled_from([None, 1]))
def test_arbitrary_json_is_judged_as_the_library_does(value: dict, data: bytes, indent: int | None) -> None:
    verdict(framed(json.dumps(value, indent=indent), data))


@st.composite
def layouts(draw):
    """Legal files, and the same with one number changed."""
    header, position = {}, 0
    for name in draw(st.lists(st.sampled_from("abcdefg"), unique=True, max_size=5)):
        dtype = draw(st.sampled_from(list(DTYPE_BITS)))
        shape = draw(st.lists(st.integers(0, 3), max_size=4))
        size = DTYPE_BITS[dtype] // 8
        for dimension in shape:
            size *= dimension
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + size]}
        position += size
    return header, position


@settings(max_examples=300, deadline=None)
@given(layouts())
def test_legal_layouts_are_accepted(layout) -> None:
    header, size = layout
    PLACE.write_bytes(framed(json.dumps(header), bytes(size)))
    found = read_header(PLACE)
    assert {name: list(info.shape) for name, info in found.items()} == {n: e["shape"] for n, e in header.items()}


@settings(max_examples=300, deadline=None)
@given(layouts(), st.data())
def test_changed_layouts_are_judged_as_the_library_does(layout, data) -> None:
    header, size = layout
    if header:
        entry = header[data.draw(st.sampled_from(sorted(header)))]
        key = data.draw(st.sampled_from(["shape", "data_offsets"]))
        if entry[key]:
            entry[key][data.draw(st.integers(0, len(entry[key]) - 1))] += data.draw(st.integers(-4, 4))
    verdict(framed(json.dumps(header), bytes(max(0, size + data.draw(st.integers(-2, 2))))))


@settings(max_examples=300, deadline=None)
@given(layouts(), st.data())
def test_flipped_bytes_are_judged_as_the_library_does(layout, data) -> None:
    content = bytearray(framed(json.dumps(layout[0]), bytes(layout[1])))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    verdict(bytes(content))
