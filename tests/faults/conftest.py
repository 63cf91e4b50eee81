"""One set of processes for all tests of faults: their start takes longer than most of what happens to them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.site import Site, wait_until


@pytest.fixture(scope="package")
def running_site(tmp_path_factory) -> Iterator[Site]:
    """Redis, two web processes, two workers and beat."""
    made = Site(tmp_path_factory.mktemp("faults"))
    try:
        made.start(num_webs=2, num_workers=2)
        yield made
    finally:
        made.stop()


@pytest.fixture
def site(running_site) -> Site:
    """The processes, with the model loaded by both workers."""
    wait_until(lambda: len(running_site.ready_workers()) == 2, 60, "the load of the model by both workers")
    running_site.deaths.clear()
    return running_site
