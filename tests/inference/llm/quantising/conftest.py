"""A small checkpoint of each family."""

from __future__ import annotations

import pytest

from models_registry.detection.inspection import Inspection
from tests.inference.llm.quantising.checkpoints import inspect
from tests.inference.modelling.huggingface import make_checkpoint
from tests.inference.modelling.test_quantisation import CONFIGS


@pytest.fixture(scope="module", params=CONFIGS)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Inspection:
    directory, _ = make_checkpoint(CONFIGS[request.param](), tmp_path_factory.mktemp(request.param))
    return inspect(directory)
