"""The container: what it reads, and what it refuses before it costs anything."""

from __future__ import annotations

import resource
import struct
import time

import pytest

from inference.errors import CorruptCheckpoint, UnsupportedFormat
from inference.modelling.gguf.block_types import BLOCK_TYPES
from inference.modelling.gguf.container import GgufArray, read_gguf
from tests.inference.modelling.gguf.writer import TYPES, Gguf, Tensor, keys_of, string, value

KEYS = {
    "general.architecture": "llama",
    "general.alignment": 32,
    "llama.block_count": 2,
    "llama.rope.freq_base": 10000.0,
    "a.negative": value(-3, "i64"),
    "a.truth": True,
    "a.large": value(2**63 + 1, "u64"),
    "tokenizer.ggml.tokens": ["<s>", "ä", "b c"],
    "tokenizer.ggml.scores": [0.5, -1.0, 0.0],
    "a.flags": [True, False],
    "a.small": value([1, 255], "u8"),
}


def plain(**rest) -> Gguf:
    """A small file of two tensors."""
    tensors = [
        Tensor("a.weight", (3, 2), struct.pack("<6f", *range(6))),
        Tensor("b.weight", (2, 64), bytes(range(136)), type=TYPES["Q8_0"][0]),
    ]
    return Gguf(keys_of(KEYS), tensors, **rest)


@pytest.fixture
def read(tmp_path):
    def run(content: bytes):
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        return read_gguf(path)

    return run


@pytest.mark.parametrize("version", [2, 3])
def test_keys_and_tensors_are_read(read, version):
    content = plain(version=version).content()
    found = read(content)
    assert found.version == version
    assert found.keys["general.architecture"] == "llama"
    assert found.keys["llama.rope.freq_base"] == 10000.0
    assert (found.keys["a.negative"], found.keys["a.truth"], found.keys["a.large"]) == (-3, True, 2**63 + 1)
    tokens = found.keys["tokenizer.ggml.tokens"]
    assert isinstance(tokens, GgufArray)
    assert (tokens.element, tokens.count) == ("string", 3)
    assert found.strings("tokenizer.ggml.tokens") == [b"<s>", "ä".encode(), b"b c"]
    assert found.numbers("tokenizer.ggml.scores") == (0.5, -1.0, 0.0)
    assert found.numbers("a.flags") == (1, 0)
    assert found.numbers("a.small") == (1, 255)
    assert (found.strings("nothing"), found.numbers("nothing")) == ([], ())
    assert list(found.tensors) == ["a.weight", "b.weight"]
    first, second = found.tensors.values()
    assert (first.shape, first.block_type.name, first.begin) == ((3, 2), "F32", found.data_start)
    assert content[first.begin : first.end] == struct.pack("<6f", *range(6))
    assert (second.shape, second.block_type.name) == ((2, 64), "Q8_0")
    assert content[second.begin : second.end] == bytes(range(136))


def test_types_have_the_sizes_of_the_format():
    for name, (number, values, num_bytes) in TYPES.items():
        found = BLOCK_TYPES[number]
        assert (found.name, found.values, found.num_bytes) == (name, values, num_bytes)


def test_another_alignment_moves_the_data(read):
    gguf = plain(alignment=128)
    gguf.keys[1] = ("general.alignment", value(128))
    found = read(gguf.content())
    assert found.data_start % 128 == 0
    assert found.tensors["b.weight"].begin == found.data_start + 128


def test_arrays_of_another_kind_are_refused(read):
    found = read(plain().content())
    with pytest.raises(CorruptCheckpoint, match="strings are needed"):
        found.strings("tokenizer.ggml.scores")
    with pytest.raises(CorruptCheckpoint, match="numbers are needed"):
        found.numbers("tokenizer.ggml.tokens")
    with pytest.raises(CorruptCheckpoint, match="an array is needed"):
        found.numbers("llama.block_count")


def test_an_array_of_a_file_that_became_shorter_is_refused(read, tmp_path):
    found = read(plain().content())
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(CorruptCheckpoint, match="changed while it was read"):
        found.strings("tokenizer.ggml.tokens")


def test_every_truncation_is_refused(read):
    content = plain().content()
    for length in range(len(content) - 31):  # the last bytes are padding
        with pytest.raises(CorruptCheckpoint, match=r"truncated|not a GGUF file"):
            read(content[:length])


def key(name: str | bytes, coded: bytes) -> bytes:
    return Gguf([(name, coded)]).content()


def one(shape=(4,), size=16, **rest) -> bytes:
    return Gguf([], [Tensor("a", shape, bytes(size), **rest)]).content()


HOSTILE = {
    "key count": (Gguf([], num_keys=2**64 - 1).content(), "states .* keys"),
    "tensor count": (Gguf([], num_tensors=2**62).content(), "states .* tensors"),
    "keys that aren't there": (Gguf([], num_keys=2).content()[:24], "truncated"),
    "name of 2^63 bytes": (Gguf([], num_keys=1).content()[:24] + struct.pack("<Q", 2**63), "name of a key of"),
    "string of 2^64-1 bytes": (key("a", struct.pack("<IQ", 8, 2**64 - 1)), "with a string of"),
    "string over the end": (key("a", struct.pack("<IQ", 8, 1 << 20)), "truncated"),
    "array of 2^64-1 strings": (key("a", struct.pack("<IIQ", 9, 8, 2**64 - 1)), "the limit is"),
    "array of 2^63 numbers": (key("a", struct.pack("<IIQ", 9, 10, 2**63)), "truncated"),
    "array with a string of 2^64-1": (key("a", struct.pack("<IIQQ", 9, 8, 2, 2**64 - 1)), "truncated"),
    "array of arrays": (key("a", struct.pack("<IIQ", 9, 9, 1)), "arrays of numbers and strings"),
    "unknown value type": (key("a", struct.pack("<I", 13)), "type 13"),
    "truth value 2": (key("a", struct.pack("<IB", 7, 2)), "truth value 2"),
    "not UTF-8": (key("a", struct.pack("<IQ", 8, 1) + b"\xff"), "UTF-8"),
    "empty name": (key("", value(1)), "no name of a key"),
    "name with a control character": (key("a\x1b", value(1)), "no name of a key"),
    "key twice": (Gguf([("a", value(1)), ("a", value(2))]).content(), "key a twice"),
    "alignment 0": (key("general.alignment", value(0)), "alignment"),
    "alignment 24": (key("general.alignment", value(24)), "alignment"),
    "alignment is a string": (key("general.alignment", value("x")), "alignment"),
    "tensor twice": (Gguf([], [Tensor("a", (1,), bytes(4)), Tensor("a", (1,), bytes(4))]).content(), "two tensors"),
    "tensor name with a quote": (Gguf([], [Tensor('a"', (1,), bytes(4))]).content(), "no name of a tensor"),
    "rank 0": (one(()), "0 dimensions"),
    "rank 2^31": (Gguf([], num_tensors=1).content()[:24] + string("a") + struct.pack("<I", 2**31), "dimensions"),
    "dimension 0": (one((0, 4)), "impossible shape"),
    "dimension 2^63": (one((2**63,)), "impossible shape"),
    "overflow": (one((2**33, 2**33)), "impossible shape"),
    "unknown tensor type": (one(type=4), "type 4, which is not known"),
    "columns are no whole blocks": (one((3, 33), 200, type=8), "blocks of 32"),
    "offset that isn't aligned": (one(offset=8), "no multiple of 32"),
    "offset behind the end": (one(offset=1 << 40), "truncated"),
    "tensor larger than the file": (one((1 << 20,)), "truncated"),
    "overlap": (
        Gguf([], [Tensor("a", (16,), bytes(64)), Tensor("b", (16,), bytes(64), offset=32)]).content(),
        "where a is until 64",
    ),
    "version 1": (Gguf(version=1).content(), "version 1"),
    "big-endian": (Gguf(version=3 << 24).content(), "big-endian"),
    "another format": (b"PK\x03\x04" + bytes(64), "not a GGUF file"),
    "empty": (b"", "not a GGUF file"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(read, name):
    content, message = HOSTILE[name]
    with pytest.raises((CorruptCheckpoint, UnsupportedFormat), match=message) as caught:
        read(content)
    assert "model.gguf" in caught.value.message
    assert len(caught.value.message) < 600
    assert caught.value.message.endswith(("again.", "one of these."))


def test_the_largest_legal_headers_cost_little(read):
    empty = struct.pack("<IIQ", 9, 8, (1 << 20) - 1) + bytes(8 * ((1 << 20) - 1))
    numbers = struct.pack("<IIQ", 9, 0, 20 << 20) + bytes(20 << 20)
    many = Gguf(
        [*((f"k{n}", value(n)) for n in range(4096))],
        [Tensor(f"t{n}", (1,), bytes(32)) for n in range(1 << 14)],
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for content in (
        Gguf([("a", empty), ("b", struct.pack("<I", 99))]).content(),
        Gguf([("a", numbers), ("b", struct.pack("<I", 99))]).content(),
        Gguf(many.keys, [*many.tensors[:-1], Tensor("t0", (1,), bytes(4))]).content(),
    ):
        read_once = time.process_time()
        with pytest.raises(CorruptCheckpoint):
            read(content)
        assert time.process_time() - read_once < 0.5  # 0.1 s is typical; other tests run beside
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10  # the contents themselves among it
