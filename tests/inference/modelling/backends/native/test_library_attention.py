"""Paged attention against sums in float64, and what neither a batch nor a wrong argument may do to it."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.backends.native.library import matrix_tiles
from tests.inference.modelling.contexts import contexts_of

LENGTHS = ((1, 1), (1, 64), (1, 65), (1, 300), (1, 1000), (7, 7), (70, 70), (40, 333), (200, 263), (3, 600))
"""(new tokens, tokens in all) of the sequences of a step: within a block, at its borders, over several parts."""
SHAPES = [
    (9, 3, 64, 64),
    (8, 8, 16, 16),
    (8, 1, 40, 24),
    (5, 1, 33, 17),
    (16, 1, 48, 32),
    (4, 2, 256, 256),
    (3, 3, 1, 1),
]
"""Query heads, key heads, width of keys, width of values."""
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 4e-2}
"""Values and scores are of size 1 to 10; a bfloat16 weight or result has 8 bits."""


class Step:
    """Random sequences whose blocks are scattered over a cache; the slots of nobody hold NaN."""

    def __init__(self, shape=SHAPES[0], dtype=torch.float32, lengths=LENGTHS, seed=0, block_size=3) -> None:
        heads, kv_heads, width, value_width = shape
        generator = torch.Generator().manual_seed(seed)

        def values(*sizes: int) -> torch.Tensor:
            return torch.randn(*sizes, generator=generator).to(dtype)

        counts = [-(-length // block_size) for _, length in lengths]
        mixed_up = torch.randperm(sum(counts) + 1, generator=generator)
        spans = [
            (own.unsqueeze(1) * block_size + torch.arange(block_size)).flatten()[:length]
            for own, (_, length) in zip(mixed_up[:-1].split(counts), lengths, strict=True)
        ]
        contexts = contexts_of(spans, [rows for rows, _ in lengths], block_size)
        self.blocks, self.starts, self.lengths = contexts.blocks, contexts.starts, contexts.lengths
        self.first_rows, self.block_size = contexts.first_rows, block_size
        self.slots = torch.cat(spans)
        self.query = values(sum(rows for rows, _ in lengths), heads, width)
        num_slots = len(mixed_up) * block_size
        self.key, self.value = values(num_slots, kv_heads, width), values(num_slots, kv_heads, value_width)
        nobodys = torch.ones(num_slots, dtype=torch.bool)
        nobodys[self.slots] = False
        self.key[nobodys] = self.value[nobodys] = torch.nan
        self.scale = 2 * width**-0.5

    def run(self, window: int = 0, softcap: float = 0.0, **other: torch.Tensor) -> torch.Tensor:
        names = ("query", "key", "value", "blocks", "starts", "lengths", "first_rows", "block_size")
        given = [other.get(name, getattr(self, name)) for name in names]
        return torch.ops.blazr.paged_attention(*given, self.value.shape[2], self.scale, window, softcap)

    def rows_of(self, index: int) -> slice:
        return slice(*self.first_rows[index : index + 2].tolist())

    def run_alone(self, index: int, window: int = 0, softcap: float = 0.0) -> torch.Tensor:
        query, one = self.query[self.rows_of(index)].contiguous(), slice(index, index + 1)
        rows = torch.tensor([0, len(query)])
        starts, lengths = self.starts[one], self.lengths[one]
        return self.run(window, softcap, query=query, starts=starts, lengths=lengths, first_rows=rows)

    def defined(self, window: int = 0, softcap: float = 0.0) -> torch.Tensor:
        share = self.query.shape[1] // self.key.shape[1]
        parts = []
        for index, slots in enumerate(self.slots.split(self.lengths.tolist())):
            query, length = self.query[self.rows_of(index)], len(slots)
            key, value = (cache[slots].double().repeat_interleave(share, 1) for cache in (self.key, self.value))
            scores = torch.einsum("nhd,mhd->hnm", query.double(), key) * self.scale
            if softcap:
                scores = softcap * torch.tanh(scores / softcap)
            positions, columns = torch.arange(length - len(query), length).unsqueeze(1), torch.arange(length)
            hidden = columns > positions
            if window:
                hidden |= columns <= positions - window
            weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            parts.append(torch.einsum("hnm,mhw->nhw", weights, value))
        return torch.cat(parts)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (5, 0.0), (100, 3.0)])
def test_it_is_the_sum(shape, dtype, window, softcap):
    step = Step(shape, dtype)
    found, wanted = step.run(window, softcap), step.defined(window, softcap)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("window", [0, 90])
def test_a_sequence_is_the_same_alone_and_in_any_batch(dtype, window):
    step = Step((6, 2, 32, 32), dtype)
    together = step.run(window)
    for index in range(len(LENGTHS)):
        assert torch.equal(together[step.rows_of(index)], step.run_alone(index, window)), LENGTHS[index]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(9, 3, 64, 64), (8, 8, 40, 24), (8, 4, 256, 256)])
def test_a_decode_is_the_same_alone_and_among_many(shape, dtype):
    """Among many, one thread takes the heads of a sequence together and asks for the next one's rows."""
    lengths = tuple((1, length) for length in (1, 63, 64, 65, 128, 129, 200, 300, 90, 17, 256, 2))
    step = Step(shape, dtype, lengths)
    together = step.run()
    for index in range(len(lengths)):
        assert torch.equal(together[index : index + 1], step.run_alone(index)), lengths[index]


def test_a_wrong_slot_among_many_is_an_error():
    step = Step((9, 3, 64, 64), torch.bfloat16, ((1, 100),) * 16)
    right = step.run()
    wrong = step.blocks.clone()
    wrong[250] = len(step.key)
    with pytest.raises(IndexError, match="slot"):
        step.run(blocks=wrong)
    assert torch.equal(step.run(), right)


def test_threads_change_nothing():
    step, threads = Step((6, 2, 32, 32)), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = step.run()
        torch.set_num_threads(3)
        assert torch.equal(step.run(), alone)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("length", [*range(1, 20), 47, 63, 64, 65, 127, 128, 129, 255, 256, 257, 300])
def test_decoding_gives_what_a_chunk_gives(length):
    step = Step((4, 2, 24, 24), lengths=((length, length),), seed=length)
    whole = step.run()
    last = step.run(query=step.query[-1:].contiguous(), first_rows=torch.tensor([0, 1]))
    torch.testing.assert_close(last[0], whole[-1], rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(8, 8, 64, 64), (9, 3, 48, 48), (4, 1, 256, 256), (5, 1, 40, 24), (2, 2, 33, 17)])
def test_few_rows_have_the_bits_that_they_have_among_many(shape, dtype):
    """Of few rows the tiles are wider, and values are read where they lie instead of being packed."""
    step = Step(shape, dtype, ((20, 333),))
    many = step.run()
    for count in (1, 2, 3, 4, 5, 6, 12, 13):
        few = step.run(query=step.query[-count:].contiguous(), first_rows=torch.tensor([0, count]))
        assert torch.equal(few, many[-count:]), count


def test_the_values_may_be_the_first_columns_of_the_keys():
    step = Step((16, 1, 40, 32))
    contexts = step.blocks, step.starts, step.lengths, step.first_rows, step.block_size
    step.value = step.key
    wanted = step.defined()[..., :32]
    found = torch.ops.blazr.paged_attention(step.query, step.key, step.key, *contexts, 32, step.scale, 0, 0.0)
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_extreme_scores_stay_finite(dtype):
    step = Step((4, 2, 16, 16), dtype, lengths=((1, 300), (90, 90)))
    step.query *= 1000
    found, wanted = step.run(), step.defined()
    assert found.isfinite().all()
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=5e-2)


@pytest.mark.parametrize("part", ["query", "key", "value"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_broken_value_is_seen_by_its_own_sequence_only(part, value):
    step = Step((4, 2, 16, 16), lengths=((1, 70), (1, 300), (40, 40)))
    clean = step.run()
    where = 1 if part == "query" else step.slots[70 + 10]
    getattr(step, part)[where] = value
    found = step.run()
    assert not found[1].isfinite().any()
    assert torch.equal(found[0], clean[0])
    assert torch.equal(found[2:], clean[2:])


@pytest.mark.usefixtures("tiles")
class TestMatrixTiles:
    """Sequences of more than 32 new tokens go by matrix tiles in bfloat16 where the processor has them."""

    LENGTHS = ((33, 33), (64, 64), (70, 70), (1, 300), (40, 333), (200, 263))
    SHAPES = (
        *SHAPES,
        (8, 1, 64, 64),
        (12, 12, 64, 32),
        (16, 8, 128, 128),
        (7, 1, 96, 80),
        (2, 2, 192, 128),
    )
    RULES = ((0, 0.0), (1, 0.0), (64, 0.0), (100, 3.0), (10**12, 0.0))

    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize(("window", "softcap"), RULES)
    def test_they_are_as_near_to_the_sum_as_the_vectors(self, shape, window, softcap):
        """Both round weights and results to 8 bits at different places: single values differ by a little more than a
        bfloat16's half step of 2^-9 at values up to 4, their mean error by at most a tenth.
        """
        step = Step(shape, torch.bfloat16, self.LENGTHS)
        wanted, found = step.defined(window, softcap), step.run(window, softcap)
        with matrix_tiles(False):
            plain = step.run(window, softcap)
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found.double(), wanted, rtol=2**-8, atol=1e-2)
        error, plain_error = ((one.double() - wanted).square().mean().sqrt() for one in (found, plain))
        assert error < 1.1 * plain_error + 1e-5

    def test_they_are_used_for_chunks_and_for_nothing_else(self):
        step = Step((8, 2, 64, 64), torch.bfloat16, ((32, 500), (33, 500), (1, 500)))
        found = step.run()
        with matrix_tiles(False):
            plain = step.run()
        assert torch.equal(found[:32], plain[:32])
        assert not torch.equal(found[32:65], plain[32:65])
        assert torch.equal(found[65:], plain[65:])

    @pytest.mark.parametrize("scale", [-0.25, 0.0])
    def test_any_scale(self, scale):
        step = Step((4, 2, 64, 64), torch.bfloat16, ((90, 90),))
        step.scale = scale
        torch.testing.assert_close(step.run().double(), step.defined(), rtol=2**-8, atol=1e-2)

    @pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (90, 0.0), (0, 3.0)])
    @pytest.mark.parametrize("shape", [(9, 3, 64, 64), (32, 8, 64, 64), (5, 1, 40, 24)])
    def test_a_chunk_is_the_same_alone_and_in_any_batch(self, shape, window, softcap):
        step = Step(shape, torch.bfloat16, self.LENGTHS)
        together = step.run(window, softcap)
        for index, lengths in enumerate(self.LENGTHS):
            assert torch.equal(together[step.rows_of(index)], step.run_alone(index, window, softcap)), lengths

    @pytest.mark.parametrize("window", [0, 90])
    def test_neither_threads_nor_the_chunks_cut_change_a_row(self, window):
        """More threads take smaller items; a chunk of a prompt gives the rows of the whole prompt."""
        step, threads = Step((6, 2, 64, 64), torch.bfloat16, ((900, 900),)), torch.get_num_threads()
        whole = step.run(window)
        try:
            for count in (1, 7):
                torch.set_num_threads(count)
                assert torch.equal(step.run(window), whole), count
        finally:
            torch.set_num_threads(threads)
        for begin, end in ((0, 33), (33, 300), (300, 900)):
            rows, length = torch.tensor([0, end - begin]), torch.tensor([end])
            part = step.run(window, query=step.query[begin:end].contiguous(), lengths=length, first_rows=rows)
            assert torch.equal(part, whole[begin:end]), (begin, end)

    def test_more_keys_than_stay_packed(self):
        """Keys and values are packed in runs of 512 KiB; the sums of a run are kept for the next one."""
        step = Step((4, 2, 128, 128), torch.bfloat16, ((40, 1600), (300, 1500)))
        for window in (0, 900):
            torch.testing.assert_close(step.run(window).double(), step.defined(window), rtol=2**-8, atol=1e-2)
            for index in range(2):
                assert torch.equal(step.run(window)[step.rows_of(index)], step.run_alone(index, window))

    def test_scores_that_grow_move_the_base(self):
        """Later keys win by far more than the slack within which a row's base stays."""
        step = Step((4, 2, 64, 64), torch.bfloat16, ((500, 500),))
        step.key[step.slots] *= torch.linspace(0.1, 40, 500).view(-1, 1, 1).bfloat16()
        torch.testing.assert_close(step.run().double(), step.defined(), rtol=2**-7, atol=3e-2)

    @pytest.mark.parametrize("part", ["query", "key", "value"])
    @pytest.mark.parametrize("value", [torch.nan, torch.inf])
    def test_a_broken_value_is_seen_by_its_own_sequence_only(self, part, value):
        step = Step((4, 2, 64, 64), torch.bfloat16, ((70, 70), (50, 300), (40, 40)))
        clean = step.run()
        where = 70 + 3 if part == "query" else step.slots[70 + 10]
        getattr(step, part)[where] = value
        found = step.run()
        assert not found[70 + 3].isfinite().any()
        assert torch.equal(found[:70], clean[:70])
        assert torch.equal(found[120:], clean[120:])

    def test_float32_goes_as_before(self):
        step = Step((4, 2, 64, 64), torch.float32, ((90, 200),))
        found = step.run()
        with matrix_tiles(False):
            assert torch.equal(found, step.run())


class TestWrongArguments:
    """Each is refused before memory outside the tensors could be read."""

    @pytest.mark.parametrize("slot", [-1, 10**6])
    @pytest.mark.parametrize("rows", [1, 40])
    def test_a_slot_outside_the_cache(self, slot, rows):
        step = Step((4, 2, 16, 16), lengths=((rows, 400), (rows, 90)), block_size=1)
        step.blocks[100] = slot
        with pytest.raises(IndexError, match=f"slot {slot} of a cache with 491"):
            step.run()

    @pytest.mark.parametrize(
        "other",
        [
            {"first_rows": [0, 2]},
            {"first_rows": [1, 1]},
            {"first_rows": [0, -1]},
            {"first_rows": [0]},
            {"first_rows": [0, 2**62, 1], "starts": [0, 0], "lengths": [5, 5]},
            {"first_rows": [0, 1, 1], "starts": [0, 0], "lengths": [5, 5]},
            {"lengths": [0]},
            {"lengths": [13]},
            {"lengths": [5, 5]},
            {"lengths": [4], "starts": [3]},
            {"starts": [4]},
            {"starts": [-1]},
            {"lengths": [2**62], "starts": [2**62]},
            {"lengths": [], "starts": [], "first_rows": [0]},
        ],
    )
    def test_sequences_that_do_not_fit(self, other):
        step = Step((2, 1, 8, 8), lengths=((1, 10),))
        with pytest.raises(RuntimeError, match="attention"):
            step.run(**{name: torch.tensor(values, dtype=torch.int64) for name, values in other.items()})

    @pytest.mark.parametrize(
        "other",
        [
            {"query": torch.zeros(1, 3, 8)},
            {"query": torch.zeros(1, 2, 9)},
            {"query": torch.zeros(1, 2, 8, dtype=torch.bfloat16)},
            {"query": torch.zeros(1, 8, 2).transpose(1, 2)},
            {"key": torch.zeros(5, 2, 8)},
            {"value": torch.zeros(11, 2, 4)},
            {"value": torch.zeros(11, 8, 2).transpose(1, 2)},
            {"blocks": torch.zeros(4, dtype=torch.int64)},
            {"blocks": torch.zeros(8, dtype=torch.int32)[::2]},
            {"starts": torch.zeros(1, dtype=torch.int32)},
            {"lengths": torch.ones(1, 1, dtype=torch.int64)},
            {"first_rows": torch.tensor([0, 0, 1])[::2]},
            {"block_size": 0},
        ],
    )
    def test_shapes_and_dtypes(self, other):
        step = Step((4, 2, 8, 8), lengths=((1, 10),))
        with pytest.raises(RuntimeError, match="attention"):
            step.run(**other)

    def test_other_dtypes(self):
        step = Step((4, 2, 8, 8), torch.float16, lengths=((1, 10),))
        with pytest.raises(RuntimeError, match="float32 or bfloat16"):
            step.run()
