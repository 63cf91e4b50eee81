"""docs/responses.md and docs/messages.md against the code: parameters, events; refusals are in the reference."""

from __future__ import annotations

import re

from inference.dialects.anthropic import serializers as anthropic
from inference.dialects.responses import serializers as responses
from tests.test_docs import ROOT, first_cells, section

MESSAGES = (ROOT / "docs" / "messages.md").read_text()
RESPONSES = (ROOT / "docs" / "responses.md").read_text()


def test_parameters_of_responses():
    parameters = section(RESPONSES, "Parameters")
    assert first_cells(parameters) == set(responses.ResponseRequestSerializer().fields)
    counted = re.search(r"such a prompt: takes (.*) \|", RESPONSES)[1]
    assert set(re.findall(r"`(\w+)`", counted)) == set(responses.InputTokensRequestSerializer().fields)


def test_every_event_of_responses_is_made():
    source = (ROOT / "inference" / "dialects" / "responses" / "events.py").read_text()
    named = set(re.findall(r"`(response\.[a-z_.]+)`", section(RESPONSES, "Events")))
    finals = {"response.completed", "response.incomplete", "response.failed", "response.cancelled"}
    for name in named - finals:
        assert f'"{name}"' in source, name


def test_parameters_of_messages():
    parameters = section(MESSAGES, "Parameters")
    assert first_cells(parameters) == set(anthropic.MessageRequestSerializer().fields)
    counted = parameters.split("`count_tokens` takes")[1].split("Everything else")[0]
    assert set(re.findall(r"`(\w+)`", counted)) == set(anthropic.CountTokensRequestSerializer().fields)


def test_every_event_of_messages_is_made():
    source = (ROOT / "inference" / "dialects" / "anthropic" / "events.py").read_text()
    listed = section(MESSAGES, "Events").split("An error after")[0]
    for name in re.findall(r"`((?:message|content_block)_\w+|\w+_delta|ping)`", listed):
        assert f'"{name}"' in source, name
