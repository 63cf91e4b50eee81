"""Many clients at once: disconnects, slow readers, long queues, floods and limits; each in a short form.

``python -m tests.faults.load`` has the whole forms, with the figures that need a machine without other work.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import TypeVar

import httpx
import pytest

from tests.faults.load.disconnects import FREED_WITHIN_S, Leavers
from tests.faults.load.limits import LIMIT, NUM_AT_ONCE, run_concurrent, run_minute, run_quota
from tests.faults.load.overload import run_overload, run_tenants
from tests.faults.load.prefixes import P_VALUE, probability_of_one_distribution, run_prefixes
from tests.faults.load.queued import run_queued
from tests.faults.load.readers import Neighbours
from tests.faults.load.site import LoadSite
from tests.faults.load.streams import run_streams
from tests.faults.site import wait_until

pytestmark = pytest.mark.live

MIB = 1 << 20
STALL_S = 3
SLOW_S = 8
"""Seconds for the headers of a request, and for a body that hardly comes; 20 usually."""
NUM_SLOW = 500
NUM_TRIES = 3
Found = TypeVar("Found")


def measured(measure: Callable[[], Found], is_quick: Callable[[Found], bool]) -> Found:
    """Measure until it is quick enough; other programs may take the processors in one of the measurements."""
    for number in range(NUM_TRIES):
        found = measure()
        if is_quick(found) or number == NUM_TRIES - 1:
            break
    return found


@pytest.fixture(scope="module")
def running_site(django_db_setup, tmp_path_factory) -> Iterator[LoadSite]:
    """Two web processes and a worker whose engine computes 16 requests together."""
    made = LoadSite(
        tmp_path_factory.mktemp("load"),
        BLAZR_MAX_NUM_SEQS=16,
        BLAZR_MAX_IN_FLIGHT=280,
        FAULTS_STALL_S=STALL_S,
        FAULTS_SLOW_S=SLOW_S,
    )
    try:
        made.start(num_webs=2, num_workers=1)
        yield made
    finally:
        made.stop()


@pytest.fixture
def site(running_site) -> LoadSite:
    wait_until(running_site.models, 120, "the load of the model")
    return running_site


@pytest.mark.fault(
    "F37",
    provoked="clients leave (FIN, RST) within their body, at once, while they wait, in prefill, in decode and between "
    "deltas, over HTTP with and without a stream and over WebSockets: 60 and those of a full engine; 1,000 by command",
    holds="slot and blocks are free after 250 ms (the median; by command 99 of 100); nothing is left: requests, "
    "leases, slots, blocks, connections, descriptors, tasks",
)
def test_f37_disconnects_free_everything(site):
    found = measured(
        lambda: asyncio.run(Leavers(site).run(60)),
        lambda found: (
            median(found.freed_s or [0.0]) <= FREED_WITHIN_S
            and max([found.dequeued_s, *found.freed_s]) <= 10 * FREED_WITHIN_S
        ),
    )
    assert found.problems == []
    assert len(found.freed_s) >= 30
    assert median(found.freed_s) <= FREED_WITHIN_S
    assert max(found.freed_s) <= 10 * FREED_WITHIN_S
    assert found.dequeued_s <= 10 * FREED_WITHIN_S
    assert found.stages["decode"] > 0


@pytest.mark.fault(
    "F38",
    provoked="clients of streams, whole responses and WebSockets that read nothing, or a byte each second",
    holds="their connections end after 30 s without progress (3 s in the test); each takes less than 2 MiB of the web "
    "process; the pace of other streams stays (the median within a factor of two; by command within 10 %)",
)
def test_f38_slow_readers_are_ended_and_harm_nobody(site):
    found = measured(
        lambda: asyncio.run(Neighbours(site, num_slow=9, num_tokens=400, num_neighbour_tokens=150).run()),
        lambda found: found.beside_s <= 2 * found.alone_s,
    )
    assert found.problems == []
    assert found.memory_bytes <= 2 * MIB
    assert found.beside_s <= 2 * found.alone_s


@pytest.mark.fault(
    "F39",
    provoked="500 connections that send headers or bodies at a byte a second",
    holds="requests of others take at most twice as long, and 50 ms, at the 95th percentile; each slow connection is "
    "closed within 30 s (18 s in the test), those in a body with 408",
)
def test_f39_slow_clients_delay_nobody_and_are_cut(site):
    url = site.urls[1]
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    usual_s = max(percentile_95_s(url) for _ in range(3))
    begun = {
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-A: ": b"",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 10000\r\n\r\n": b"HTTP/1.1 408 ",
    }
    with selectors.DefaultSelector() as open_ones, contextlib.ExitStack() as opened:
        for start, expected in itertools.islice(itertools.cycle(begun.items()), NUM_SLOW):
            connection = opened.enter_context(socket.create_connection(address, timeout=10))
            connection.sendall(start)
            open_ones.register(connection, selectors.EVENT_READ, expected)
        started = time.monotonic()
        slow_s = min(percentile_95_s(url) for _ in range(3))  # other programs of this machine delay some of them
        assert slow_s < 2 * usual_s + 0.05, (slow_s, usual_s)
        while open_ones.get_map():
            assert time.monotonic() - started < SLOW_S + 10, f"{len(open_ones.get_map())} connections are still open"
            for key, _ in open_ones.select(1):
                try:
                    told = key.fileobj.recv(1 << 12)
                except ConnectionResetError:  # it sent a byte after the end
                    told = b""
                assert told.startswith(key.data), told
                open_ones.unregister(key.fileobj)
            for key in open_ones.get_map().values():
                with contextlib.suppress(OSError):  # closed just now
                    key.fileobj.sendall(b" ")


def percentile_95_s(url: str) -> float:
    """Seconds that 19 of 20 short requests take at most."""
    took_s = []
    with httpx.Client(base_url=url, timeout=30) as client:
        for _ in range(40):
            started = time.monotonic()
            assert client.get("/v1/models").status_code == 200
            took_s.append(time.monotonic() - started)
    return sorted(took_s)[37]


@pytest.mark.fault(
    "F40",
    provoked="200 streams at once, of completions and of responses; 1,000 by command",
    holds="all are whole, in order, with the tokens of an undisturbed run; a web process takes less than 600 MiB; "
    "nothing is left",
)
def test_f40_many_streams_have_no_gap(site):
    found = measured(
        lambda: asyncio.run(run_streams(site, 200, 24)), lambda found: median(found.delays_s or [0.0]) <= 0.5
    )
    assert found.problems == []
    assert found.num_complete == 200
    assert found.memory_bytes <= 600 * MIB
    assert found.delays_s
    assert median(found.delays_s) <= 0.5


@pytest.mark.fault(
    "F41",
    provoked="1,500 queued jobs of one tenant; 100,000 by command",
    holds="a claim of 16 jobs takes a fraction of a second (by command 25 ms), a page of the list as well; an "
    "interactive request starts within a second; web and Redis grow by less than 64 MiB",
)
def test_f41_a_long_queue_delays_nobody(site):
    found = measured(
        lambda: run_queued(site, 1500, num_run=10),
        lambda found: (
            median(found.claims_s) <= 0.25 and median(found.lists_s) <= 1.0 and median(found.interactive_s) <= 1.0
        ),
    )
    assert found.num_queued > 1000
    assert median(found.claims_s) <= 0.25
    assert median(found.lists_s) <= 1.0
    assert median(found.interactive_s) <= 1.0
    assert found.memory_bytes <= 64 * MIB
    assert found.redis_bytes <= 64 * MIB


@pytest.mark.fault(
    "F42",
    provoked="ten times as many requests as the server can compute; for a minute by command",
    holds="refusals are 429 with a time to retry, within 100 ms (by command 50 ms); clients get tokens at 30 % of the "
    "capacity beside a client on the same two cores (by command 90 %); all is released",
)
def test_f42_an_overload_is_refused_and_does_not_stop_the_work(site):
    found = measured(
        lambda: asyncio.run(run_overload(site, 3)),
        lambda found: median(found.refused_s or [0.0]) <= 0.1 and found.goodput >= 0.3 * found.capacity,
    )
    assert found.problems == []
    assert set(found.statuses) <= {0, 200, 429}
    assert found.statuses[429] > 20
    assert median(found.refused_s) <= 0.1
    assert found.goodput >= 0.3 * found.capacity


@pytest.mark.fault(
    "F43",
    provoked="100 clients of one tenant send without a pause, another tenant sends a request each second",
    holds="the other tenant's first tokens come within 2 s (the median of six; by command 95 of 100)",
)
def test_f43_a_flood_delays_other_tenants_little(site):
    waits = measured(
        lambda: asyncio.run(run_tenants(site, 6)), lambda waits: median(waits) <= 2.0 and max(waits) <= 8.0
    )
    assert len(waits) == 6
    assert median(waits) <= 2.0
    assert max(waits) <= 8.0


@pytest.mark.fault(
    "F44",
    provoked="50 requests at once to two web processes with a limit of 10, open or a minute: 20 rounds and 3; 1,000 by "
    "command",
    holds="exactly 10 are admitted in each round, the others get 429",
)
def test_f44_a_limit_is_exact_under_simultaneous_requests(site):
    exact = {200: LIMIT, 429: NUM_AT_ONCE - LIMIT}
    assert asyncio.run(run_concurrent(site, 20)) == [exact] * 20
    for statuses, num_refilled in asyncio.run(run_minute(site, 3)):
        assert LIMIT <= statuses[200] <= LIMIT + num_refilled
        assert statuses[200] + statuses[429] == NUM_AT_ONCE


@pytest.mark.fault(
    "F45",
    provoked="streams of one and of three choices with a quota of tokens; half of the clients leave; the worker is "
    "killed under three streams",
    holds="a whole stream is charged its tokens, one that was left at least those that its client has; the quota's "
    "bucket lacks the sum of the usage records, to the token",
)
def test_f45_a_quota_is_charged_to_the_token(site):
    found = asyncio.run(run_quota(site, 16, num_crashes=1))
    assert found.problems == []
    assert found.num_cancelled == 8
    assert len(site.deaths) >= 1
    assert abs(found.spent - found.recorded) < 0.5  # Lua writes times with 14 digits: 0.1 ms, in which 0.1 tokens come


@pytest.mark.fault(
    "F66",
    provoked="15 prompts of 900 tokens that another key has just sent, and as many that nobody has sent, in turns; 200 "
    "by command",
    holds="the times of their first tokens are of one distribution (Mann and Whitney: p is 0.01 or more in one of "
    "three tries); a prompt of the own key is faster",
)
def test_f66_the_time_of_a_first_token_tells_nothing_of_other_keys(site):
    seeds = iter(range(NUM_TRIES))
    found = measured(
        lambda: asyncio.run(run_prefixes(site, 15, seed=next(seeds))), lambda found: found.same() >= P_VALUE
    )
    # If prompts of other keys were found, p would be 3e-6 in each try, as it is for the own ones, which take a tenth of
    # the time. Without a difference three tries fail once in a million runs.
    assert found.same() >= P_VALUE, found
    assert found.saved() > 0.5
    assert probability_of_one_distribution(found.own, found.fresh) < P_VALUE


def test_times_of_two_distributions_are_told_from_times_of_one():
    dice = random.Random(1)
    first, second = ([dice.gauss(1, 0.1) for _ in range(30)] for _ in range(2))
    assert probability_of_one_distribution(first, second) > 0.05
    assert probability_of_one_distribution(first, [value + 0.1 for value in second]) < 0.001
    # https://en.wikipedia.org/wiki/Mann-Whitney_U_test: six tortoises and six hares, U = 11
    tortoises, hares = (1, 7, 8, 9, 10, 11), (2, 3, 4, 5, 6, 12)
    assert probability_of_one_distribution(tortoises, hares) == pytest.approx(0.2623, abs=1e-4)
