"""Every wrong parameter is a 400 that names it, and nothing is ignored. No server needed."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.api.platform.job_serializers import JobSubmissionSerializer
from inference.dialects.openai.requests import ChatRequestSerializer, CompletionRequestSerializer, plan_from_body
from inference.dialects.refusals import HINTS, REFUSED_ANYWHERE
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
            message = plan.message(0, request_id="r", web_id="w", checkpoint_id="c", deadline=0.0, owner=tenant)
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
