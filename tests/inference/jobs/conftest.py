"""A model whose name jobs may give."""

from __future__ import annotations

import pytest

from tests.inference.rows import make_checkpoint


@pytest.fixture
def model(db):
    return make_checkpoint()
