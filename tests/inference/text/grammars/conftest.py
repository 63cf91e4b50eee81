"""A tiny random network with a byte-level tokenizer, and the demo model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from inference.demo.paths import PREBUILT_DIRECTORY
from inference.llm.llm import LLM
from inference.llm.options import LLMOptions
from models_registry.detection.inspection import inspect_checkpoint
from tests.inference.llm.harness import Checkpoint


@pytest.fixture(scope="session")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    checkpoint = Checkpoint(tmp_path_factory.mktemp("llama"))
    options = LLMOptions(max_model_len=256, max_num_seqs=8, max_num_batched_tokens=64, num_threads=1)
    loaded = LLM.load(checkpoint.spec, checkpoint.tokenizer, checkpoint.files, options)
    yield loaded
    loaded.close()


@pytest.fixture(scope="session")
def demo() -> Iterator[LLM]:
    found = inspect_checkpoint(PREBUILT_DIRECTORY)
    options = LLMOptions(max_model_len=512, max_num_seqs=8, num_threads=1)
    loaded = LLM.load(found.spec, found.tokenizer, found.weight_paths, options)
    yield loaded
    loaded.close()
