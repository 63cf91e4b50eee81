"""Code books: those of the ``gguf`` package, point by point."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from inference.modelling.weights.code_books import code_book


@pytest.mark.parametrize("name", ["IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"])
def test_points_are_the_packages(name):
    theirs = quants._type_traits[GGMLQuantizationType[name]]
    theirs.init_grid()
    assert np.array_equal(code_book(name).numpy(), theirs.grid.reshape(theirs.grid_shape))
