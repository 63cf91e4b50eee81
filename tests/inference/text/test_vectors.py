"""Pooled vectors: cut, then normalised."""

from __future__ import annotations

import numpy as np
import pytest

from inference.errors import InvalidRequest
from inference.text.vectors import shaped

VECTORS = np.array([[3.0, 4.0, 0.0], [0.0, 0.0, 0.0]], dtype=np.float32)


def options(**values):
    return {"pooling": None, "dimensions": None, "normalize": True, "encoding_format": "float"} | values


def test_vectors_are_cut_and_then_normalised():
    np.testing.assert_allclose(shaped(VECTORS, options()), [[0.6, 0.8, 0.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(shaped(VECTORS, options(dimensions=1)), [[1.0], [0.0]])
    np.testing.assert_allclose(shaped(VECTORS, options(normalize=False, dimensions=2)), VECTORS[:, :2])
    for wrong in (4, 0, -1):
        with pytest.raises(InvalidRequest, match="this model has 3") as caught:
            shaped(VECTORS, options(dimensions=wrong))
        assert caught.value.param == "dimensions"
