"""What every test of the package has: no answers remembered from other tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def fresh_caches() -> Iterator[None]:
    from inference.access.api_keys import key_cache_clear
    from inference.serving.served_models import served_model_cache_clear

    served_model_cache_clear()
    key_cache_clear()
    yield


@pytest.fixture(scope="module")
def two_threads() -> Iterator[None]:
    """For tests of what compute threads do together, also where each process has one (``tests/two_processes.py``)."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(max(before, 2))
    yield
    torch.set_num_threads(before)
