"""Start of a worker: device, memory budget, and the parts that run beside the requests."""

from __future__ import annotations

import threading

import pytest
import torch

from inference.host.machine import machine_memory_bytes
from inference.worker import bootstrap


def test_auto_is_the_first_device_or_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert bootstrap.resolve_device("auto") == "cuda:0"
    assert bootstrap.resolve_device("cpu") == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bootstrap.resolve_device("auto") == "cpu"


def test_the_budget_is_a_share_of_the_machines_memory():
    assert bootstrap.default_budget_bytes("cpu") == int(bootstrap.DEFAULT_MEMORY_SHARE * machine_memory_bytes())


def test_the_budget_of_a_device_is_a_share_of_what_is_free(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 4000))
    assert bootstrap.default_budget_bytes("cuda:0") == 900


def test_the_runtime_follows_the_settings(settings, monkeypatch):
    settings.BLAZR_WORKER_ID, settings.BLAZR_PRELOAD = "w-1", ("a", "b")
    settings.BLAZR_DEVICE, settings.BLAZR_MEMORY_BUDGET = "cpu", 1 << 30
    made = []
    monkeypatch.setattr(bootstrap, "WorkerRuntime", lambda config, plan, **rest: made.append(config))
    bootstrap.make_runtime()
    (config,) = made
    assert (config.worker_id, config.device, config.preload) == ("w-1", "cpu", ("a", "b"))
    assert (config.budget_bytes, config.min_residence_s) == (1 << 30, bootstrap.MIN_RESIDENCE_S)
    assert config.ends_stuck_process


def test_parts_beside_the_requests_stop_at_the_same_time():
    gate = threading.Barrier(3, timeout=10)
    calls = []

    class Part:
        def wake(self) -> None:
            calls.append("wake")

        def stop(self, timeout_s: float) -> None:
            gate.wait()
            calls.append(timeout_s)

    together = bootstrap._Together([Part(), Part(), Part()])
    together.wake()
    together.stop(4)
    assert calls == ["wake"] * 3 + [4] * 3


@pytest.fixture(autouse=True)
def native_choice():
    """The choice of kernels is the process's; give it back."""
    from inference.modelling.backends.native import library

    before = library._selected
    yield
    library._selected = before
    library.is_available.cache_clear()
