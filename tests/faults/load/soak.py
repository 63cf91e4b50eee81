"""A long campaign at 70 % load with a fault every 30 s: the ledger, and memory, descriptors and tasks meanwhile."""

from __future__ import annotations

import argparse
import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import median

from tests.faults.campaign import Campaign, Fault, fault_sequence
from tests.faults.load.overload import Meter, closed_loop
from tests.faults.load.site import Holdings, LoadSite
from tests.faults.records import FINISHED_WITHIN_S, Records
from tests.faults.site import wait_until

LOAD = 0.7
FAULT_EVERY_S = 30.0
CAPACITY_JOBS = 800
FILL_S, FILL_ROUNDS = 60.0, 6
FILL_CLIENTS = 100
SAMPLE_S = 5.0
WARM_SHARE = 0.2
"""Share of the time in which caches fill, so that its samples don't count."""
MAX_GROWTH = 0.01
"""Of memory, in an hour."""
MIN_JUDGED_S = 1800.0
"""Shorter soaks show their slopes and don't judge them."""
MAX_STOP_S = 6.0
"""Shorter than the lease of a worker, which ends a worker that is stopped for longer."""
PREFIXES = {"worker": "faults-", "web": "web-", "redis": "redis", "beat": "beat"}
SURVIVORS = ("web-0", "faults-0")
"""They are stopped and never killed, so that their memory can be followed from the start to the end."""
OTHER_WORKER = "faults-1"


def soak_faults(num: int, seed: int) -> list[Fault]:
    """A seed's faults: kills hit the second web process and worker only."""
    faults = []
    for fault in fault_sequence(num, seed):
        stopped_s = min(fault.stopped_s, MAX_STOP_S)
        faults.append(replace(fault, which=fault.which if stopped_s else 1, stopped_s=stopped_s))
    return faults


def fault_steps(site: LoadSite, faults: Sequence[Fault]) -> list[Callable[[], object]]:
    """The faults as steps of a campaign that begins now; each waits for its time."""
    begun = time.monotonic()

    def inflict(number: int, fault: Fault) -> None:
        time.sleep(max(0.0, begun + number * FAULT_EVERY_S - time.monotonic()))
        names = [name for name in site.processes if name.startswith(PREFIXES[fault.target])]
        name = names[fault.which % len(names)]
        site.signal(name, signal.SIGSTOP if fault.stopped_s else signal.SIGKILL)
        time.sleep(fault.stopped_s)
        site.signal(name, signal.SIGCONT)

    return [partial(inflict, number, fault) for number, fault in enumerate(faults, 1)]


class Sampler(threading.Thread):
    """Looks at the survivors every few seconds.

    Attributes:
        samples: (seconds since the start, what a survivor holds), by name.
    """

    def __init__(self, site: LoadSite) -> None:
        super().__init__(daemon=True)
        self._site = site
        self._stopped = threading.Event()
        self.samples: dict[str, list[tuple[float, Holdings]]] = {name: [] for name in SURVIVORS}

    def run(self) -> None:
        begun = time.monotonic()
        while not self._stopped.wait(SAMPLE_S):
            for name, samples in self.samples.items():
                samples.append((time.monotonic() - begun, self._site.holdings_of(name)))

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self.join(30)


def growth_per_hour(samples: list[tuple[float, int]]) -> float:
    """Slope of a least-squares line through the samples after the warm-up, as a share of their median in an hour."""
    warm = [(at, size) for at, size in samples if at >= samples[-1][0] * WARM_SHARE]
    mean_at, mean_size = (sum(column) / len(warm) for column in zip(*warm, strict=True))
    spread = sum((at - mean_at) ** 2 for at, _ in warm)
    slope = sum((at - mean_at) * (size - mean_size) for at, size in warm) / spread
    return slope * 3600 / median(size for _, size in warm)


def _lines(samples: list[tuple[float, Holdings]], name: str) -> Iterator[tuple[str, bool]]:
    growth = growth_per_hour([(at, item.memory_bytes) for at, item in samples])
    first, last = (samples[number][1] for number in (0, -1))
    is_judged = samples[-1][0] >= MIN_JUDGED_S
    text = f"{name}: {first.memory_bytes >> 20} to {last.memory_bytes >> 20} MiB, {growth:+.1%} an hour"
    tenths = [samples[number * (len(samples) - 1) // 10][1].memory_bytes / (1 << 20) for number in range(11)]
    yield f"{name}: MiB at each tenth of the time: {' '.join(f'{size:.1f}' for size in tenths)}", True
    yield text + ("" if is_judged else ", too short to judge"), growth <= MAX_GROWTH or not is_judged
    for what, counts in (
        ("connections", [item.num_connections for _, item in samples]),
        ("other descriptors", [item.num_descriptors for _, item in samples]),
        ("tasks", [len(item.tasks) for _, item in samples]),
    ):
        quarter = len(counts) // 4
        middle, end = median(counts[quarter : 2 * quarter]), median(counts[-quarter:])
        # Clients come and go; what leaks grows with each fault and each request.
        yield f"{name}: {middle:g}, then {end:g} {what}, {max(counts)} at most", end <= 1.5 * middle + 2


def fill_states(site: LoadSite) -> None:
    """Let all states be written once, by prompts that nobody has sent before: they take memory as they are written.

    Half of the time the survivor computes alone, as after a fault. Else the first backlog that falls to it would take
    the last of its memory an hour later, which looks like growth.
    """

    async def fill() -> None:
        async with closed_loop(Meter(site), FILL_CLIENTS):
            for _ in range(FILL_ROUNDS):
                for order in (signal.SIGSTOP, signal.SIGCONT):
                    site.signal(OTHER_WORKER, order)
                    await asyncio.sleep(FILL_S / FILL_ROUNDS / 2)

    asyncio.run(fill())


def jobs_per_second(site: LoadSite) -> float:
    """Jobs that the site completes in a second without a fault, each with its share of lines and streams.

    A job costs more than a stream of as many tokens, because it is rows of the database.
    """
    trial = Campaign(site, jobs=CAPACITY_JOBS, seed=0, label="capacity")
    begun = time.monotonic()
    trial.run()
    wait_until(Records(site, trial).all_ended, FINISHED_WITHIN_S, "the end of all jobs and of the batch")
    taken_s = time.monotonic() - begun
    site.clear()
    return CAPACITY_JOBS / taken_s


def run_soak(site: LoadSite, given: argparse.Namespace) -> Iterator[tuple[str, bool]]:
    """Fill the states, measure the capacity, run the campaign, and compare the ledger and what the survivors hold."""
    seconds = given.minutes * 60
    fill_states(site)
    capacity = jobs_per_second(site)
    before = site.holdings()
    num_jobs = int(LOAD * capacity * seconds)
    num_faults = max(1, int(seconds / FAULT_EVERY_S))
    yield f"{capacity:.1f} jobs a second; {num_jobs} jobs and {num_faults} faults in {given.minutes:g} min", True
    steps = fault_steps(site, soak_faults(num_faults, given.seed))
    soak = Campaign(site, jobs=num_jobs, seed=given.seed, steps=steps)
    sampler = Sampler(site)
    sampler.start()
    begun = time.monotonic()
    soak.run()
    ran_s = time.monotonic() - begun
    sampler.stop()
    records = Records(site, soak)
    records.check()
    sent = f"{len(soak.jobs)} jobs, {soak.num_lines} lines, {len(soak.streams)} streams begun in {ran_s:.0f} s"
    yield f"{sent}, {len(site.deaths)} workers lost, {records.num_set_aside} set aside after three crashes", True
    yield from ((problem, False) for problem in records.problems)
    for name, samples in sampler.samples.items():
        yield from _lines(samples, name)
    yield from ((left, False) for left in site.left_behind(before))
