"""One set of processes for all tests of faults: their start takes longer than most of what happens to them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.ledger import Entry, Ledger, Reference
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


@pytest.fixture(scope="package")
def reference(running_site) -> Reference:
    """The tokens of an undisturbed run of the same requests."""
    known: dict[tuple[tuple[int, ...], int, int | None], list[int]] = {}

    def run(entries: list[Entry]) -> list[list[int]]:
        ledger = Ledger(running_site)
        for entry in entries:
            if entry.key not in known:
                ledger.send(entry.prompt, entry.max_tokens, entry.seed)
        ledger.wait(60)
        for entry in ledger.entries:
            assert entry.ends == ["done"], entry
            assert len(entry.tokens) == entry.max_tokens
            known[entry.key] = entry.tokens
        return [known[entry.key] for entry in entries]

    return run
