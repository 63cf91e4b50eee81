"""Clients of a Redis that is away."""

from __future__ import annotations

import time

import pytest

from inference.errors import Unavailable
from inference.transport import queue as broker
from inference.transport.control import cancel_generation
from inference.transport.worker_states import model_states, worker_states_sync


async def test_redis_that_is_away_is_unavailable_within_its_time(settings, tmp_path):
    settings.BLAZR_REDIS_URL = f"unix://{tmp_path}/none.sock?db=0"
    settings.BLAZR_REDIS_TIMEOUT_S = 0.5
    for call in (cancel_generation("r"), broker.request_load("a"), model_states()):
        started = time.monotonic()
        with pytest.raises(Unavailable):
            await call
        assert time.monotonic() - started < 10
    with pytest.raises(Unavailable):
        worker_states_sync()
