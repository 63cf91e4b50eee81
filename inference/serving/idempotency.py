"""Store responses by idempotency key in Redis, so that a request that is sent twice runs once.

A claim is a lease. While the request runs, other requests with its key are refused. If its process dies, the key is
free again after ``LEASE_S``. At the end the response replaces the lease.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field

import orjson

from inference.errors import Conflict, IdempotencyKeyInUse, IdempotencyKeyReused
from inference.transport import keys as redis_keys
from inference.transport.clients import redis_client

LEASE_S = 30
RENEW_S = 10.0
KEPT_S = 86_400
"""Seconds that a response is kept for requests with the same key: a day, as in other APIs."""
MAX_BYTES = 1 << 20
"""Size of the largest response that is kept, because Redis holds it in memory for a day."""

_CLAIM = """
local found = redis.call('HMGET', KEYS[1], 'digest', 'status', 'headers', 'body')
if not found[1] then
  redis.call('HSET', KEYS[1], 'digest', ARGV[1], 'owner', ARGV[2])
  redis.call('EXPIRE', KEYS[1], ARGV[3])
  return {'new'}
end
if found[1] ~= ARGV[1] then return {'other'} end
if not found[2] then return {'running'} end
return {'done', found[2], found[3], found[4] or false}
"""

# An owner that has lost the lease must not change the values of the next owner.
_FINISH = """
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
if ARGV[2] == 'renew' then return redis.call('EXPIRE', KEYS[1], ARGV[3]) end
if ARGV[2] == 'release' then return redis.call('DEL', KEYS[1]) end
redis.call('HSET', KEYS[1], 'status', ARGV[4], 'headers', ARGV[5])
if ARGV[6] == '1' then redis.call('HSET', KEYS[1], 'body', ARGV[7]) end
return redis.call('EXPIRE', KEYS[1], ARGV[3])
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
    owner: str = field(default_factory=lambda: secrets.token_hex(8))

    async def renew(self) -> bool:
        """Extend the lease by ``LEASE_S``; return False if the lease was lost."""
        return bool(await self._finish("renew", LEASE_S))

    async def release(self) -> None:
        """Give the lease back, so that the next request with the key runs."""
        await self._finish("release", 0)

    async def store(self, response: KeptResponse) -> None:
        """Keep the response for ``KEPT_S``; keep no body if it is larger than ``MAX_BYTES`` or secret."""
        is_kept = len(response.body) <= MAX_BYTES and not response.is_secret
        body = response.body if is_kept else b""
        await self._finish(
            "store",
            KEPT_S,
            str(response.status),
            orjson.dumps(response.headers),
            "1" if is_kept else "0",
            body,
        )

    async def _finish(self, action: str, expire_s: int, *rest: str | bytes) -> int:
        async with redis_client() as client:
            return int(await client.eval(_FINISH, 1, self.key, self.owner, action, expire_s, *rest))


async def idempotency_claim(*, tenant: str, key: str, digest: str) -> Claim | KeptResponse:
    """Claim ``key`` for a request, or return the response to the earlier request with this key.

    Args:
        tenant: The tenant that sent the key.
        key: The key as the client sent it.
        digest: Digest of the whole request.

    Raises:
        IdempotencyKeyReused: The key came with a different request before.
        IdempotencyKeyInUse: The same request is running.
        Conflict: The request has ended, and its response was not kept.
        Unavailable: Redis can't be reached.
    """
    claim = Claim(redis_keys.idempotency(tenant, hashlib.sha256(key.encode()).hexdigest()))
    async with redis_client() as client:
        verdict, *rest = await client.eval(_CLAIM, 1, claim.key, digest, claim.owner, LEASE_S)
    if verdict == b"new":
        return claim
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
            f"{shown} was used before, and the response isn't kept: it had a secret, or more than "
            f"{MAX_BYTES} bytes. The request was not run again.",
            param="Idempotency-Key",
        )
    return KeptResponse(int(status), orjson.loads(headers), body)
