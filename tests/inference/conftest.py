"""What every test of the package has: no answers remembered from other tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def fresh_caches() -> Iterator[None]:
    from inference.auth import key_cache_clear
    from inference.selectors import served_model_cache_clear

    served_model_cache_clear()
    key_cache_clear()
    yield
