"""The control stream: orders reach every reader, cancels also those who read later, failures end nothing."""

from __future__ import annotations

import pytest

from inference.transport import control
from inference.transport import keys as redis_keys
from inference.transport.control import CancelledRequests, ControlReader, cancel_generation, request_unload
from tests.inference.worker.fakes import wait_until


def test_the_oldest_cancels_are_forgotten():
    cancelled = CancelledRequests(limit=2)
    for name in ("a", "b", "c"):
        cancelled.add(name)
    assert [name in cancelled for name in ("a", "b", "c")] == [False, True, True]


async def test_a_reader_knows_earlier_cancels_and_gets_later_orders_only(client, monkeypatch):
    monkeypatch.setattr(control, "BLOCK_MS", 50)
    await cancel_generation("early")
    await request_unload("early")
    orders, cancelled = [], CancelledRequests()

    def unload(checkpoint_id):
        orders.append(("unload", checkpoint_id))
        raise RuntimeError("no such model")

    handlers = {"cancel": lambda request_id: orders.append(("cancel", request_id)), "unload": unload}
    reader = ControlReader(client, handlers, cancelled)
    reader.start()
    try:
        assert "early" in cancelled
        await request_unload("late")
        client.xadd(redis_keys.CONTROL_STREAM, {"unknown": "x"})
        await cancel_generation("late")
        wait_until(lambda: len(orders) == 2)
    finally:
        reader.stop()
    assert orders == [("unload", "late"), ("cancel", "late")]
    assert "late" in cancelled


@pytest.mark.parametrize("action", ["cancel", "unload"])
async def test_orders_that_are_no_text_end_no_reader(client, monkeypatch, action):
    """Entries stay in the stream, so a worker that they end would end at each of its starts."""
    monkeypatch.setattr(control, "BLOCK_MS", 50)
    client.xadd(redis_keys.CONTROL_STREAM, {action: b"\xc1"})
    orders: list[str] = []
    reader = ControlReader(client, {"unload": orders.append}, CancelledRequests())
    reader.start()
    try:
        client.xadd(redis_keys.CONTROL_STREAM, {action: b"\xc1", b"\xff": b"\xff"})
        await request_unload("model")
        wait_until(lambda: "model" in orders)
    finally:
        reader.stop()
