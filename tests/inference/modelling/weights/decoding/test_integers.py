"""Integer codes: any number of bits, both directions of HQQ, indices out of range."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from inference.errors import CorruptCheckpoint
from inference.modelling.weights.decoding import integers
from inference.modelling.weights.decoding.decode import decode
from tests.inference.modelling.encodings import formats
from tests.inference.modelling.weights.decoding.values import check, read


@settings(max_examples=60, deadline=None)
@given(
    outputs=st.integers(1, 40), inputs=st.integers(1, 99), bits=st.integers(2, 8), group=st.integers(1, 40),
    loose=st.booleans(), symmetric=st.booleans(),
)  # fmt: skip
def test_packed_integers_of_any_width(
    outputs: int, inputs: int, bits: int, group: int, loose: bool, symmetric: bool
) -> None:
    # Where both packings take as many words, the tensors don't tell them apart; real sizes are multiples of 32.
    assume(not loose or all(-(-count * bits // 32) != -(-count // (32 // bits)) for count in (outputs, inputs)))
    made = formats.packed(
        np.random.default_rng(4), outputs, inputs, bits=bits, group=group, loose=loose, symmetric=symmetric
    )
    weights = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": group}
    config = {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": weights}}}
    check(made, config, (outputs // 2,))


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("group", [8, 40, 64])
def test_hqq_in_both_directions(bits: int, axis: int, group: int) -> None:
    check(formats.hqq(np.random.default_rng(5), 64, 40 * 8, bits=bits, axis=axis, group=group), None, (1, 7))


def test_a_group_that_is_not_there_is_refused() -> None:
    # The order of such small groups isn't looked at when the tensors are found.
    tensors, values = formats.gptq(np.random.default_rng(7), 32, 64, group=8)
    for wrong in (8, -1):
        tensors["g_idx"][5] = wrong
        item, parts = read((tensors, values), {"quant_method": "gptq", "bits": 4, "group_size": 8})
        with pytest.raises(CorruptCheckpoint, match=rf"x\.g_idx holds {wrong}; the weight has 8 groups"):
            decode(item, parts)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("make", [formats.gptq, partial(formats.packed, symmetric=False)])
def test_a_piece_of_rows_unpacks_its_own_zero_points(bits: int, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": 32}
    config = {"quant_method": "gptq", "bits": bits, "group_size": 32}
    if make is not formats.gptq:
        config = {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": weights}}}
    item, parts = read(make(np.random.default_rng(6), 1024, 64, bits=bits), config)
    counts, unpack = [], integers.unpack_words
    monkeypatch.setattr(integers, "unpack_words", lambda *args, **kw: (counts.append(args[2]), unpack(*args, **kw))[1])
    decode(item, parts, 100, 164)
    assert sorted(counts) == [64, 96], "inputs; outputs from 96 to 192, the words that hold the piece's"
