"""Admit requests within the limits of their API keys, and release them when they end.

    admission = await admit(principal, tokens=estimate)     429 when a limit is reached
    …
    admission.release(tokens=used)                          once, however the request ended; returns at once

``generation_start`` calls both for all generations. Other endpoints use ``admitted`` or, for work that depends on a
text, ``text_admitted``; the base view admits a POST that admits nothing by itself. A caller without limits causes no
call to Redis.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import secrets
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextvars import ContextVar
from typing import Any

import orjson

from inference.access.limit_store import RENEW_S, Count, count_request, release_request, renew_leases
from inference.errors import BlazrError, RateLimitExceeded
from inference.host.coroutines import PerLoop
from inference.host.outage import Outage
from inference.records import metrics
from inference.values.images import bare_images
from inference.values.limits import BYTES_PER_TOKEN, UNLIMITED, KeyLimits, budget, budget_headers
from inference.values.principal import Principal

logger = logging.getLogger(__name__)

_PROCESS = secrets.token_hex(8)
_numbers = itertools.count()
_headers: ContextVar[dict[str, str] | None] = ContextVar("limit_headers", default=None)


class Admission:
    """A request that was admitted.

    Attributes:
        tokens: Tokens that were reserved for it.
    """

    __slots__ = ("_is_released", "_keeper", "lease", "limits", "tenant", "tokens")

    def __init__(self, tenant: str, limits: KeyLimits, lease: str, tokens: int, keeper: _LeaseKeeper | None) -> None:
        self.tenant = tenant
        self.limits = limits
        self.lease = lease
        self.tokens = tokens
        self._keeper = keeper
        self._is_released = keeper is None

    def release(self, *, tokens: int) -> None:
        """End the request, which used ``tokens``. Only the first call counts; Redis is updated in the background."""
        if self._is_released or self._keeper is None:
            return
        self._is_released = True
        self._keeper.release(self, refund=self.tokens - tokens)


FREE = Admission("", UNLIMITED, "", 0, None)
"""The admission of callers without limits."""


async def admit(principal: Principal, *, tokens: int) -> Admission:
    """Admit a request of ``principal``.

    Args:
        principal: The caller.
        tokens: Estimate of prompt and output together.

    Raises:
        RateLimitExceeded: A limit is reached; the message names it and the time to retry.
        Unavailable: Redis can't be reached.
    """
    limits = principal.limits
    if not limits.is_metered:
        return FREE
    if limits.tokens is not None and tokens > limits.tokens:
        metrics.RATE_LIMITED.labels(principal.kind, "tokens").inc()
        raise RequestExceedsLimit(
            f"The request asks for about {tokens:,} tokens (prompt and max_tokens together), this API key's limit is "
            f"{limits.tokens:,} a minute; shorten the prompt or lower max_tokens.",
        )
    lease = f"{_PROCESS}:{next(_numbers)}"
    keeper = _keeper()
    keeper.hold(principal.tenant, lease)
    try:
        count = await count_request(tenant=principal.tenant, limits=limits, lease=lease, tokens=tokens)
    except BaseException:
        # The script may have run although its reply is lost: free the place and the tokens.
        keeper.release(Admission(principal.tenant, limits, lease, tokens, keeper), refund=tokens, was_admitted=False)
        raise
    if count.verdict != "ok":
        keeper.forget(lease)
    _check_count(principal, count)
    return Admission(principal.tenant, limits, lease, tokens, keeper)


async def admission_check(principal: Principal) -> None:
    """Refuse a caller who has reached a limit, and count nothing: for work before a request that is admitted itself.

    Raises:
        RateLimitExceeded, Unavailable: As ``admit`` raises.
    """
    if principal.limits.is_metered:
        count = await count_request(tenant=principal.tenant, limits=principal.limits, lease="", tokens=0)
        _check_count(principal, count)


async def refusal_count(principal: Principal, *, tokens: int) -> None:
    """Count a request that was refused without being admitted, after work that cost ``tokens``, at most a minute's.

    Raises:
        RateLimitExceeded, Unavailable: As ``admit`` raises.
    """
    limit = principal.limits.tokens
    admission = await admit(principal, tokens=0)
    admission.release(tokens=tokens if limit is None else min(tokens, limit))


@contextlib.asynccontextmanager
async def admitted(principal: Principal, *, tokens: int) -> AsyncIterator[Admission]:
    """Admit a request for a block; it used ``tokens`` unless the block calls ``release`` with another number."""
    admission = await admit(principal, tokens=tokens)
    try:
        yield admission
    finally:
        admission.release(tokens=tokens)


@contextlib.asynccontextmanager
async def text_admitted(principal: Principal, body: Mapping[str, Any]) -> AsyncIterator[None]:
    """Admit work on the texts of a request's body, which costs as many tokens as the body without pictures is long."""
    tokens = 0
    if principal.limits.tokens is not None:
        texts = {**body, "messages": bare_images(body["messages"])} if "messages" in body else body
        tokens = -(-len(orjson.dumps(texts)) // BYTES_PER_TOKEN)
    async with admitted(principal, tokens=tokens):
        yield


def headers_reset() -> None:
    """Clear the headers of an earlier request in this context."""
    _headers.set(None)


def headers_current() -> dict[str, str]:
    """Return the ``x-ratelimit-*`` headers of this task's request; none for callers without limits."""
    return _headers.get() or {}


class RequestExceedsLimit(RateLimitExceeded):
    """The request alone exceeds the tokens of a minute, so that waiting doesn't help."""

    retryable = False


def _check_count(principal: Principal, count: Count) -> None:
    """Set the headers of the caller's limits, and raise an error if one is reached."""
    _headers.set(_count_headers(principal.limits, count))
    if count.verdict != "ok":
        metrics.RATE_LIMITED.labels(principal.kind, count.verdict).inc()
        raise _refusal(principal.limits, count)


def _count_headers(limits: KeyLimits, count: Count) -> dict[str, str]:
    return budget_headers(
        None if limits.requests is None else budget(limits.requests, count.requests),
        None if limits.tokens is None else budget(limits.tokens, count.tokens),
    )


def _refusal(limits: KeyLimits, count: Count) -> RateLimitExceeded:
    wait_s = max(1, math.ceil(count.wait_s))
    if count.verdict == "concurrent":
        text = f"{count.running} requests of this API key are open, its limit is {limits.concurrent}"
    elif count.verdict == "requests":
        text = f"This API key's limit of {limits.requests:,} requests a minute is reached"
    else:
        left = max(0, math.floor(count.tokens))
        text = f"This API key's limit of {limits.tokens:,} tokens a minute is reached, {left:,} are left at the moment"
    return RateLimitExceeded(f"{text}; try again in {wait_s} s.", retry_after_s=wait_s)


# --- leases ------------------------------------------------------------------------------------


class _LeaseKeeper:
    """Renews the leases of an event loop's open requests, all together."""

    def __init__(self) -> None:
        self._held: dict[str, str] = {}
        self._renewing: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._outage = Outage(logger, "the limits of API keys")

    def hold(self, tenant: str, lease: str) -> None:
        """Renew this lease from now on."""
        self._held[lease] = tenant
        if self._renewing is None:
            self._renewing = asyncio.get_running_loop().create_task(self._renew())

    def forget(self, lease: str) -> None:
        """Stop renewing this lease."""
        self._held.pop(lease, None)

    def release(self, admission: Admission, *, refund: int, was_admitted: bool = True) -> None:
        """End a request in Redis, in a task of its own."""
        self.forget(admission.lease)
        self._background(self._release(admission, refund, was_admitted))

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _release(self, admission: Admission, refund: int, was_admitted: bool) -> None:
        try:
            await release_request(
                tenant=admission.tenant,
                limits=admission.limits,
                lease=admission.lease,
                refund=refund,
                was_admitted=was_admitted,
            )
        except BlazrError as error:
            self._outage.failed(error)
        else:
            self._outage.succeeded()

    async def _renew(self) -> None:
        try:
            while True:
                await asyncio.sleep(RENEW_S)
                if not self._held:
                    return
                try:
                    await renew_leases([(tenant, lease) for lease, tenant in self._held.items()])
                except BlazrError as error:
                    self._outage.failed(error)
                else:
                    self._outage.succeeded()
        finally:
            self._renewing = None


_keeper = PerLoop(_LeaseKeeper)
