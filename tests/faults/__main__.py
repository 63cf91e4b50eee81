"""Run fault campaigns: ``python -m tests.faults --jobs 1000 --kills 200 --seeds 10``, or one with ``--seed``.

``--rows F09,F10 --times 20`` repeats the tests of rows in place of campaigns, with the same processes.

Each seed has processes, a database and a Redis of its own. A campaign whose ledger isn't exact keeps its directory
with the logs. The order of the faults and the requests are the seed's; the moments depend on the machine.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.faults.campaign import Campaign
from tests.faults.campaigns import FAULTS, JOBS, add_argument, record
from tests.faults.disturbed import OUTAGE_S, SHORT_OUTAGE_S
from tests.faults.records import Records
from tests.faults.rows import ROOT, node_ids
from tests.faults.site import Site

OUTAGES = ("F13",)
"""Rows whose outage has a length that can be chosen."""


def run_campaign(jobs: int, kills: int, seed: int, record_path: Path | None = None) -> list[str]:
    """Run one campaign in a new directory, and print and record its figures; return what is wrong."""
    sys.stdout.write(f"seed {seed}: {jobs} jobs, {kills} faults\n")
    sys.stdout.flush()
    directory = Path(tempfile.mkdtemp(prefix="blazr-campaign-"))
    site = Site(directory)
    started = time.monotonic()
    try:
        site.start(num_webs=2, num_workers=2)
        campaign = Campaign(site, jobs=jobs, kills=kills, seed=seed)
        campaign.run()
        records = Records(site, campaign)
        records.check()
    finally:
        site.stop()
    figures = {
        "jobs": len(campaign.jobs),
        "faults": kills,
        "lines": campaign.num_lines,
        "streams": len(campaign.streams),
        "workers_lost": len(site.deaths),
        "sent_again": sum(campaign.retried.values()),
        "set_aside": records.num_set_aside,
        "expired": records.num_expired,
    }
    record(
        record_path, "kills", seed=seed, size=min(jobs // JOBS, kills // FAULTS), failures=len(records.problems),
        seconds=time.monotonic() - started, figures=figures,
    )  # fmt: skip
    sys.stdout.write(
        f"  {len(campaign.jobs)} jobs accepted, {campaign.num_lines} lines, {len(campaign.streams)} streams begun, "
        f"{len(site.deaths)} workers lost, {sum(campaign.retried.values())} requests sent again, "
        f"{records.num_set_aside} set aside after three crashes, {records.num_expired} released at their deadline, "
        f"{len(records.problems)} problems, "
        f"{time.monotonic() - started:.0f} s\n"
    )
    for problem in records.problems:
        sys.stdout.write(f"  {problem}\n")
    if records.problems:
        sys.stdout.write(
            f"  logs: {directory}; again: python -m tests.faults --jobs {jobs} --kills {kills} --seed {seed}\n"
        )
    else:
        shutil.rmtree(directory)
    sys.stdout.flush()
    return records.problems


class Repeated:
    """Plugin of pytest that runs each test several times and counts.

    Attributes:
        num_passed: Runs of tests that held.
        num_failed: Those that didn't.
    """

    def __init__(self, times: int, outage_s: float) -> None:
        self._times = times
        self._outage_s = outage_s
        self.num_passed = 0
        self.num_failed = 0

    def pytest_configure(self, config: pytest.Config) -> None:
        """Tell the tests how long an outage lasts."""
        config.stash[OUTAGE_S] = self._outage_s

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make a test of each repetition."""
        metafunc.fixturenames.append("repetition")
        metafunc.parametrize("repetition", range(1, self._times + 1))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test, or a fixture that failed."""
        self.num_passed += report.when == "call" and report.passed
        self.num_failed += report.failed


def repeat(row: str, times: int, outage_s: float, seed: int, record_path: Path | None) -> int:
    """Repeat the tests of a row until one fails, and record how many runs held; return pytest's exit code."""
    begun = time.monotonic()
    counts = Repeated(times, outage_s)
    tests = [str(ROOT / test) for test in node_ids([row])]
    code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "--rootdir", str(ROOT), *tests], plugins=[counts])
    record(
        record_path, f"row {row}", seed=seed, size=counts.num_passed, failures=counts.num_failed,
        seconds=time.monotonic() - begun, figures={"outage_s": outage_s} if row in OUTAGES else {},
    )  # fmt: skip
    return code


def main() -> int:
    """Return 0 if every ledger is exact."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=200, help="faults: kill -9, or SIGSTOP for some seconds")
    parser.add_argument("--seeds", type=int, default=10, help="campaigns with the seeds 1, 2, …")
    parser.add_argument("--seed", type=int, help="only the campaign with this seed")
    parser.add_argument("--rows", help="run the tests of these rows in place of campaigns, such as F09,F10")
    parser.add_argument("--times", type=int, default=1, help="how often; until a test fails")
    parser.add_argument(
        "--outage", type=float, default=SHORT_OUTAGE_S, metavar="SECONDS", help=f"in {' and '.join(OUTAGES)}"
    )
    add_argument(parser)
    given = parser.parse_args()
    if given.rows:
        rows = given.rows.split(",")
        return max(repeat(row, given.times, given.outage, given.seed or 1, given.record) for row in rows)
    seeds = range(1, given.seeds + 1) if given.seed is None else [given.seed]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the processes end too
    bad = [seed for seed in seeds if run_campaign(given.jobs, given.kills, seed, given.record)]
    sys.stdout.write(f"{len(seeds)} campaigns, {len(bad)} with problems{f': seeds {bad}' if bad else ''}\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
