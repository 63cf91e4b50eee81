"""Run a campaign with the steps of one row, and compare the ledger."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import pytest

from tests.faults.campaign import Campaign
from tests.faults.ledger import Ledger
from tests.faults.records import Records
from tests.faults.site import Site

SEED = 1
SHORT_OUTAGE_S = 2.5
OUTAGE_S = pytest.StashKey[float]()
"""Of pytest's configuration: how long a server is away, where a command has chosen it."""
CONSUMES_WITHIN_S = 10.0
"""From the return of a server until every worker takes requests again."""


def run_steps(
    site: Site, jobs: int, *steps: Callable[[], object], accepted: Mapping[int, str] | None = None
) -> Campaign:
    """Inject the steps while jobs, a batch and streams run; the ledger has to be exact, and no worker may end.

    Args:
        site: The processes.
        jobs: Number of jobs that the campaign submits.
        steps: What happens meanwhile.
        accepted: Ids of further jobs that the steps have submitted, by number (``campaign.variant``).
    """
    site.clear()
    campaign = Campaign(site, jobs=jobs, seed=SEED, steps=steps, label=steps[0].__qualname__)
    print(f"seed {SEED}: {jobs} jobs, {len(steps)} steps")  # noqa: T201 - shown when the test fails
    campaign.run()
    campaign.jobs |= accepted or {}
    records = Records(site, campaign)
    records.check()
    assert not records.problems, records.problems
    assert records.num_set_aside == 0
    assert site.deaths == []
    return campaign


def await_consumers(site: Site) -> None:
    """Wait until every worker takes requests from the queues, and until those have ended."""
    begun = time.monotonic()
    ledger = Ledger(site)
    consuming: set[str] = set()
    while consuming != set(site.workers):
        assert time.monotonic() < begun + CONSUMES_WITHIN_S, f"only {consuming} takes requests: {ledger.entries}"
        if sum(not entry.ends for entry in ledger.entries) < 8:
            ledger.send([40, 50], 120)
        time.sleep(0.02)
        consuming |= {worker_id for worker_id in site.workers if site.held_by(worker_id)}
    ledger.wait(30)
