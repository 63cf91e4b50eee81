"""Headers of saved states: hostile files are refused in one line, whatever they say."""

from __future__ import annotations

import json
import os
import random

import pytest

from inference.errors import InvalidRequest
from inference.llm.state_header import StateIdentity, metadata_of, read_state_header

IDENTITY = StateIdentity("a" * 64, "b" * 64, "float32", "auto", "cpu", "16", "5", "c" * 64)


def header_with(*, tensors=None, **metadata):
    found = metadata_of(IDENTITY, 7, "tiny", "d" * 64) | metadata
    tensors = tensors or {"token_ids": ("I64", [2], 16), "slot": ("U8", [4], 4)}
    header, begin = {"__metadata__": {key: value for key, value in found.items() if value is not None}}, 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, begin + size]}
        begin += size
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(begin)


def read(tmp_path, content):
    path = tmp_path / "a.state"
    path.write_bytes(content)
    return read_state_header(path)


def test_a_header_is_read(tmp_path):
    header = read(tmp_path, header_with())
    assert (header.num_tokens, header.blocks_bytes, header.slot_bytes, header.model) == (2, 0, 4, "tiny")
    assert header.identity == IDENTITY
    assert f"{header.created_at:%Y-%m-%d %H:%M:%S}" == "1970-01-01 00:00:07"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "has 0 bytes; a safetensors file has at least 10"),
        (b"\x80\x04 a pickle" * 40, "is a pickle, not safetensors"),
        ((1 << 60).to_bytes(8, "little") + b"{}", "states a header of 1152921504606846976 bytes"),
        (header_with()[:-1], "the file is truncated"),
        (header_with() + b"more", "has 4 bytes behind its last tensor"),
        (header_with(format=None), "has no saved state in it"),
        (header_with(format="pt"), "has no saved state in it"),
        (header_with(version="2"), "has version '2' of the format, this blazr reads 1"),
        (header_with(weights=None), "a header whose weights is ''"),
        (header_with(digest="d" * 63), "a header whose digest"),
        (header_with(dtype="../../etc"), "a header whose dtype is '../../etc'"),
        (header_with(block_size="0"), "a header whose block_size is '0'"),
        (header_with(created="-1"), "a header whose created is '-1'"),
        (header_with(created="9" * 40), "a header whose created"),
        (header_with(created="٣"), "a header whose created"),
        (header_with(model="\x1b[2J"), "a header whose model is no printable name"),
        (header_with(model="m" * 201), "a header whose model is no printable name"),
        (header_with(tensors={"slot": ("U8", [4], 4)}), "must have the tensors token_ids, blocks, slot and"),
        (header_with(tensors={"token_ids": ("I64", [2], 16), "more": ("U8", [1], 1)}), "and no others"),
        (header_with(tensors={"token_ids": ("I64", [1], 8)}), "has 1 tokens; 2 to"),
        (header_with(tensors={"token_ids": ("I64", [2, 1], 16)}), "the tensor token_ids as I64 [2, 1], not as a row"),
        (header_with(tensors={"token_ids": ("F64", [2], 16)}), "the tensor token_ids as F64 [2], not as a row"),
    ],
)  # fmt: skip
def test_hostile_files_are_one_line(tmp_path, content, words):
    with pytest.raises(InvalidRequest) as refused:
        read(tmp_path, content)
    assert words in refused.value.message and "save" in refused.value.message
    assert refused.value.message.isprintable() and len(refused.value.message) < 400


def test_any_changed_byte_is_refused_or_without_effect(tmp_path):
    """Random changes of header and length: a state's header, or one line; nothing else is raised."""
    content, draws, refused = header_with(), random.Random(3), 0
    for _ in range(400):
        changed = bytearray(content)
        for _ in range(draws.randint(1, 3)):
            changed[draws.randrange(len(changed))] = draws.choice(b'"{}[],:\\ 09afU\x00\xff')
        try:
            header = read(tmp_path, bytes(changed))
        except InvalidRequest as error:
            refused += 1
            assert error.message.isprintable() and len(error.message) < 500
        else:
            assert header.num_tokens == 2 and header.slot_bytes == 4
    assert refused > 200


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, words in (
        (tmp_path / "none", "can't be opened: No such file or directory"),
        (tmp_path / "pipe", "is not a regular file"),
        (tmp_path, "is not a regular file"),
        (tmp_path / "\0", "can't be opened"),
    ):
        with pytest.raises(InvalidRequest, match=words) as refused:
            read_state_header(path)
        assert refused.value.message.isprintable()
