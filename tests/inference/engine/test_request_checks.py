"""RequestChecks: what the engine refuses, and where a request ends."""

from __future__ import annotations

import numpy as np
import pytest

from inference.engine.config import EngineConfig
from inference.engine.request import EngineRequest, ImageSpan
from inference.engine.request_checks import RequestChecks
from inference.errors import InvalidRequest, InvalidSamplingParams, InvalidTokenIds, OutOfCacheBlocks, PromptTooLong
from inference.values.sampling_params import SamplingParams
from tests.inference.engine.fakes import make_spec, request

VOCAB = 50


def checks(num_blocks=65) -> RequestChecks:
    return RequestChecks(make_spec("paged", VOCAB), EngineConfig(64, num_blocks, 2, 4))


@pytest.mark.parametrize("max_tokens", [1, 30, 62])
def test_a_request_ends_after_the_tokens_that_it_asks_for(max_tokens):
    assert checks().check(request("r", [1, 2], max_tokens=max_tokens)) == max_tokens


def test_a_request_that_draws_nothing_needs_no_seed():
    assert checks().check(request("r", [1], max_tokens=1, temperature=1e-6, seed=None)) == 1
    with pytest.raises(InvalidSamplingParams, match="seed"):
        checks().check(request("r", [1], max_tokens=1, temperature=1e-5, seed=None))


def test_without_max_tokens_a_request_ends_where_the_model_or_the_state_does():
    assert checks().check(request("r", [1, 2], max_tokens=None)) == 62
    # Five blocks of four tokens, and a last token that is never computed.
    assert checks(num_blocks=6).check(request("r", [1, 2], max_tokens=None)) == 19


@pytest.mark.parametrize(
    ("prompt", "values", "error", "param"),
    [
        ([], {}, InvalidTokenIds, "prompt"),
        ([VOCAB], {}, InvalidTokenIds, "prompt"),
        ([-1], {}, InvalidTokenIds, "prompt"),
        ([1 << 70], {}, InvalidTokenIds, "prompt"),
        ([1], {"prior": [VOCAB]}, InvalidTokenIds, "prior_output_token_ids"),
        ([1], {"stop_token_ids": (VOCAB,)}, InvalidTokenIds, "stop_token_ids"),
        ([1], {"logit_bias": {VOCAB: 1.0}}, InvalidTokenIds, "logit_bias"),
        ([1], {"temperature": 1.0, "seed": None}, InvalidSamplingParams, "seed"),
        ([1], {"n": 2, "temperature": 1.0}, InvalidSamplingParams, "n"),
        ([1] * 65, {}, PromptTooLong, "prompt"),
        ([1] * 60, {"max_tokens": 5}, PromptTooLong, "max_tokens"),
        ([1], {"max_tokens": 3, "prior": [1, 2, 3, 4]}, InvalidRequest, "prior_output_token_ids"),
    ],
)
def test_refusals_name_the_parameter(prompt, values, error, param):
    with pytest.raises(error) as caught:
        checks().check(request("r", prompt, **values))
    assert caught.value.param == param


def test_min_tokens_has_to_fit_behind_the_prompt():
    with pytest.raises(InvalidSamplingParams, match="only 19 fit"):
        checks(num_blocks=6).check(request("r", [1, 2], max_tokens=None, min_tokens=20))


def test_a_request_that_never_fits_is_refused():
    with pytest.raises(OutOfCacheBlocks, match="the server has 5"):
        checks(num_blocks=6).check(request("r", [1] * 30, max_tokens=20))


def test_pooling_generates_nothing():
    source = EngineRequest("r", (1, 2), SamplingParams(max_tokens=1, seed=0), pooling="mean")
    with pytest.raises(InvalidSamplingParams) as caught:
        checks().check(source)
    assert caught.value.param == "max_tokens"


@pytest.mark.parametrize(
    ("spans", "values", "message"),
    [
        ([(1, 2)], {"returns_state": True}, "a saved state holds no images"),
        ([(1, 2), (2, 2)], {}, "an image takes the tokens 2 to 4, which aren't its own"),
        ([(4, 2)], {}, "an image takes the tokens 4 to 6"),
        ([(1, 0)], {}, "an image takes the tokens 1 to 1"),
    ],
)
def test_images_have_tokens_of_their_own(spans, values, message):
    pixels = np.zeros((1, 1, 3), dtype=np.uint8)
    images = tuple(ImageSpan(start, count, b"a", pixels) for start, count in spans)
    source = EngineRequest("r", (1, 2, 3, 4, 5), SamplingParams(max_tokens=0, temperature=0.0), images=images, **values)
    found = RequestChecks(make_spec("paged", VOCAB), EngineConfig(64, 65, 2, 4), has_vision=True)
    with pytest.raises(InvalidRequest, match=message):
        found.check(source)


def test_a_model_without_eyes_takes_no_images():
    images = (ImageSpan(1, 2, b"a", np.zeros((1, 1, 3), dtype=np.uint8)),)
    source = EngineRequest("r", (1, 2, 3, 4, 5), SamplingParams(max_tokens=0, temperature=0.0), images=images)
    with pytest.raises(InvalidRequest, match="the model reads text only; leave the images out"):
        checks().check(source)
