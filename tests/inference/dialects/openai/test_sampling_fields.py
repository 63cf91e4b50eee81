"""Fields of the further samplers in every API that samples: names, ranges, aliases, the way to SamplingParams."""

from __future__ import annotations

from typing import Any

import pytest

from inference.api.platform.infill import InfillRequestSerializer
from inference.dialects.openai.requests import plan_from_body
from inference.dialects.openai.sampling_fields import FURTHER_SAMPLERS, resolve_aliases
from inference.dialects.responses.serializers import ResponseRequestSerializer
from inference.errors import InvalidRequest
from inference.values.sampling_params import SamplingParams

VALUES: dict[str, Any] = {
    "typical_p": 0.9, "top_n_sigma": 1.5, "dynatemp_range": 0.5, "dynatemp_exponent": 2.0, "dry_multiplier": 0.8,
    "dry_base": 1.5, "dry_allowed_length": 3, "dry_penalty_last_n": 64, "dry_sequence_breakers": ["\n", "##"],
    "xtc_probability": 0.5, "xtc_threshold": 0.2,
}  # fmt: skip
MIROSTAT: dict[str, Any] = {"mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.2}
MESSAGES = [{"role": "user", "content": "Hi"}]


def sampling(api: str, **values: Any) -> SamplingParams:
    match api:
        case "chat":
            return plan_from_body("chat", {"model": "m", "messages": MESSAGES, **values}).params
        case "completion":
            return plan_from_body("completion", {"model": "m", "prompt": "x", **values}).params
        case "responses":
            return ResponseRequestSerializer.shared().read({"model": "m", "input": "x", **values}).plan().params
        case _:
            body = {"model": "m", "input_prefix": "x", "input_suffix": "y", **values}
            return InfillRequestSerializer.shared().plan(body).params


apis = pytest.mark.parametrize("api", ["chat", "completion", "responses", "infill"])


@apis
def test_every_sampler_reaches_the_parameters(api):
    for given in (VALUES, MIROSTAT):
        params = sampling(api, **given)
        for name, value in given.items():
            assert getattr(params, name) == (tuple(value) if isinstance(value, list) else value), name
    assert {*VALUES, *MIROSTAT} == set(FURTHER_SAMPLERS)


@apis
@pytest.mark.parametrize(
    ("name", "wrong"),
    [("typical_p", 2), ("mirostat", "2"), ("dry_base", 0.1), ("dry_sequence_breakers", "x"), ("xtc_threshold", -1),
     ("dynatemp_range", None)],
)  # fmt: skip
def test_wrong_values_are_refused_by_name(api, name, wrong):
    if wrong is None:  # counts as absent
        assert sampling(api, **{name: wrong}) == sampling(api)
        return
    with pytest.raises(InvalidRequest) as caught:
        sampling(api, **{name: wrong})
    assert (caught.value.param or "").split(".")[0] == name
    assert name in caught.value.message


@apis
def test_repeat_penalty_is_repetition_penalty(api):
    assert sampling(api, repeat_penalty=1.3).repetition_penalty == 1.3


def test_both_names_must_agree():
    assert sampling("chat", repeat_penalty=1.3, repetition_penalty=1.3).repetition_penalty == 1.3
    with pytest.raises(InvalidRequest, match="give one of them") as caught:
        sampling("chat", repeat_penalty=1.3, repetition_penalty=1.1)
    assert caught.value.param == "repeat_penalty"
    values = {"temperature": 1}
    resolve_aliases(values)
    assert values == {"temperature": 1}


def test_mirostat_says_what_it_excludes():
    with pytest.raises(InvalidRequest, match=r"top_p is 0.9, but mirostat 1 .* leave top_p out") as caught:
        sampling("chat", mirostat=1, top_p=0.9)
    assert caught.value.param == "top_p"
