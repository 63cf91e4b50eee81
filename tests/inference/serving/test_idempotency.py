"""Claims of idempotency keys: one runs, the others wait, fail or get the kept response."""

from __future__ import annotations

import pytest
import redis

from inference.errors import Conflict, IdempotencyKeyInUse, IdempotencyKeyReused, RateLimitExceeded
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


async def claim_or_error(**values: str) -> Claim | KeptResponse | Conflict:
    try:
        return await claim(**values)
    except Conflict as error:
        return error


@pytest.mark.parametrize(("limit", "other_may"), [("MAX_TENANT_BYTES", True), ("MAX_TOTAL_BYTES", False)])
async def test_bodies_above_a_limit_of_bytes_are_not_kept(monkeypatch, stored, limit, other_may):
    monkeypatch.setattr(idempotency, limit, 2 * (len(RESPONSE.body) + idempotency.ENTRY_BYTES))
    for key in "abc":
        await (await claimed(key=key)).store(RESPONSE)
    await (await claimed(key="d", tenant="other")).store(RESPONSE)
    assert await claim(key="b") == RESPONSE
    with pytest.raises(Conflict, match="not run again; choose a new key"):
        await claim(key="c")
    assert isinstance(await claim_or_error(key="d", tenant="other"), KeptResponse) == other_may
    # After a day the first ones make room.
    for entry in stored.zrange(redis_keys.IDEMPOTENCY_KEPT, 0, -1):
        stored.zadd(redis_keys.IDEMPOTENCY_KEPT, {entry: 1})
    await (await claimed(key="e")).store(RESPONSE)
    assert await claim(key="e") == RESPONSE
    assert stored.zcard(redis_keys.IDEMPOTENCY_KEPT) == 1
    size = len(RESPONSE.body) + idempotency.ENTRY_BYTES
    assert stored.hgetall(redis_keys.IDEMPOTENCY_TOTALS) == {b"all": b"%d" % size, b"of:t": b"%d" % size}


@pytest.mark.parametrize(("limit", "other_may"), [("MAX_TENANT_BYTES", True), ("MAX_TOTAL_BYTES", False)])
async def test_keys_without_bodies_are_counted_and_new_ones_refused_above_the_limit(
    monkeypatch, stored, limit, other_may
):
    monkeypatch.setattr(idempotency, limit, 4 * idempotency.ENTRY_BYTES)
    secret = KeptResponse(200, {"Cache-Control": "no-store"}, b"secret")
    num_done = 0
    for number in range(20):
        try:
            await (await claimed(key=str(number))).store(secret)
        except RateLimitExceeded as refused:
            assert (refused.param, refused.http_status, refused.retry_after_s) == ("Idempotency-Key", 429, 60)
        else:
            num_done += 1
    assert num_done == 8
    assert len(list(stored.scan_iter(f"{redis_keys.PREFIX}idem:*"))) == 8
    assert stored.hget(redis_keys.IDEMPOTENCY_TOTALS, "of:t") == b"%d" % (8 * idempotency.ENTRY_BYTES)
    with pytest.raises(Conflict, match="not run again"):
        await claim(key="0")
    if other_may:
        await claimed(tenant="other")
    else:
        with pytest.raises(RateLimitExceeded, match="of all, the limits"):
            await claim(tenant="other")
    # After a day there is space again, which the next claim finds out.
    for entry in stored.zrange(redis_keys.IDEMPOTENCY_KEPT, 0, -1):
        stored.zadd(redis_keys.IDEMPOTENCY_KEPT, {entry: 1})
    await claimed(key="new")
    assert not stored.exists(redis_keys.IDEMPOTENCY_TOTALS)


async def test_a_key_takes_about_as_much_memory_as_is_counted_for_it(stored):
    headers = {"Content-Type": "application/json", "x-request-id": "r" * 36, "Cache-Control": "no-store"}
    before = stored.info("memory")["used_memory"]
    for number in range(500):
        await (await claimed(key=str(number), tenant="key:" + "1" * 36)).store(KeptResponse(200, headers, b""))
    each = (stored.info("memory")["used_memory"] - before) / 500
    assert 0.5 * idempotency.ENTRY_BYTES < each < 2 * idempotency.ENTRY_BYTES, each
