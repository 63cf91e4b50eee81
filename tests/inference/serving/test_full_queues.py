"""Refusals of a full queue are repeated to the caller for a moment, and to nobody else."""

from __future__ import annotations

import dataclasses

import pytest

from inference.records import metrics
from inference.serving import full_queues as module
from inference.serving.full_queues import FullQueues
from inference.transport.open_requests import RETRY_AFTER_S, RETRY_JITTER_S, NoPlace
from inference.values.principal import LOCAL

OTHER = dataclasses.replace(LOCAL, tenant="key:2", kind="key")


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 10.0

        def monotonic(self):
            return self.now

    found = Clock()
    monkeypatch.setattr(module, "time", found)
    return found


@pytest.fixture
def queues(clock):
    found = FullQueues()
    found.record("alias", LOCAL, NoPlace("full.", retry_after_s=3), served_name="tiny")
    return found


def check(queues, model="alias", principal=LOCAL):
    queues.check(model, principal, endpoint="chat")


def test_the_caller_is_refused_again_for_a_moment_and_counted(queues, clock):
    count = metrics.REQUESTS.labels("tiny", "chat", "queue_full")
    before = count._value.get()
    for _ in range(3):
        with pytest.raises(NoPlace, match="full") as caught:
            check(queues)
        assert RETRY_AFTER_S <= caught.value.retry_after_s < RETRY_AFTER_S + RETRY_JITTER_S
    assert count._value.get() == before + 3
    clock.now += module.REMEMBERED_S + 0.01
    check(queues)


def test_other_callers_other_models_and_hostile_names_are_not_refused(queues):
    check(queues, principal=OTHER)
    for model in ("tiny", "", None, 1, ["alias"], {"alias": 1}):
        check(queues, model)


def test_an_end_of_a_request_is_asked_about_again(queues):
    for name in ("unknown", "alias"):  # the queue is the model's, an alias has none
        queues.forget(name)
    with pytest.raises(NoPlace):
        check(queues)
    queues.record("tiny", LOCAL, NoPlace("full."), served_name="tiny")
    queues.forget("tiny")
    for model in ("alias", "tiny"):
        check(queues, model)


def test_few_names_and_callers_are_remembered(queues, monkeypatch):
    monkeypatch.setattr(module, "MAX_CALLERS", 2)
    monkeypatch.setattr(module, "MAX_MODELS", 2)
    error = NoPlace("full.")
    for number in range(5):
        queues.record("a", dataclasses.replace(OTHER, tenant=f"key:{number}"), error, served_name="a")
        queues.record(f"b{number}", OTHER, error, served_name="b")
        assert len(queues._refusals) <= 2
        assert all(len(callers) <= 2 for callers in queues._refusals.values())
    with pytest.raises(NoPlace):
        check(queues, "b4", OTHER)


def test_the_times_to_retry_differ():
    error = NoPlace("full.")
    assert {error.again().retry_after_s for _ in range(200)} == set(
        range(RETRY_AFTER_S, RETRY_AFTER_S + RETRY_JITTER_S)
    )
