"""Count the requests and tokens of API keys in Redis, with one script to admit and one to release.

Each tenant has a hash with two token buckets (their levels and the time of those levels), and a sorted set of open
requests. An open request is a lease that its process renews, so that the places of a killed process are free after
``LEASE_S``. All times are those of Redis, so the clocks of machines need not agree.

Web processes count requests of clients. Workers count jobs and lines of batches in the same buckets
(``inference.access.start_limits``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import redis

from inference.transport import keys as redis_keys
from inference.transport.clients import redis_client, redis_repeatable
from inference.values.limits import UNLIMITED, WINDOW_S, KeyLimits

LEASE_S = 30.0
RENEW_S = 10.0
COUNTER_EXPIRE_S = 600
"""Counters expire after so long without a request, when the buckets are full; later if a level is below zero."""

# A limit of -1 means none. The release of a request may take a level below zero; further requests wait longer then.
# A lease that is open already was admitted by a call whose reply was lost. Without a lease nothing is taken: the reply
# says what could be taken. Stored work keeps a part of each limit free.
_ADMIT = """
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1e6
local rpm, tpm, open = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local cost, window = tonumber(ARGV[4]), tonumber(ARGV[5])
local number, free_requests, free_tokens = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
local found = redis.call('HMGET', KEYS[1], 'requests', 'tokens', 'at')
local passed = math.max(0, now - (tonumber(found[3]) or now))
local requests = math.min(rpm, (tonumber(found[1]) or rpm) + passed * rpm / window)
local tokens = math.min(tpm, (tonumber(found[2]) or tpm) + passed * tpm / window)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
local running = redis.call('ZCARD', KEYS[2])
local verdict, wait = 'ok', 0
if redis.call('ZSCORE', KEYS[2], ARGV[7]) then
  return {verdict, '0', tostring(requests), tostring(tokens), running}
end
if rpm >= 0 and number > 0 and requests < number + free_requests then
  verdict, wait = 'requests', (number + free_requests - requests) * window / rpm
end
if tpm >= 0 and tokens < math.max(1, cost) + free_tokens then
  local missing = (math.max(1, cost) + free_tokens - tokens) * window / tpm
  if missing > wait then verdict, wait = 'tokens', missing end
end
if open >= 0 and running >= open then
  if verdict == 'ok' then verdict, wait = 'concurrent', 1 end
end
if verdict == 'ok' and ARGV[7] ~= '' then
  requests, tokens = requests - number, tokens - cost
  -- No level is kept without a limit: one that is set later starts full.
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'at', tostring(now))
  if rpm >= 0 then redis.call('HSET', KEYS[1], 'requests', tostring(requests)) end
  if tpm >= 0 then redis.call('HSET', KEYS[1], 'tokens', tostring(tokens)) end
  local refill = 0
  if tpm > 0 and tokens < 0 then refill = -tokens * window / tpm end
  redis.call('EXPIRE', KEYS[1], math.ceil(tonumber(ARGV[8]) + refill))
  redis.call('ZADD', KEYS[2], now + tonumber(ARGV[6]), ARGV[7])
  redis.call('EXPIRE', KEYS[2], math.ceil(tonumber(ARGV[6])) + 1)
end
return {verdict, tostring(wait), tostring(requests), tostring(tokens), running}
"""

# An admitted request is released even if its lease has expired meanwhile. Where the admission is uncertain, only an
# open lease is released.
_RELEASE = """
local was_open = redis.call('ZREM', KEYS[2], ARGV[1])
if ARGV[6] == '0' and was_open == 0 then return 0 end
local refund, tpm, window = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
if tpm < 0 or refund == 0 then return 0 end
local found = redis.call('HMGET', KEYS[1], 'tokens', 'at')
if not found[1] then return 0 end
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1e6
local level = tonumber(found[1]) + math.max(0, now - tonumber(found[2])) * tpm / window
level = math.min(tpm, math.min(tpm, level) + refund)
-- Both buckets have one time, so the level is stored as of that time.
redis.call('HSET', KEYS[1], 'tokens', tostring(level - math.max(0, now - tonumber(found[2])) * tpm / window))
if level < 0 then redis.call('EXPIRE', KEYS[1], math.ceil(tonumber(ARGV[5]) - level * window / tpm)) end
return 1
"""

Verdict = Literal["ok", "requests", "tokens", "concurrent"]


@dataclass(frozen=True, slots=True)
class Count:
    """The reply of Redis to a new request.

    Attributes:
        verdict: ``ok``, or the limit that was reached.
        wait_s: Seconds until a retry can be admitted.
        requests, tokens: Levels of the buckets now; meaningless without the limit.
        running: Requests of the tenant that were open before this one.
    """

    verdict: Verdict
    wait_s: float
    requests: float
    tokens: float
    running: int


async def count_request(*, tenant: str, limits: KeyLimits, lease: str, tokens: int) -> Count:
    """Admit a request, or return the limit that it reached, in one round trip.

    Args:
        tenant: The tenant that sent the request.
        limits: The tenant's limits.
        lease: The request's name among the tenant's open ones; empty: take nothing, return the levels.
        tokens: Estimated tokens, reserved until the release.

    Raises:
        Unavailable: Redis can't be reached.
    """
    reply = await redis_repeatable(
        lambda client: client.eval(
            _ADMIT,
            2,
            redis_keys.limit_counters(tenant),
            redis_keys.limit_open(tenant),
            *_admit_arguments(limits, UNLIMITED, lease, tokens, 1),
        )
    )
    return _count(reply)


def count_stored(
    client: redis.Redis, *, tenant: str, limits: KeyLimits, lease: str, tokens: int, requests: int = 1
) -> Count:
    """Admit a job or a line of a batch, or return the limit that it reached.

    The part ``limits.kept_free()`` of each limit is left to interactive requests.

    Args:
        client: Redis client.
        tenant: The tenant that submitted the work.
        limits: The tenant's limits.
        lease: The name of the work among the tenant's open requests; empty: take nothing, return the levels.
        tokens: Estimated tokens, reserved until the release.
        requests: Requests that the work counts as.
    """
    arguments = _admit_arguments(limits, limits.kept_free(), lease, tokens, requests)
    keys = redis_keys.limit_counters(tenant), redis_keys.limit_open(tenant)
    return _count(client.eval(_ADMIT, 2, *keys, *arguments))


def _admit_arguments(
    limits: KeyLimits, kept_free: KeyLimits, lease: str, tokens: int, requests: int
) -> tuple[float | str, ...]:
    concurrent = -1 if limits.concurrent is None else limits.concurrent - (kept_free.concurrent or 0)
    return (
        *(-1 if limit is None else limit for limit in (limits.requests, limits.tokens)),
        concurrent,
        tokens,
        WINDOW_S,
        LEASE_S,
        lease,
        COUNTER_EXPIRE_S,
        requests,
        kept_free.requests or 0,
        kept_free.tokens or 0,
    )


def _count(reply: Any) -> Count:
    verdict, wait_s, requests, level, running = reply
    return Count(verdict.decode(), float(wait_s), float(requests), float(level), int(running))


async def release_request(
    *, tenant: str, limits: KeyLimits, lease: str, refund: int, was_admitted: bool = True
) -> None:
    """End a request and refund the tokens that it did not use; a negative ``refund`` charges more.

    Unless ``was_admitted`` is certain, tokens are refunded only if the lease is open.

    Raises:
        Unavailable: Redis can't be reached; the lease expires then.
    """
    async with redis_client() as client:
        await client.eval(*_release_call(tenant, limits, lease, refund, was_admitted=was_admitted))


def _release_call(tenant: str, limits: KeyLimits, lease: str, refund: int, *, was_admitted: bool) -> tuple[Any, ...]:
    return (
        _RELEASE,
        2,
        redis_keys.limit_counters(tenant),
        redis_keys.limit_open(tenant),
        lease,
        refund,
        -1 if limits.tokens is None else limits.tokens,
        WINDOW_S,
        COUNTER_EXPIRE_S,
        int(was_admitted),
    )


@dataclass(frozen=True, slots=True)
class StoredRelease:
    """The end of stored work, as ``release_request`` takes it."""

    tenant: str
    limits: KeyLimits
    lease: str
    refund: int
    was_admitted: bool = True


def release_stored(client: redis.Redis, released: Sequence[StoredRelease]) -> None:
    """End stored work and refund the tokens that it did not use, in one round trip."""
    pipe = client.pipeline(transaction=False)
    for item in released:
        pipe.eval(*_release_call(item.tenant, item.limits, item.lease, item.refund, was_admitted=item.was_admitted))
    pipe.execute()


async def renew_leases(leases: Sequence[tuple[str, str]]) -> None:
    """Renew the leases of open requests, (tenant, lease) each.

    Raises:
        Unavailable: Redis can't be reached.
    """
    async with redis_client() as client:
        pipe: Any = client.pipeline(transaction=False)
        _renew(pipe, leases, await client.time())
        await pipe.execute()


def renew_stored(client: redis.Redis, leases: Sequence[tuple[str, str]]) -> None:
    """``renew_leases`` for stored work."""
    pipe: Any = client.pipeline(transaction=False)
    _renew(pipe, leases, client.time())
    pipe.execute()


def _renew(pipe: Any, leases: Sequence[tuple[str, str]], now: Any) -> None:
    seconds, micros = now
    until = seconds + micros / 1e6 + LEASE_S
    for tenant, lease in leases:
        pipe.zadd(redis_keys.limit_open(tenant), {lease: until}, xx=True)
        pipe.expire(redis_keys.limit_open(tenant), int(LEASE_S) + 1)
