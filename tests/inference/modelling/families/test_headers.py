"""Shapes that sizes are read from: a tensor of other axes is refused by name."""

from __future__ import annotations

import pytest

from inference.errors import MissingTensor, TensorShapeMismatch
from inference.modelling.families.config import MAX_SIZE
from inference.modelling.families.headers import matrix_shape, sample_of, stack_shape, vector_length
from tests.inference.modelling.families.headers import view_of

READERS = {"vector_length": (vector_length, 1), "matrix_shape": (matrix_shape, 2), "stack_shape": (stack_shape, 3)}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("shape", [(), (3,), (3, 4), (3, 4, 5), (0,), (3, 0), (3, 4, 0), (MAX_SIZE + 1,) * 3])
def test_only_the_right_number_of_axes_is_read(reader: str, shape: tuple[int, ...]) -> None:
    read, axes = READERS[reader]
    tensors = view_of({"x.weight": shape}).tensors
    if len(shape) == axes and min(shape) > 0 and max(shape) <= MAX_SIZE:
        assert read(tensors, "x.weight") == (shape if axes > 1 else shape[0])
        return
    with pytest.raises(TensorShapeMismatch, match=r"^x\.weight has shape \["):
        read(tensors, "x.weight")
    with pytest.raises(MissingTensor):
        read(tensors, "y.weight")


def test_names_that_no_output_can_encode_are_escaped() -> None:
    assert sample_of(["a\ud800b"]).encode() == b"a\\ud800b"
