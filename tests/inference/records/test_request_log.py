"""The request log: old records are removed, contents are logged only where they are asked for."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

from django.utils import timezone

from inference.models import UsageDay, UsageRecord
from inference.records import request_log
from inference.values.output_builder import OutputBuilder
from inference.values.output_format import OutputFormat
from inference.values.plan import GenerationPlan
from inference.values.sampling_params import SamplingParams
from tests.inference.records.test_usage import record, store


def test_old_requests_leave_the_log_and_the_sums_stay(db, writer, settings, monkeypatch):
    monkeypatch.setattr(request_log, "SWEEP_BATCH", 2)
    settings.BLAZR_REQUEST_LOG_DAYS = 10
    now = timezone.now()
    old = [record(f"old{number}", created_at=now - timedelta(days=11)) for number in range(5)]
    store(writer, *old, record("new", created_at=now - timedelta(days=9)))
    assert request_log.request_log_sweep() == 5
    assert UsageRecord.objects.get().request_id == "new"
    assert sum(UsageDay.objects.values_list("requests", flat=True)) == 6


def test_contents_are_logged_only_when_asked_for_and_cut(settings, monkeypatch):
    builder = OutputBuilder(GenerationPlan("completion", "tiny", ({"text": "\0 \ud800"},), SamplingParams()))
    builder.add(0, {"type": "delta", "text": "x" * 500})
    assert request_log.logged_contents(builder) == {}
    settings.BLAZR_REQUEST_LOG_CONTENTS = True
    monkeypatch.setattr("inference.records.request_log.MAX_CHARS", 100)
    contents = request_log.logged_contents(builder)
    assert contents["prompt"] == '[{"text": "\\u0000 \\ud800"}]'
    assert len(contents["output"]) == 100
    assert contents["output"].endswith("…")
    assert request_log.is_cut(contents["output"]) and not request_log.is_cut(json.dumps(["…"]))


def test_outputs_are_logged_as_they_were_read(settings):
    settings.BLAZR_REQUEST_LOG_CONTENTS = True
    output = OutputFormat(tools="hermes", reasoning="think", tool_names=("look",))
    builder = OutputBuilder(GenerationPlan("chat", "tiny", ({"messages": []},), SamplingParams(), output=output))
    call = '<tool_call>{"name": "look", "arguments": {"at": 1}}</tool_call>'
    builder.add(0, {"type": "delta", "text": f"<think>Hm.</think>So.{call}", "finish_reason": "stop"})
    (text,) = json.loads(request_log.logged_contents(builder)["output"])
    assert text == 'Hm.\nSo.\nlook({"at": 1})'


def test_only_choices_that_the_response_shows_are_logged(settings):
    settings.BLAZR_REQUEST_LOG_CONTENTS = True
    plan = GenerationPlan("completion", "tiny", ({"text": "a"},), SamplingParams(n=3, logprobs=0), keep=1)
    builder = OutputBuilder(plan)
    for choice, logprob in enumerate((-2.0, -1.0, -3.0)):
        builder.add(0, {"type": "delta", "choice": choice, "text": str(choice), "logprobs": [{"logprob": logprob}]})
    assert json.loads(request_log.logged_contents(builder)["output"]) == ["1"]


def test_what_was_asked_for_is_kept_so_that_it_can_be_replayed(settings, monkeypatch):
    settings.BLAZR_REQUEST_LOG_CONTENTS = True
    original = GenerationPlan("chat", "alias", ({"messages": []},), SamplingParams(max_tokens=3))
    resolved = replace(original, model="tiny", prompts=({"messages": [], "template_kwargs": {"tools": []}},))
    contents = request_log.logged_contents(OutputBuilder(resolved.with_seed(7)), original)
    assert contents["prompt"] == '[{"messages": []}]'
    restored = GenerationPlan.from_dict({**json.loads(contents["plan"]), "prompts": json.loads(contents["prompt"])})
    assert restored == original.with_seed(7)
    monkeypatch.setattr("inference.records.request_log.MAX_CHARS", 100)
    assert request_log.logged_contents(OutputBuilder(resolved), original)["plan"] == ""
