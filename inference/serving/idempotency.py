"""Store responses by idempotency key in Redis, so that a request that is sent twice runs once.

A claim is a lease. While the request runs, other requests with its key are refused. If its process dies, the key is
free again after ``LEASE_S``. At the end the response replaces the lease.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field

import orjson

from inference.errors import Conflict, IdempotencyKeyInUse, IdempotencyKeyReused, RateLimitExceeded
from inference.transport import keys as redis_keys
from inference.transport.clients import redis_client

LEASE_S = 30
RENEW_S = 10.0
KEPT_S = 86_400
"""Seconds that a response is kept for requests with the same key: a day, as in other APIs."""
MAX_BYTES = 1 << 20
"""Size of the largest response that is kept, because Redis holds it in memory for a day."""
MAX_TENANT_BYTES = 32 << 20
MAX_TOTAL_BYTES = 128 << 20
"""Bytes of kept responses of one tenant, and of all: an eighth of the memory of the embedded Redis."""
CLAIM_FACTOR = 2
"""At so many times these limits new keys are refused, because a key takes ``ENTRY_BYTES`` also without a body."""
ENTRY_BYTES = 1024
"""What the key, the headers and the entry of an ended request take, roughly."""
FULL_RETRY_S = 60
EXPIRED_AT_ONCE = 100

# The first lines of both scripts that follow: totals, without the entries that have expired.
# KEYS: the request, entries of ended requests, totals.
_TOTALS = f"""
local now = tonumber(redis.call('TIME')[1])
local function add(owner, number)
  for _, field in ipairs({{'all', 'of:' .. owner}}) do
    if redis.call('HINCRBY', KEYS[3], field, number) <= 0 then redis.call('HDEL', KEYS[3], field) end
  end
end
for _, entry in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, {EXPIRED_AT_ONCE})) do
  local bytes, owner = string.match(entry, '^(%d+) %S+ (.*)$')
  add(owner, -tonumber(bytes))
  redis.call('ZREM', KEYS[2], entry)
end
local function has_space(size, owner, of_owner, of_all)
  local function total(field) return tonumber(redis.call('HGET', KEYS[3], field) or 0) end
  return total('of:' .. owner) + size <= tonumber(of_owner) and total('all') + size <= tonumber(of_all)
end
"""

# ARGV: digest, owner, seconds, tenant, limits of the tenant and of all.
_CLAIM = f"""
{_TOTALS}
local found = redis.call('HMGET', KEYS[1], 'digest', 'status', 'headers', 'body')
if not found[1] then
  if not has_space({ENTRY_BYTES}, ARGV[4], ARGV[5], ARGV[6]) then return {{'full'}} end
  redis.call('HSET', KEYS[1], 'digest', ARGV[1], 'owner', ARGV[2])
  redis.call('EXPIRE', KEYS[1], ARGV[3])
  return {{'new'}}
end
if found[1] ~= ARGV[1] then return {{'other'}} end
if not found[2] then return {{'running'}} end
return {{'done', found[2], found[3], found[4] or false}}
"""

# An owner that has lost the lease must not change the values of the next owner.
_FINISH = """
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
if ARGV[2] == 'renew' then return redis.call('EXPIRE', KEYS[1], ARGV[3]) end
return redis.call('DEL', KEYS[1])
"""

# A body that would be over a limit of bytes isn't kept; only the fact that the request has ended is.
# ARGV: owner, seconds, status, headers, body or '', its size with ENTRY_BYTES or 0, tenant, limits of the tenant and of
# all.
_STORE = f"""
{_TOTALS}
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
local size, tenant = tonumber(ARGV[6]), ARGV[7]
redis.call('HSET', KEYS[1], 'status', ARGV[3], 'headers', ARGV[4])
if size > 0 and has_space(size, tenant, ARGV[8], ARGV[9]) then
  redis.call('HSET', KEYS[1], 'body', ARGV[5])
else
  size = {ENTRY_BYTES}
end
local entry = string.format('%d', size) .. ' ' .. KEYS[1] .. ' ' .. tenant
if redis.call('ZADD', KEYS[2], now + tonumber(ARGV[2]), entry) == 1 then add(tenant, size) end
return redis.call('EXPIRE', KEYS[1], ARGV[2])
"""


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """The response to the first request with an idempotency key."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def is_secret(self) -> bool:
        """Whether its headers forbid to store it."""
        return "no-store" in self.headers.get("Cache-Control", "")


@dataclass(frozen=True, slots=True)
class Claim:
    """The lease on an idempotency key, held by the process that runs the request."""

    key: str
    tenant: str
    owner: str = field(default_factory=lambda: secrets.token_hex(8))

    async def renew(self) -> bool:
        """Extend the lease by ``LEASE_S``; return False if the lease was lost."""
        return bool(await self._finish("renew", LEASE_S))

    async def release(self) -> None:
        """Give the lease back, so that the next request with the key runs."""
        await self._finish("release", 0)

    async def store(self, response: KeptResponse) -> None:
        """Keep the response for ``KEPT_S``; keep no body if it is secret or over a limit of bytes."""
        is_kept = len(response.body) <= MAX_BYTES and not response.is_secret
        async with redis_client() as client:
            await client.eval(
                _STORE,
                3,
                self.key,
                redis_keys.IDEMPOTENCY_KEPT,
                redis_keys.IDEMPOTENCY_TOTALS,
                self.owner,
                KEPT_S,
                str(response.status),
                orjson.dumps(response.headers),
                response.body if is_kept else b"",
                len(response.body) + ENTRY_BYTES if is_kept else 0,
                self.tenant,
                MAX_TENANT_BYTES,
                MAX_TOTAL_BYTES,
            )

    async def _finish(self, action: str, expire_s: int) -> int:
        async with redis_client() as client:
            return int(await client.eval(_FINISH, 1, self.key, self.owner, action, expire_s))


async def idempotency_claim(*, tenant: str, key: str, digest: str) -> Claim | KeptResponse:
    """Claim ``key`` for a request, or return the response to the earlier request with this key.

    Args:
        tenant: The tenant that sent the key.
        key: The key as the client sent it.
        digest: Digest of the whole request.

    Raises:
        IdempotencyKeyReused: The key came with a different request before.
        IdempotencyKeyInUse: The same request is running.
        RateLimitExceeded: The key is new, and those of the last day take all memory that is meant for them.
        Conflict: The request has ended, and its response was not kept.
        Unavailable: Redis can't be reached.
    """
    claim = Claim(redis_keys.idempotency(tenant, hashlib.sha256(key.encode()).hexdigest()), tenant)
    async with redis_client() as client:
        verdict, *rest = await client.eval(
            _CLAIM,
            3,
            claim.key,
            redis_keys.IDEMPOTENCY_KEPT,
            redis_keys.IDEMPOTENCY_TOTALS,
            digest,
            claim.owner,
            LEASE_S,
            tenant,
            CLAIM_FACTOR * MAX_TENANT_BYTES,
            CLAIM_FACTOR * MAX_TOTAL_BYTES,
        )
    if verdict == b"new":
        return claim
    if verdict == b"full":
        raise _full()
    shown = f"The idempotency key {key[:60]!r}"
    if verdict == b"other":
        raise IdempotencyKeyReused(
            f"{shown} came with another request before; choose a new key for each request.", param="Idempotency-Key"
        )
    if verdict == b"running":
        raise IdempotencyKeyInUse(
            f"{shown} belongs to a request that is still running; try again later.",
            param="Idempotency-Key",
            retry_after_s=1,
        )
    status, headers, body = rest
    if body is None:
        raise Conflict(
            f"{shown} was used before, and the response isn't kept: it had a secret or more than {MAX_BYTES:,} "
            f"bytes, or the kept responses had {MAX_TENANT_BYTES:,} bytes of this caller, or {MAX_TOTAL_BYTES:,} "
            "of all. "
            "The request was not run again; choose a new key to run it.",
            param="Idempotency-Key",
        )
    return KeptResponse(int(status), orjson.loads(headers), body)


def _full() -> RateLimitExceeded:
    return RateLimitExceeded(
        f"The idempotency keys of a day take {CLAIM_FACTOR * MAX_TENANT_BYTES:,} bytes of this caller, or "
        f"{CLAIM_FACTOR * MAX_TOTAL_BYTES:,} of all, the limits; the request was not run. Send it without "
        "Idempotency-Key, or try again later.",
        param="Idempotency-Key",
        retry_after_s=FULL_RETRY_S,
    )
