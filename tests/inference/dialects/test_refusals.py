"""Fields that aren't honoured: refused by name, unless they mean off; hints change nothing."""

from __future__ import annotations

import pytest

from inference.dialects.openai.requests import plan_from_body
from inference.dialects.refusals import HINTS, REFUSED_ANYWHERE, REFUSED_IN_CHAT, REFUSED_IN_COMPLETIONS
from tests.inference.dialects.openai.test_requests import CHAT, COMPLETION, refused


@pytest.mark.parametrize("name", sorted({**REFUSED_ANYWHERE, **REFUSED_IN_CHAT}))
def test_refused_fields_of_chat_pass_only_when_they_mean_off(name):
    rule = REFUSED_IN_CHAT.get(name) or REFUSED_ANYWHERE[name]
    plain = plan_from_body("chat", CHAT)
    for neutral in (*rule.neutral, None):
        assert plan_from_body("chat", {**CHAT, name: neutral}) == plain
    refused("chat", {**CHAT, name: {"on": "certainly"}}, name)


@pytest.mark.parametrize("name", sorted({**REFUSED_ANYWHERE, **REFUSED_IN_COMPLETIONS}))
def test_refused_fields_of_completions(name):
    refused("completion", {**COMPLETION, name: {"on": "certainly"}}, name)


def test_json_s_types_are_kept_apart_in_neutral_values():
    refused("chat", {**CHAT, "use_beam_search": 0}, "use_beam_search")
    refused("chat", {**CHAT, "mirostat": False}, "mirostat")


@pytest.mark.parametrize("name", sorted(HINTS))
def test_hints_change_nothing_but_are_checked(name):
    good = {"metadata": {"a": "b"}, "store": False, "service_tier": "auto"}.get(name, "somebody")
    assert plan_from_body("chat", {**CHAT, name: good}) == plan_from_body("chat", CHAT)
    refused("chat", {**CHAT, name: 7}, name)


def test_unknown_fields_are_refused_by_name():
    refused("chat", {**CHAT, "frobnicate": None}, "frobnicate")
    refused("completion", {**COMPLETION, "messages": []}, "messages")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("custom_logit_processor", "8004952e", id="CVE-2026-7304"),
        pytest.param("trust_remote_code", True, id="CVE-2026-27893"),
        pytest.param("chat_template", "{{ ''.__class__ }}", id="PYSEC-2026-2013"),
        pytest.param("n_discard", -1, id="CVE-2026-21869"),
        pytest.param("logits_processors", ["os.system"], id="CVE-2025-30165"),
    ],
)
def test_fields_by_which_other_servers_were_taken_over_do_not_exist(name, value):
    refused("chat", {**CHAT, name: value}, name)
    refused("completion", {**COMPLETION, name: value}, name)
