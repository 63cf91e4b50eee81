"""Divide a worker's free places between the tenants of queued jobs; pure functions without a database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heapreplace


def share_places(waiting: Mapping[str, Sequence[tuple[int, int]]], running: Mapping[str, int], limit: int) -> list[int]:
    """Choose up to ``limit`` jobs: best priority first, then the tenant with the fewest jobs, then the oldest job.

    Args:
        waiting: (priority, key) of the first jobs of each tenant, in order.
        running: Number of running jobs by tenant.

    Returns:
        The keys of the jobs.
    """
    heads = [(jobs[0][0], running.get(tenant, 0), jobs[0][1], 0, tenant) for tenant, jobs in waiting.items() if jobs]
    heapify(heads)
    chosen: list[int] = []
    while heads and len(chosen) < limit:
        _, num_held, key, number, tenant = heads[0]
        chosen.append(key)
        if number + 1 < len(waiting[tenant]):
            priority, following = waiting[tenant][number + 1]
            heapreplace(heads, (priority, num_held + 1, following, number + 1, tenant))
        else:
            heappop(heads)
    return chosen
