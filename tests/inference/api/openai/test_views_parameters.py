"""F36 and F55: every wrong parameter is a 400 that names it, and nothing is ignored. No server needed."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.api.platform.job_serializers import JobSubmissionSerializer
from inference.dialects.openai.requests import ChatRequestSerializer, CompletionRequestSerializer, plan_from_body
from inference.dialects.refusals import HINTS, REFUSED_ANYWHERE, REFUSED_IN_CHAT, REFUSED_IN_COMPLETIONS
from inference.errors import BlazrError, InvalidRequest
from inference.values.plan import GenerationPlan

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
COMPLETION = {"model": "m", "prompt": "Hi"}

INTEGERS = ("max_tokens", "n", "seed", "top_k", "min_tokens", "priority", "prompt_logprobs")
NUMBERS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
BOOLEANS = (
    "stream",
    "ignore_eos",
    "skip_special_tokens",
    "include_stop_str_in_output",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "add_special_tokens",
)


def refused(endpoint, body, param):
    with pytest.raises(InvalidRequest) as caught:
        plan_from_body(endpoint, body)
    assert caught.value.param is not None
    assert caught.value.param.split(".")[0] == param, caught.value.message
    assert caught.value.http_status == 400
    assert orjson.loads(orjson.dumps(caught.value.to_openai()))["error"]["message"]
    assert len(caught.value.message) < 400


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", ["1", 1.5, True, [1], {}, 1e308, 2**64, -(2**64), float("inf"), float("nan")])
def test_integers_refuse_other_values(name, value):
    for endpoint, body in (("chat", CHAT), ("completion", COMPLETION)):
        refused(endpoint, {**body, name: value}, name)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["1", True, [1.0], {}, 1e308, -1e308, 10**400, float("inf"), float("nan"), 1e9])
def test_numbers_refuse_other_values(name, value):
    for endpoint, body in (("chat", CHAT), ("completion", COMPLETION)):
        refused(endpoint, {**body, name: value}, name)


@pytest.mark.parametrize("name", BOOLEANS)
@pytest.mark.parametrize("value", ["true", 1, 0, [], 0.0])
def test_booleans_refuse_other_values(name, value):
    refused("chat", {**CHAT, name: value}, name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", -1),
        ("max_tokens", 2**31),
        ("n", 0),
        ("n", 10**9),
        ("n", -1),
        ("temperature", -0.01),
        ("temperature", 2.01),
        ("top_p", 0),
        ("top_p", 1.01),
        ("top_k", -2),
        ("min_p", -0.1),
        ("repetition_penalty", 0),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("seed", 2**63),
        ("min_tokens", -1),
        ("priority", 101),
        ("stop", ["x"] * 10**5),
        ("stop", [""]),
        ("stop", ["x" * 1025]),
        ("stop", [1]),
        ("stop", 1),
        ("stop", {"a": 1}),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", ["1"]),
        ("stop_token_ids", [True]),
        ("stop_token_ids", [1] * 257),
        ("stop_token_ids", 1),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"1": 101}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"1": "1"}),
        ("logit_bias", {str(item): 1 for item in range(1025)}),
        ("logit_bias", [1]),
        ("cache_salt", "x" * 257),
        ("cache_salt", 1),
        ("model", 1),
        ("model", ""),
        ("model", "x" * 257),
        ("stream_options", 1),
        ("stream_options", {"include_usage": True}),  # without stream
    ],
)
def test_values_out_of_range(name, value):
    refused("chat", {**CHAT, name: value}, name)
    refused("completion", {**COMPLETION, name: value}, name)


def test_min_tokens_above_max_tokens():
    refused("chat", {**CHAT, "max_tokens": 2, "min_tokens": 3}, "min_tokens")


@pytest.mark.parametrize("options", [{"include_obfuscation": True}, {"continuous_usage_stats": True}, {"other": 1}])
def test_stream_options_that_are_not_honoured(options):
    refused("chat", {**CHAT, "stream": True, "stream_options": options}, "stream_options")


@pytest.mark.parametrize(
    "prompt",
    [1, 1.5, True, {}, [], [[]], [1, "x"], ["x", 1], [[1], "x"], [["x"]], [[1.5]], [True], [-1], [2**31], ["x"] * 1025],
)
def test_prompts_of_the_wrong_kind(prompt):
    refused("completion", {**COMPLETION, "prompt": prompt}, "prompt")


@pytest.mark.parametrize(
    "messages",
    [
        [],
        {},
        "Hi",
        [1],
        [{}],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "assistant", "content": None}],
        [{"role": "robot", "content": "x"}],
        [{"role": 1, "content": "x"}],
        [{"role": "user", "content": 1}],
        [{"role": "user", "content": {"type": "text"}}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}],
        [{"role": "user", "content": [{"type": "text", "text": 1}]}],
        [{"role": "user", "content": [{"type": "text", "text": "x", "cache": 1}]}],
        [{"role": "user", "content": ["x"]}],
        [{"role": "user", "content": "x", "colour": "red"}],
        [{"role": "user", "content": "x", "name": 1}],
        [{"role": "user", "content": "x", "audio": {"id": "a"}}],
        [{"role": "user", "content": "x"}] * 4097,
    ],
)
def test_messages_of_the_wrong_kind(messages):
    refused("chat", {**CHAT, "messages": messages}, "messages")


def test_an_answer_can_be_sent_back_as_it_came():
    message = {
        "role": "assistant",
        "content": "Hello",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    plan = plan_from_body("chat", {**CHAT, "messages": [*CHAT["messages"], message, *CHAT["messages"]]})
    assert plan.prompts[0]["messages"][1] == {"role": "assistant", "content": "Hello"}


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


@pytest.mark.parametrize("body", [None, 1, "x", [], [CHAT]])
def test_a_body_must_be_an_object(body):
    with pytest.raises(InvalidRequest):
        plan_from_body("chat", body)


def test_missing_fields():
    refused("chat", {"messages": CHAT["messages"]}, "model")
    refused("chat", {"model": "m"}, "messages")
    refused("completion", {"model": "m"}, "prompt")


def test_null_means_absent():
    names = [*INTEGERS, *NUMBERS, *BOOLEANS, "stop", "logit_bias", "stream_options", "stop_token_ids", "cache_salt"]
    assert plan_from_body("chat", {**CHAT, **dict.fromkeys(names)}) == plan_from_body("chat", CHAT)


def test_top_logprobs_needs_logprobs():
    refused("chat", {**CHAT, "top_logprobs": 2}, "top_logprobs")
    assert plan_from_body("chat", {**CHAT, "logprobs": True, "top_logprobs": 2}).params.logprobs == 2
    assert plan_from_body("chat", {**CHAT, "logprobs": True}).params.logprobs == 0
    assert plan_from_body("chat", {**CHAT, "logprobs": False}).params.logprobs is None


def test_logprobs_are_a_number_for_completions_and_a_switch_for_chat():
    refused("completion", {**COMPLETION, "logprobs": True}, "logprobs")
    refused("chat", {**CHAT, "logprobs": 3}, "logprobs")


def test_best_of_generates_more_than_it_shows():
    plan = plan_from_body("completion", {**COMPLETION, "n": 2, "best_of": 3})
    assert (plan.params.n, plan.keep, plan.params.logprobs, plan.logprobs) == (3, 2, 0, None)
    assert plan_from_body("completion", {**COMPLETION, "n": 3, "best_of": 3}).keep is None
    refused("completion", {**COMPLETION, "n": 3, "best_of": 2}, "best_of")
    refused("completion", {**COMPLETION, "best_of": 2, "stream": True}, "best_of")


def test_a_suffix_goes_with_texts():
    plan = plan_from_body("completion", {**COMPLETION, "prompt": ["a", "b"], "suffix": "c"})
    assert [prompt["suffix"] for prompt in plan.prompts] == ["c", "c"]
    refused("completion", {**COMPLETION, "prompt": [1, 2], "suffix": "c"}, "suffix")
    refused("completion", {**COMPLETION, "suffix": "c", "echo": True}, "echo")


def test_template_switches_exclude_each_other():
    last = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "Sure, "}]
    body = {**CHAT, "messages": last, "continue_final_message": True}
    assert plan_from_body("chat", body).prompts[0]["add_generation_prompt"] is False
    refused("chat", {**body, "add_generation_prompt": True}, "continue_final_message")
    refused("chat", {**CHAT, "continue_final_message": True}, "continue_final_message")
    refused("chat", {**CHAT, "chat_template_kwargs": {"tools": []}}, "chat_template_kwargs")
    refused("chat", {**CHAT, "chat_template": "{{ messages }}"}, "chat_template")


def test_both_names_of_the_token_limit():
    refused("chat", {**CHAT, "max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens")
    assert plan_from_body("chat", {**CHAT, "max_tokens": 2, "max_completion_tokens": 2}).params.max_tokens == 2
    assert plan_from_body("chat", CHAT).params.max_tokens is None


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_chat_generates_at_least_one_token(name):
    refused("chat", {**CHAT, name: 0}, name)
    assert plan_from_body("chat", {**CHAT, name: 1}).params.max_tokens == 1


def test_choices_of_a_request_are_bounded():
    refused("completion", {**COMPLETION, "prompt": ["x"] * 1024, "n": 2}, "n")


def test_scoring_a_prompt_generates_nothing():
    plan = plan_from_body("completion", {**COMPLETION, "echo": True, "logprobs": 1, "max_tokens": 0})
    assert (plan.params.max_tokens, plan.params.prompt_logprobs, plan.echo) == (0, 1, True)


def test_long_token_prompts_are_checked_quickly():
    """Against reading them, which takes as long: one check at a time would take ten times that."""
    import time

    ids = list(range(100_000)) * 5
    text = json.dumps(ids)
    started = time.process_time()
    json.loads(text)
    reading_s = time.process_time() - started
    started = time.process_time()
    plan_from_body("completion", {**COMPLETION, "prompt": ids})
    assert time.process_time() - started < 6 * reading_s


def test_a_plan_survives_storage():
    body = {
        **CHAT,
        "n": 2,
        "seed": 7,
        "logprobs": True,
        "logit_bias": {"5": 1.5},
        "stop": ["a", "b"],
        "cache_salt": "s",
        "chat_template_kwargs": {"x": [1, None]},
    }
    plan = plan_from_body("chat", body)
    assert GenerationPlan.from_dict(orjson.loads(orjson.dumps(plan.to_dict()))) == plan


def test_no_salt_of_one_tenant_is_that_of_another():
    salts = [None, "key:1", "key:1\n", "\nkey:1", "key:1\ns", "s"]
    found = []
    for tenant in ("", "key:1", "key:11"):
        for salt in salts:
            plan = plan_from_body("chat", {**CHAT, "cache_salt": salt})
            message = plan.message(0, request_id="r", web_id="w", checkpoint_id="c", deadline=0.0, tenant=tenant)
            found.append(message.get("cache_salt", ""))
    assert len(set(found)) == len(found)
    assert found[0] == "", "callers without a key share what has no salt, with the command line as well"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = sorted(
    set(CompletionRequestSerializer().fields) | set(ChatRequestSerializer().fields) | set(HINTS) | set(REFUSED_ANYWHERE)
)


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4), st.sampled_from(["chat", "completion"]))
def test_any_body_gives_a_plan_or_a_clear_refusal(members, endpoint):
    """Never another exception, whatever the values are."""
    body = {**(CHAT if endpoint == "chat" else COMPLETION), **members}
    try:
        plan = plan_from_body(endpoint, body)
    except BlazrError as error:
        assert error.http_status == 400
        assert error.message
    else:
        assert GenerationPlan.from_dict(plan.to_dict()) == plan


@settings(max_examples=100, deadline=None)
@given(JSON)
def test_any_submission_is_refused_or_parsed(body):
    try:
        JobSubmissionSerializer.shared().parse(body)
    except BlazrError as error:
        assert error.http_status == 400
