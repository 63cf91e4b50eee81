"""A tiny checkpoint on disk."""

from __future__ import annotations

import pytest

from tests.inference.llm.test_llm import Checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint(tmp_path_factory.mktemp("llama"))
