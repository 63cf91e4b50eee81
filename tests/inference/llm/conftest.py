"""A tiny checkpoint on disk, and the LLM that is loaded from it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from inference.llm.llm import LLM
from tests.inference.llm.harness import OPTIONS, Checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def llm(checkpoint: Checkpoint) -> Iterator[LLM]:
    loaded = LLM.load(checkpoint.spec, checkpoint.tokenizer, checkpoint.files, OPTIONS)
    yield loaded
    loaded.close()
