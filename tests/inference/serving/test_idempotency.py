"""Claims of idempotency keys: one runs, the others wait, fail or get the kept response."""

from __future__ import annotations

import pytest
import redis

from inference.errors import Conflict, IdempotencyKeyInUse, IdempotencyKeyReused
from inference.serving import idempotency
from inference.serving.idempotency import MAX_BYTES, Claim, KeptResponse, idempotency_claim
from inference.transport import keys as redis_keys

RESPONSE = KeptResponse(201, {"Content-Type": "application/json", "x-request-id": "r"}, b'{"text": "\xc3\xa9"}')


@pytest.fixture(autouse=True)
def stored(redis_urls_in_settings):
    client = redis.Redis.from_url(redis_urls_in_settings.client, protocol=2)
    yield client
    client.close()


async def claim(digest: str = "d", tenant: str = "t", key: str = "k") -> Claim | KeptResponse:
    return await idempotency_claim(tenant=tenant, key=key, digest=digest)


async def claimed(**values: str) -> Claim:
    found = await claim(**values)
    assert isinstance(found, Claim)
    return found


async def test_a_finished_request_gives_its_response_again(stored):
    held = await claimed()
    assert 0 < stored.ttl(held.key) <= idempotency.LEASE_S
    await held.store(RESPONSE)
    assert await claim() == RESPONSE
    assert idempotency.LEASE_S < stored.ttl(held.key) <= idempotency.KEPT_S


async def test_a_running_request_refuses_others_of_its_key():
    await claimed()
    with pytest.raises(IdempotencyKeyInUse) as refused:
        await claim()
    assert refused.value.param == "Idempotency-Key"


async def test_another_request_of_the_key_is_refused_also_after_the_end():
    held = await claimed()
    with pytest.raises(IdempotencyKeyReused):
        await claim(digest="other")
    await held.store(RESPONSE)
    with pytest.raises(IdempotencyKeyReused):
        await claim(digest="other")


async def test_tenants_have_keys_of_their_own(stored):
    first, second = await claimed(), await claimed(tenant="other")
    assert first.key != second.key
    assert not any(part == b"k" for part in first.key.encode().split(b":"))


async def test_a_released_key_is_free():
    held = await claimed()
    await held.release()
    assert (await claimed(digest="other")).owner != held.owner


@pytest.mark.parametrize(
    "response",
    [
        KeptResponse(200, {}, b"x" * (MAX_BYTES + 1)),
        KeptResponse(200, {"Cache-Control": "private, no-store"}, b"secret"),
    ],
    ids=["large", "secret"],
)
async def test_of_large_and_secret_responses_only_the_fact_is_kept(response, stored):
    held = await claimed()
    await held.store(response)
    assert stored.hget(held.key, "body") is None
    with pytest.raises(Conflict, match="The request was not run again"):
        await claim()


async def test_a_lost_lease_changes_nothing_of_its_successor(stored):
    lost = await claimed()
    stored.delete(lost.key)  # as if it had expired
    successor = await claimed()
    assert not await lost.renew()
    await lost.store(RESPONSE)
    await lost.release()
    with pytest.raises(IdempotencyKeyInUse):
        await claim()
    stored.expire(successor.key, 1)
    assert await successor.renew()
    assert stored.ttl(successor.key) > 1


def bodies_kept(stored) -> int:
    return stored.zcard(redis_keys.IDEMPOTENCY_KEPT)


@pytest.mark.parametrize(("limit", "other_may"), [("MAX_TENANT_BYTES", True), ("MAX_TOTAL_BYTES", False)])
async def test_bodies_above_a_limit_of_bytes_are_not_kept(monkeypatch, stored, limit, other_may):
    monkeypatch.setattr(idempotency, limit, 2 * (len(RESPONSE.body) + idempotency.ENTRY_BYTES))
    for key in "abc":
        await (await claimed(key=key)).store(RESPONSE)
    await (await claimed(key="d", tenant="other")).store(RESPONSE)
    assert await claim(key="b") == RESPONSE
    with pytest.raises(Conflict, match="not run again; choose a new key"):
        await claim(key="c")
    assert bodies_kept(stored) == (3 if other_may else 2)
    # After a day the first ones make room.
    for entry in stored.zrange(redis_keys.IDEMPOTENCY_KEPT, 0, -1):
        stored.zadd(redis_keys.IDEMPOTENCY_KEPT, {entry: 1})
    await (await claimed(key="e")).store(RESPONSE)
    assert await claim(key="e") == RESPONSE
    assert bodies_kept(stored) == 1
    size = len(RESPONSE.body) + idempotency.ENTRY_BYTES
    assert stored.hgetall(redis_keys.IDEMPOTENCY_TOTALS) == {b"all": b"%d" % size, b"of:t": b"%d" % size}
