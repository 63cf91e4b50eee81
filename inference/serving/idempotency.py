"""Store responses by idempotency key in Redis, so that a request that is sent twice runs once.

A claim is a lease. While the request runs, others with its key are refused; if its process dies, the key is free again
after ``LEASE_S``. At the end the response takes the lease's place.
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
"""Seconds that a response is kept for requests with the same key; a day, as other APIs have it."""
MAX_BYTES = 1 << 20
"""Largest response that is kept: Redis holds it in memory for a day."""

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

# Whoever lost the lease must not touch what its successor has written.
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
    """What was answered the first time."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def is_secret(self) -> bool:
        """Whether it says that it must not be stored."""
        return "no-store" in self.headers.get("Cache-Control", "")


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to answer under a key, while it is renewed."""

    key: str
    owner: str = field(default_factory=lambda: secrets.token_hex(8))

    async def renew(self) -> bool:
        """Keep it for another ``LEASE_S``; False: it was lost."""
        return bool(await self._finish("renew", LEASE_S))

    async def release(self) -> None:
        """Give it back: the next request with the key runs."""
        await self._finish("release", 0)

    async def store(self, answer: KeptResponse) -> None:
        """Keep the answer for ``KEPT_S``; of one that is too large, or secret, only that it was given."""
        is_kept = len(answer.body) <= MAX_BYTES and not answer.is_secret
        body = answer.body if is_kept else b""
        await self._finish(
            "store",
            KEPT_S,
            str(answer.status),
            orjson.dumps(answer.headers),
            "1" if is_kept else "0",
            body,
        )

    async def _finish(self, action: str, expire_s: int, *rest: str | bytes) -> int:
        async with redis_client() as client:
            return int(await client.eval(_FINISH, 1, self.key, self.owner, action, expire_s, *rest))


async def idempotency_claim(*, tenant: str, key: str, digest: str) -> Claim | KeptResponse:
    """Claim ``key`` for a request, or find what it was answered before.

    Args:
        tenant: Whose key it is.
        key: As the client chose it.
        digest: Of the whole request.

    Raises:
        IdempotencyKeyReused: The key came with another request.
        IdempotencyKeyInUse: The same request is running.
        Conflict: It was answered, with something that isn't kept.
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
            f"{shown} was answered before, and the answer isn't kept: it had a secret, or more than "
            f"{MAX_BYTES} bytes. Nothing was done again.",
            param="Idempotency-Key",
        )
    return KeptResponse(int(status), orjson.loads(headers), body)
