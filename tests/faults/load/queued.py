"""F41: many queued jobs: how long their submission, a claim, a list and an interactive request take, and the memory."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field

import httpx

from tests.faults.load.client import completion, stream
from tests.faults.load.disconnects import quantile
from tests.faults.load.site import LoadSite
from tests.faults.site import wait_until

MAX_PER_SUBMIT = 5_000
JOB_TOKENS = 800
"""So many that the queue is still long behind the measurements."""
NUM_CLAIMS = 100
CLAIMED = 16
"""Jobs of a claim: as many as a worker holds."""
NUM_LISTS = 5
NUM_INTERACTIVE = 5

_CLAIM = """
import json, sys, time
import django; django.setup()
from django.db import transaction
from inference.host.machine import freeze_objects
from inference.jobs.claims import jobs_claim
freeze_objects()
times = []
for number in range(int(sys.argv[1]) + 3):
    with transaction.atomic():
        begun = time.perf_counter()
        found = len(jobs_claim(owner="measurement", limit=int(sys.argv[2]), min_age_s=0.0))
        times.append(time.perf_counter() - begun)
        transaction.set_rollback(True)
    assert found == int(sys.argv[2]), found
print(json.dumps(times[3:]))
"""
"""Claims jobs in transactions that are rolled back, so that the next claim finds as many; freezes objects as a worker
does, or the rounds of the garbage collector over Django's objects are the 99th percentile."""


@dataclass
class Queued:
    """What a long queue costs.

    Attributes:
        submit_s: Seconds until all jobs were accepted.
        claims_s: Seconds of a claim of 16 jobs.
        lists_s: Seconds of a page of the list.
        interactive_s: Seconds until the first token of an interactive request.
        memory_bytes: Growth of the largest web process.
        redis_bytes: Memory of Redis.
        num_queued: Jobs that still waited after all measurements.
    """

    submit_s: float = 0.0
    claims_s: list[float] = field(default_factory=list)
    lists_s: list[float] = field(default_factory=list)
    interactive_s: list[float] = field(default_factory=list)
    memory_bytes: int = 0
    redis_bytes: int = 0
    num_queued: int = 0

    @property
    def p99_claim_s(self) -> float:
        """99th percentile of ``claims_s``."""
        return quantile(self.claims_s, 0.99)


def run_queued(site: LoadSite, num: int, *, num_run: int) -> Queued:
    """Queue ``num`` jobs and measure while workers run the first ones; all but ``num_run`` are deleted at the end."""
    found = Queued()
    site.clear()
    _submit(site, 10, "first")
    wait_until(lambda: _states(site) == {"succeeded": 10}, 60, "the end of the first jobs")
    memory = site.web_memory()
    begun = time.monotonic()
    for number in range(0, num, MAX_PER_SUBMIT):
        _submit(site, min(MAX_PER_SUBMIT, num - number), f"many-{number}")
    found.submit_s = time.monotonic() - begun
    found.memory_bytes = max(0, site.web_memory() - memory)
    found.claims_s = json.loads(site.python(_CLAIM, NUM_CLAIMS, CLAIMED))
    for _ in range(NUM_LISTS):
        begun = time.monotonic()
        httpx.get(f"{site.urls[0]}/api/jobs", params={"limit": 50}, timeout=60).raise_for_status()
        found.lists_s.append(time.monotonic() - begun)
    found.interactive_s = asyncio.run(_interactive(site))
    found.redis_bytes = site.client.info("memory")["used_memory"]
    found.num_queued = _states(site)["queued"]
    rest = "select id from inference_generationjob where state = 'queued' order by id limit -1 offset ?"
    site.rows(f"delete from inference_generationjob where id in ({rest})", num_run)
    wait_until(lambda: not set(_states(site)) - {"succeeded"}, 120, "the end of the last jobs")
    return found


async def _interactive(site: LoadSite) -> list[float]:
    """Seconds to the first token of requests beside the jobs."""
    body = completion([40, 50, 60], 4)
    return [(await stream(site.urls[0], "/v1/completions", body)).ttft_s for _ in range(NUM_INTERACTIVE)]


def _submit(site: LoadSite, num: int, label: str) -> None:
    body = completion([40, 50, 60], JOB_TOKENS)
    del body["stream"]
    jobs = {"jobs": [{"endpoint": "completion", "body": body}] * num, "batch_label": label}
    response = httpx.post(f"{site.urls[0]}/api/jobs", json=jobs, timeout=300)
    assert response.status_code == 202, response.text[:300]


def _states(site: LoadSite) -> dict[str, int]:
    return dict(site.rows("select state, count(*) from inference_generationjob group by 1"))
