"""The kernels' tests need the library; where it can't be compiled they are skipped with the compiler's own words."""

import pytest
import torch

from inference.modelling.backends.native import library
from inference.modelling.backends.native.build import BuildFailed, build


@pytest.fixture(scope="session", autouse=True)
def kernels() -> None:
    try:
        build()
    except BuildFailed as error:
        pytest.skip(f"no native kernels: {error}")
    library.is_available.cache_clear()
    assert library.is_available()


@pytest.fixture(scope="module", autouse=True)
def threads(two_threads: None) -> None:
    """The kernels divide their work between threads."""


@pytest.fixture
def tiles(kernels: None) -> None:
    """For tests of matrix tiles alone."""
    if not torch.ops.blazr.use_amx():
        pytest.skip("this processor has no matrix tiles (AMX), or the system doesn't let the process use them")
