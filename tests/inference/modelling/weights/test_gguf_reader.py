"""GgufPlace: any piece of a tensor is the same as that piece of the whole."""

from __future__ import annotations

import struct
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants

from inference.errors import CorruptCheckpoint
from inference.modelling.gguf.tensors import CheckpointTensor, Segment
from inference.modelling.layers.coded import PlainStore
from inference.modelling.quantisation import GGUF_FORMS
from inference.modelling.weights import gguf_reader
from inference.modelling.weights.files import TensorFiles
from inference.modelling.weights.gguf_reader import GgufPlace
from tests.inference.modelling.gguf.writer import TYPES, Tensor, write_gguf

HEADS, HEAD_ROWS, COLUMNS = 3, 8, 64


@pytest.fixture
def stored(tmp_path):
    """(values, place) of a Q8_0 matrix in a file."""
    values = np.random.default_rng(1).standard_normal((HEADS * HEAD_ROWS, COLUMNS)).astype(np.float32)
    coded = quants.quantize(values, GGMLQuantizationType.Q8_0)
    path = tmp_path / "codes"
    path.write_bytes(b"head" + coded.tobytes())
    values = torch.from_numpy(quants.dequantize(coded, GGMLQuantizationType.Q8_0))
    with ExitStack() as closing:
        descriptor = closing.enter_context(path.open("rb")).fileno()

        def place(dtype=torch.float32, **changes) -> GgufPlace:
            segment = Segment(0, TYPES["Q8_0"][0], 4, *values.shape)
            shape = changes.pop("shape", tuple(values.shape))
            segments = changes.pop("segments", (segment,))
            return GgufPlace("codes", CheckpointTensor(shape, segments, **changes), [descriptor], dtype)

        yield values, place


def read(place: GgufPlace, begin: int = 0, end: int | None = None) -> torch.Tensor:
    size = place.stored.itemsize
    end = place.size // size if end is None else end
    out = bytearray((end - begin) * size)
    place.fill(memoryview(out), begin * size)
    return torch.frombuffer(out, dtype=place.stored)


@pytest.mark.parametrize("chunk", [1, 100, 1 << 16])
@pytest.mark.parametrize("head_rows", [0, HEAD_ROWS])
def test_pieces_are_the_pieces_of_the_whole(stored, monkeypatch, chunk, head_rows):
    monkeypatch.setattr(gguf_reader, "CHUNK_VALUES", chunk)
    values, make = stored
    place = make(head_rows=head_rows)
    expected = values
    if head_rows:
        expected = values.view(HEADS, HEAD_ROWS // 2, 2, COLUMNS).transpose(1, 2).reshape(values.shape)
    assert torch.equal(read(place), expected.flatten())
    for begin, end in ((0, 1), (63, 65), (500, 1030), (1000, len(expected.flatten()))):
        assert torch.equal(read(place, begin, end), expected.flatten()[begin:end])


def test_columns_of_heads_are_put_in_order(stored):
    values, make = stored
    wide = values.view(HEADS * HEAD_ROWS // 4, 4 * COLUMNS)  # eight blocks in a row
    segment = Segment(0, TYPES["Q8_0"][0], 4, *wide.shape)
    place = make(shape=tuple(wide.shape), segments=(segment,), column_heads=(4, 2))
    expected = wide.view(len(wide), 4, 2, 32).transpose(1, 2).flatten(1)
    assert torch.equal(read(place), expected.flatten())
    assert torch.equal(read(place, 100, 300), expected.flatten()[100:300])
    assert torch.equal(place.codes(1, 3).dense(torch.float32), expected[1:4])


@pytest.mark.parametrize("chunk", [1, 100, 1 << 16])
def test_rows_take_turns(stored, monkeypatch, chunk):
    monkeypatch.setattr(gguf_reader, "CHUNK_VALUES", chunk)
    values, make = stored
    number, row = TYPES["Q8_0"][0], COLUMNS // 32 * 34
    pieces = tuple(Segment(0, number, 4 + 6 * piece * row, 6, COLUMNS) for piece in range(4))
    place = make(segments=pieces, takes_turns=True)
    expected = values.view(2, 2, 6, COLUMNS).transpose(1, 2).flatten(0, 2)
    assert torch.equal(read(place), expected.flatten())
    assert torch.equal(read(place, 100, 1000), expected.flatten()[100:1000])
    for first, count in ((0, 24), (1, 3), (11, 2), (13, 8)):
        assert torch.equal(place.codes(first, count).dense(torch.float32), expected[first : first + count])


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q6_K"])
def test_heads_narrower_than_a_block_are_put_in_order(tmp_path, kind):
    """Qwen 3.5's heads have 128 columns, blocks 256: codes and scales are moved, not blocks."""
    number, block, size = TYPES[kind]
    raw = np.random.default_rng(2).integers(0, 256, (3, 768 // block, size), dtype=np.uint8)
    half = np.array([0.01], np.float16).view(np.uint8)
    places = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q6_K": (208,)}[kind]
    for begin in places:
        raw[..., begin : begin + 2] = half
    (tmp_path / "codes").write_bytes(raw.tobytes())
    values = torch.from_numpy(quants.dequantize(raw.reshape(3, -1), GGMLQuantizationType[kind]))
    expected = values.view(3, 3, 2, 128).transpose(1, 2).flatten(1)
    tensor = CheckpointTensor((3, 768), (Segment(0, number, 0, 3, 768),), column_heads=(3, 2))
    assert tensor.code_type == kind
    with (tmp_path / "codes").open("rb") as file:
        place = GgufPlace("codes", tensor, [file.fileno()], torch.float32)
        assert torch.equal(read(place), expected.flatten())
        codes = place.codes(0, 3)
        assert torch.equal(codes.dense(torch.float32), expected)
        assert codes.factors is None and not codes.form.has_factors  # a block's inputs share nothing any more
        stays = GgufPlace("codes", CheckpointTensor((3, 768), tensor.segments), [file.fileno()], torch.float32)
        codes = stays.codes(0, 3)
        assert torch.equal(codes.dense(torch.float32), values)
        assert codes.form == GGUF_FORMS[kind]
        plain = PlainStore((3, 768), codes.form.without_factors)  # as files registered before have it
        plain.put(codes, 0)
        torch.testing.assert_close(plain.packed.dense(torch.float32), values, rtol=0, atol=2e-3 * values.abs().max())


def test_pieces_are_multiplied_by_their_factors(stored):
    values, make = stored
    number, row = TYPES["Q8_0"][0], COLUMNS // 32 * 34
    factor = (0, 4 + row - 4)  # the last four codes of the first row, read as a float32
    pieces = (
        Segment(0, number, 4, 2, COLUMNS, factor=factor), Segment(0, number, 4 + 2 * row, 3, COLUMNS),
        Segment(0, number, 4, 3, COLUMNS, transposed=True, factor=factor),
    )  # fmt: skip
    scale = struct.unpack("<f", np.rint(values[0, -4:].numpy() / step_of(values)).astype(np.int8).tobytes())[0]
    place = make(segments=pieces[:2], shape=(5, COLUMNS))
    expected = torch.cat((values[:2] * scale, values[2:5]))
    assert torch.equal(read(place), expected.flatten())
    torch.testing.assert_close(place.codes(1, 3).dense(torch.float32), expected[1:4], rtol=1e-6, atol=0)
    turned = make(segments=pieces[2:], shape=(COLUMNS, 3))
    assert torch.equal(read(turned), (values[:3] * scale).T.flatten())


def step_of(values: torch.Tensor) -> float:
    """The scale of the last block of the first row: its largest value has the code 127."""
    return float(values[0, -32:].abs().max()) / 127


def test_values_are_rounded_once(stored):
    values, make = stored
    assert torch.equal(read(make(torch.bfloat16)), values.flatten().bfloat16())


def test_what_was_folded_into_values_is_undone(stored):
    values, make = stored
    assert torch.equal(read(make(folded="plus_one")), values.flatten() - 1)
    found = read(make(folded="negative_exp"))
    positive = values.flatten() < 0
    assert torch.equal(found[positive], torch.log(-values.flatten()[positive]))
    assert torch.equal(read(make(folded="exp"))[~positive], torch.log(values.flatten()[~positive]))


def test_segments_lie_one_below_the_other(stored):
    values, make = stored
    number = TYPES["Q8_0"][0]
    row = COLUMNS // 32 * 34
    wide = Segment(0, number, 4, COLUMNS, COLUMNS, transposed=True)  # needs more rows than there are
    with pytest.raises(CorruptCheckpoint, match="codes ends before its tensors do"):
        read(make(segments=(wide,), shape=(COLUMNS, COLUMNS)))
    parts = (Segment(0, number, 4 + 5 * row, 2, COLUMNS), Segment(0, number, 4, 3, COLUMNS))
    place = make(segments=parts, shape=(5, COLUMNS))
    expected = torch.cat((values[5:7], values[:3])).flatten()
    assert torch.equal(read(place), expected)
    assert torch.equal(read(place, 100, 200), expected[100:200])
    turned = make(segments=(Segment(0, number, 4, 4, COLUMNS, transposed=True),), shape=(COLUMNS, 4))
    assert torch.equal(read(turned), values[:4].T.flatten())
    assert torch.equal(read(turned, 7, 30), values[:4].T.flatten()[7:30])


def test_tensor_files_take_a_gguf_file(tmp_path):
    path = tmp_path / "m.gguf"
    plain = torch.arange(8.0).view(4, 2)
    keys = {"general.architecture": "llama", "llama.block_count": 1}
    coded = quants.quantize(np.ones((2, 32), np.float32), GGMLQuantizationType.Q8_0).tobytes()
    tensors = [
        Tensor("token_embd.weight", (4, 2), plain.numpy().tobytes()),
        Tensor("blk.0.ffn_up.weight", (2, 32), coded, type=TYPES["Q8_0"][0]),
    ]
    write_gguf(path, keys, tensors)
    names = ["model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"]
    with TensorFiles([path], [names], dequantised=torch.bfloat16) as files:
        files.move()
        assert [files.shape_of(name) for name in names] == [(4, 2), (2, 32)]
        assert [files.dtype_of(name) for name in names] == [torch.float32, torch.bfloat16]
        assert files.position_of(names[0])[0] == "m.gguf"
        assert torch.equal(files.read(names[0]), plain)
        torch.testing.assert_close(files.read(names[1]), torch.ones(2, 32, dtype=torch.bfloat16))
