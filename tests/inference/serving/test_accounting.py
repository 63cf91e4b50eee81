"""What a generation reports: metrics per token and at its end, limits, a usage record, a log line."""

from __future__ import annotations

import json
import logging

import pytest

from inference.access.admission import FREE
from inference.records import metrics
from inference.serving.accounting import Accounting
from inference.values.output_builder import OutputBuilder
from inference.values.plan import GenerationPlan
from inference.values.principal import LOCAL
from inference.values.sampling_params import SamplingParams

LABELS = ("accounted", "chat", "completed")


@pytest.fixture
def accounting():
    return Accounting(
        request_id="chatcmpl-1", principal=LOCAL, model="accounted", endpoint="chat", admission=FREE, trace=None
    )


def builder(num_tokens):
    found = OutputBuilder(GenerationPlan("chat", "accounted", ({"token_ids": [1]},), SamplingParams()))
    head = {"request_id": "r", "attempt": 0}
    if num_tokens:
        found.add(0, {**head, "index": 0, "type": "start", "prompt_tokens": 7})
        found.add(0, {**head, "index": 1, "type": "delta", "token_ids": [1] * num_tokens, "text": "secret"})
        found.add(0, {**head, "index": 2, "type": "done", "usage": {"cached_tokens": 3}})
    return found


def value(metric, *labels):
    return metric.labels(*labels)._value.get()


def of_requests(caplog) -> list[logging.LogRecord]:
    """What the log of requests has; the heartbeat of an earlier test's web process may complain meanwhile."""
    return [record for record in caplog.records if record.name == "inference.records.request_log"]


def test_tokens_times_and_outcome_are_reported_once(accounting, usages, settings, caplog):
    settings.BLAZR_LOG_REQUESTS = True
    caplog.set_level(logging.INFO, logger="inference.records.request_log")
    before = value(metrics.REQUESTS, *LABELS), value(metrics.GENERATED_TOKENS, "accounted")
    assert value(metrics.ACTIVE, "accounted") == 1
    accounting.start()
    accounting.count_tokens(0, 1)
    accounting.count_tokens(0, 4)
    accounting.finish("completed", builder(5))
    assert value(metrics.ACTIVE, "accounted") == 0
    assert value(metrics.REQUESTS, *LABELS) == before[0] + 1
    assert value(metrics.GENERATED_TOKENS, "accounted") == before[1] + 5
    (usage,) = usages.records
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (7, 3, 5)
    assert usage.queue_s + usage.engine_s == pytest.approx(usage.duration_s)
    assert 0 <= usage.ttft_s <= usage.duration_s
    assert (usage.cache_outcome, usage.requests) == ("", 1)
    (record,) = of_requests(caplog)
    assert record.facts["completion_tokens"] == 5
    assert "secret" not in record.getMessage()


def test_a_request_that_never_started_has_waited_all_the_time_and_leaves_no_usage_record(
    accounting, usages, settings, caplog
):
    settings.BLAZR_LOG_REQUESTS = True
    caplog.set_level(logging.INFO, logger="inference.records.request_log")
    accounting.finish("cancelled", builder(0))
    assert usages.records == []
    (record,) = of_requests(caplog)
    facts = record.facts
    assert (facts["outcome"], facts["queue_s"]) == ("cancelled", facts["duration_s"])


@pytest.mark.parametrize(
    ("times", "mean_s"),
    [
        ([(0.0, 0, 1)], None),
        ([(0.0, 0, 1), (1.0, 0, 1), (4.0, 0, 2)], 4 / 3),
        ([(0.0, 0, 1), (0.5, 1, 1), (2.0, 0, 1), (2.5, 1, 1)], 2.0),
    ],
    ids=["one delivery", "two tokens at once", "two choices beside each other"],
)
def test_the_mean_time_between_tokens_is_that_of_each_choice(accounting, usages, monkeypatch, times, mean_s):
    for at, choice, num_tokens in times:
        monkeypatch.setattr("inference.serving.accounting.time.monotonic", lambda at=at: 1e6 + at)
        accounting.count_tokens(0, num_tokens, choice)
    accounting.finish("completed", builder(4))
    assert usages.records[0].itl_s == (None if mean_s is None else pytest.approx(mean_s))


def test_phases_add_up_to_the_request_if_its_start_is_told_behind_the_prompt(accounting, usages, monkeypatch):
    output = builder(4)
    times = {"queue_s": 0.5, "slot_s": 0.5, "ttft_s": 3.0, "duration_s": 4.0, "waits": {"prepare": 0.5}}
    output.prompts[0].usage = {**output.prompts[0].usage, **times}
    received_at = accounting._arrived + 0.25
    for call, after_s in ((accounting.start, 3.0), (accounting.end, 4.0)):  # log-probabilities of the prompt
        monkeypatch.setattr("inference.serving.accounting.time.monotonic", lambda at=received_at + after_s: at)
        call()
    accounting.finish("completed", output)
    seconds = json.loads(usages.records[0].phases)["seconds"]
    assert seconds == pytest.approx({"queue": 0.25, "prepare": 0.5, "slot": 0.5, "prefill": 2.0, "decode": 1.0})
    assert sum(seconds.values()) == pytest.approx(usages.records[0].duration_s)


@pytest.mark.parametrize(
    ("outcome", "is_recorded"),
    [("model_load_failed", True), ("engine_dead", True), ("queue_full", False), ("context_length_exceeded", False)],
)
def test_requests_that_the_server_failed_are_recorded_without_tokens(accounting, usages, outcome, is_recorded):
    accounting.finish(outcome, builder(0))
    assert [(item.outcome, item.requests) for item in usages.records] == ([(outcome, 0)] if is_recorded else [])
