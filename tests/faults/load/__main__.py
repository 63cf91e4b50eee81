"""Run one of the load scenarios in its whole form: ``python -m tests.faults.load SCENARIO``, with processes of its own.

The limits are those of docs/faults.md for a machine without other work; the command fails when one doesn't hold.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.faults.campaigns import add_argument, record
from tests.faults.load import disconnects, limits, overload, prefixes, queued, readers, soak, streams, uploads, waits
from tests.faults.load.disconnects import quantile
from tests.faults.load.site import LoadSite

MIB = 1 << 20
MS = 1000
Lines = Iterator[tuple[str, bool]]
"""Sentences with a figure, and whether it is good enough."""


def run_disconnects(site: LoadSite, given: argparse.Namespace) -> Lines:
    """F37."""
    found = asyncio.run(disconnects.Leavers(site).run(given.num or 1000))
    shares = ", ".join(f"{quantile(found.freed_s, share) * MS:.0f} ms" for share in (0.5, 0.99, 1))
    yield f"{len(found.freed_s)} slots freed after {shares} (median, p99, most); {dict(found.stages)}", True
    yield "p99 within 250 ms", quantile(found.freed_s, 0.99) <= disconnects.FREED_WITHIN_S
    yield f"{found.num_unadmitted} left before; a queue of waiting ones was empty after {found.dequeued_s:.3f} s", True
    yield from _problems(found.problems)


def run_readers(site: LoadSite, given: argparse.Namespace) -> Lines:
    """F38."""
    num = given.num or 24
    found = asyncio.run(readers.Neighbours(site, num_slow=num, num_tokens=900, num_neighbour_tokens=800).run())
    p95 = found.beside_p95_s / found.alone_p95_s
    yield (
        f"{num} slow readers: {found.memory_bytes / MIB:.2f} MiB of the web process each",
        found.memory_bytes < 2 * MIB,
    )
    yield f"p95 between others' tokens {found.alone_p95_s * MS:.1f} to {found.beside_p95_s * MS:.1f} ms", p95 <= 1.1
    yield f"the last connection ended after {found.ended_s:.0f} s", True
    yield from _problems(found.problems)


def run_streams(site: LoadSite, given: argparse.Namespace) -> Lines:
    """F40."""
    num = given.num or 1000
    found = asyncio.run(streams.run_streams(site, num, 64))
    yield f"{found.num_complete} of {num} streams whole, in {found.seconds:.0f} s", found.num_complete == num
    delay = found.p99_delay_s
    yield f"p99 from a worker's write to the client {delay * MS:.0f} ms ({len(found.delays_s)} deltas)", delay <= 0.5
    yield f"{found.memory_bytes / MIB:.0f} MiB of a web process", found.memory_bytes <= 600 * MIB
    yield from _problems(found.problems)


def run_jobs(site: LoadSite, given: argparse.Namespace) -> Lines:
    """F41."""
    num = given.num or 100_000
    found = queued.run_queued(site, num, num_run=100)
    yield f"{num} jobs accepted in {found.submit_s:.0f} s", found.submit_s <= 120
    yield f"web process {found.memory_bytes / MIB:+.0f} MiB", found.memory_bytes <= 64 * MIB
    claims = f"{quantile(found.claims_s, 0.5) * MS:.1f} and {found.p99_claim_s * MS:.1f} ms (median, p99)"
    yield f"a claim of {queued.CLAIMED} of {found.num_queued} jobs: {claims}", found.p99_claim_s <= 0.025
    yield f"a page of the list: {max(found.lists_s) * MS:.0f} ms at most", max(found.lists_s) <= 0.5
    yield f"first token of a request: {max(found.interactive_s) * MS:.0f} ms at most", max(found.interactive_s) <= 1
    yield f"Redis {found.redis_bytes / MIB:.1f} MiB", found.redis_bytes <= 64 * MIB


def run_overload(site: LoadSite, given: argparse.Namespace) -> Lines:
    """F42."""
    found = asyncio.run(overload.run_overload(site, given.seconds or 60))
    share = found.goodput / found.capacity
    yield f"{found.goodput:.0f} tokens a second of {found.capacity:.0f} ({share:.0%})", share >= 0.9
    late = quantile(found.refused_s, 0.99)
    yield f"refusals after {quantile(found.refused_s, 0.5) * MS:.0f} ms, p99 {late * MS:.0f} ms", late <= 0.05
    yield f"statuses {dict(found.statuses)}", True
    for when, rate, use in (("before", found.capacity, found.capacity_use), ("overloaded", found.goodput, found.use)):
        shown = ", ".join(f"{name} {number:.2f}" for name, number in use.items())
        per_s = rate / sum(use[name] for name in site.workers)
        yield f"processors busy {when}: {shown}; {per_s:.0f} tokens for each second of the worker's", True
    yield f"as fast as before after {found.recovered_s:.1f} s", found.recovered_s <= 10
    yield from _problems(found.problems)


def run_tenants(site: LoadSite, given: argparse.Namespace) -> Lines:
    """F43."""
    waits = asyncio.run(overload.run_tenants(site, int(given.seconds or 60)))
    p95 = quantile(waits, 0.95)
    yield f"first tokens after {quantile(waits, 0.5):.2f} and {p95:.2f} s (median, p95 of {len(waits)})", p95 <= 2


def run_limits(site: LoadSite, given: argparse.Namespace) -> Lines:
    """F44."""
    num = given.num or 1000
    rounds = asyncio.run(limits.run_concurrent(site, num))
    exact = sum(statuses == {200: limits.LIMIT, 429: limits.NUM_AT_ONCE - limits.LIMIT} for statuses in rounds)
    yield f"{exact} of {num} rounds admitted exactly {limits.LIMIT} of {limits.NUM_AT_ONCE}", exact == num


def run_quotas(site: LoadSite, given: argparse.Namespace) -> Lines:
    """F45."""
    found = asyncio.run(limits.run_quota(site, given.num or 200, num_crashes=5))
    sent = f"{len(found.streams)} requests, {found.num_cancelled} left early, {len(site.deaths)} crashes"
    yield f"{sent}: {found.recorded} tokens recorded, {found.spent:.1f} spent", abs(found.spent - found.recorded) < 0.5
    yield from _problems(found.problems)


def run_prefixes(site: LoadSite, given: argparse.Namespace) -> Lines:
    """F66."""
    num = given.num or 200
    found = asyncio.run(prefixes.run_prefixes(site, num, given.seed))
    medians = ", ".join(f"{quantile(times, 0.5) * MS:.1f} ms" for times in (found.known, found.fresh, found.own))
    yield f"first tokens after {medians} (medians of another key's prompts, new ones, own ones; {num} each)", True
    yield f"a cached prompt saves {found.saved():.0%} of the time", found.saved() >= 0.2
    p = found.same()
    yield f"another key's prompts and new ones: p = {p:.3f} that they are of one distribution", p >= prefixes.P_VALUE


def run_waits(site: LoadSite, given: argparse.Namespace) -> Lines:
    """Estimates of the wait in the queue."""
    num = given.num or 200
    found = asyncio.run(waits.run_waits(site, num, given.seed))
    share = waits.right_share(found.first) * len(found.first) / max(1, len(found.first) + found.num_unknown)
    seconds = sorted(wait for _, wait in found.first)
    yield (
        f"{len(found.first) + found.num_unknown} requests waited {seconds[0]:.2f} to {seconds[-1]:.2f} s, median "
        f"{quantile(seconds, 0.5):.2f} s; {found.num_unknown} without an estimate, {found.num_at_once} began at once",
        True,
    )
    yield f"{share:.0%} of the first estimates are within a factor of {waits.FACTOR:g}", share >= 0.8
    yield f"{waits.right_share(found.every):.0%} of all {len(found.every)} estimates are", True
    yield from _problems(found.problems)


def run_uploads(site: LoadSite, given: argparse.Namespace) -> Lines:
    """A push of gigabytes."""
    found = uploads.run_uploads(site, round((given.gigabytes or 5) * 1e9))
    rate = found.size_bytes / found.seconds / 1e6
    yield f"{found.size_bytes / 1e9:.2f} GB in {found.seconds:.0f} s ({rate:.0f} MB/s), killed: {found.kills}", True
    yield f"the second client went on at {found.resumed_bytes / 1e9:.2f} GB", found.resumed_bytes > 0
    yield f"web process {found.memory_bytes / MIB:+.0f} MiB", found.memory_bytes <= 64 * MIB
    yield from _problems(found.problems)


def _problems(problems: list[str]) -> Lines:
    yield from ((problem, False) for problem in problems[:20])


SCENARIOS: dict[str, tuple[Callable[[LoadSite, argparse.Namespace], Lines], dict[str, object], int]] = {
    "disconnects": (run_disconnects, {}, 1),
    "readers": (run_readers, {"FAULTS_STALL_S": 10}, 1),  # so that they end while the end is waited for
    "streams": (run_streams, {"BLAZR_MAX_IN_FLIGHT": 1600}, 2),
    "jobs": (run_jobs, {}, 1),
    "overload": (run_overload, {}, 1),
    "tenants": (run_tenants, {}, 1),
    "limits": (run_limits, {}, 1),
    "quotas": (run_quotas, {}, 1),
    "prefixes": (run_prefixes, {}, 1),
    "waits": (run_waits, {"BLAZR_MAX_NUM_SEQS": waits.NUM_SEQS}, 1),
    "uploads": (run_uploads, {}, 1),
    "soak": (soak.run_soak, {}, 2),
}
"""Each scenario with its settings and its number of workers."""


def main(arguments: list[str]) -> int:
    """Return 0 if every figure is good enough."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.load", description=__doc__)
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--num", type=int, help="disconnects, readers, streams, jobs, rounds, requests or pairs")
    parser.add_argument("--seconds", type=float, help="of an overload or a flood; 60")
    parser.add_argument("--minutes", type=float, default=60, help="of a soak")
    parser.add_argument("--gigabytes", type=float, help="of an upload; 5")
    parser.add_argument("--seed", type=int, default=1, help="of a soak's faults, or of prompts")
    add_argument(parser)
    given = parser.parse_args(arguments)
    is_whole = given.num is given.seconds is given.gigabytes is None and given.minutes >= 60
    scenario, variables, num_workers = SCENARIOS[given.scenario]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the processes end too
    directory = Path(tempfile.mkdtemp(prefix="blazr-load-"))
    site = LoadSite(directory, **variables)
    begun = time.monotonic()
    bad, lines = 0, []
    try:
        site.start(num_webs=2, num_workers=num_workers)
        for line, is_good in scenario(site, given):
            bad += not is_good
            lines.append(line)
            sys.stdout.write(f"{'' if is_good else 'FAILED '}{line}\n")
            sys.stdout.flush()
    finally:
        site.stop()
    if bad:
        sys.stdout.write(f"logs: {directory}\n")
    else:
        shutil.rmtree(directory)
    record(
        given.record, f"load {given.scenario}", seed=given.seed, size=int(is_whole), failures=bad,
        seconds=time.monotonic() - begun, figures={"lines": lines},
    )  # fmt: skip
    sys.stdout.write(f"{given.scenario}: {bad} of the figures are bad, {time.monotonic() - begun:.0f} s\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
