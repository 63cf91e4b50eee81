"""A small checkpoint of each format."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models_registry.detection.builders import LLAMA_CONFIG, llama_shapes, small_hybrid, write_checkpoint


@pytest.fixture
def hybrid(tmp_path: Path) -> Path:
    shapes, config = small_hybrid()
    return write_checkpoint(tmp_path / "hybrid", shapes, config)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "llama", llama_shapes(), LLAMA_CONFIG)
