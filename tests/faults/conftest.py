"""One set of processes for all tests of faults: their start takes longer than most of what happens to them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.disturbed import OUTAGE_S, SHORT_OUTAGE_S
from tests.faults.ledger import Entry, Ledger, Reference
from tests.faults.postgres import PostgresServer, reason_without
from tests.faults.site import Site, wait_until


@pytest.fixture(scope="package")
def running_site(django_db_setup, tmp_path_factory) -> Iterator[Site]:
    """Redis, two web processes, two workers and beat."""
    made = Site(tmp_path_factory.mktemp("faults"))
    try:
        made.start(num_webs=2, num_workers=2)
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="package")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL with few connections."""
    if reason := reason_without():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="blazr-pg-") as name:
        server = PostgresServer(Path(name), options=("max_connections=20", "superuser_reserved_connections=0"))
        yield server
        server.stop()


@pytest.fixture(scope="package")
def running_database_site(tmp_path_factory, postgres) -> Iterator[Site]:
    """The same processes over PostgreSQL, with Redis behind a proxy, and clocks that a test sets where it can."""
    made = Site(tmp_path_factory.mktemp("database"), database_url=postgres.url, is_proxied=True)
    try:
        made.start(num_webs=2, num_workers=2)
        yield made
    finally:
        made.stop()


@pytest.fixture
def outage_s(pytestconfig) -> float:
    """How long a server is away, in seconds; ``python -m tests.faults --rows F13 --outage 60`` chooses it."""
    return pytestconfig.stash.get(OUTAGE_S, SHORT_OUTAGE_S)


@pytest.fixture
def database_site(running_database_site) -> Site:
    """The processes over PostgreSQL, with the model loaded by both workers and without earlier tests' rows."""
    wait_until(lambda: len(running_database_site.ready_workers()) == 2, 120, "the load of the model by both workers")
    running_database_site.deaths.clear()
    running_database_site.clear()
    return running_database_site


@pytest.fixture
def site(running_site) -> Site:
    """The processes, with the model loaded by both workers and without the rows that earlier tests have stored."""
    wait_until(lambda: len(running_site.ready_workers()) == 2, 120, "the load of the model by both workers")
    running_site.deaths.clear()
    running_site.clear()
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
        ledger.wait(110)
        for entry in ledger.entries:
            assert entry.ends == ["done"], entry
            assert len(entry.tokens) == entry.max_tokens
            known[entry.key] = entry.tokens
        return [known[entry.key] for entry in entries]

    return run
