"""Callers with limits, and a loop for what they ask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from inference.access import admission
from inference.access.admission import admit
from inference.errors import RateLimitExceeded
from inference.values.limits import KeyLimits
from inference.values.principal import Principal
from tests.inference.transport.cut_connections import close_broker

TENANT = "key:1"


def caller(**limits: int) -> Principal:
    return Principal("key", TENANT, "test", 1, limits=KeyLimits(**limits))


def run(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """``work`` in a loop of its own, with what it left in the background."""

    async def whole() -> Any:
        try:
            return await work()
        finally:
            keeper = admission._keeper()
            await asyncio.gather(*keeper._ending)
            if keeper._renewing is not None:
                keeper._renewing.cancel()
            await close_broker()

    return asyncio.run(whole())


async def settled() -> None:
    await asyncio.gather(*admission._keeper()._ending)


async def attempt(principal: Principal, tokens: int = 1):
    try:
        return await admit(principal, tokens=tokens)
    except RateLimitExceeded as error:
        return error
