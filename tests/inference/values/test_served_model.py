"""ServedModel: which plans a model can serve."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inference.errors import BlazrError, InvalidRequest, InvalidTokenIds, PromptTooLong, UnsupportedFeature
from inference.values.plan import GenerationPlan
from inference.values.sampling_params import SamplingParams
from inference.values.served_model import ServedModel
from inference.values.tokenizer_spec import TokenizerSpec

WITHOUT_TOKENIZER = ServedModel("id", "demo", 1, 100, 8, TokenizerSpec("none", 100), "v", hidden_size=16)
WITH_TOKENIZER = replace(WITHOUT_TOKENIZER, tokenizer=TokenizerSpec("huggingface", 100, path="x"))


def plan(*prompts: dict, endpoint: str = "completion", **options: object) -> GenerationPlan:
    values = {"params": SamplingParams(), "model": "demo"} | options
    return GenerationPlan(endpoint=endpoint, prompts=prompts, **values)


EMBEDDING = {"pooling": None, "dimensions": 32, "normalize": True, "encoding_format": "float"}


@pytest.mark.parametrize(
    ("model", "asked", "error", "param"),
    [
        (WITHOUT_TOKENIZER, plan({"text": "a"}), UnsupportedFeature, "prompt"),
        (WITHOUT_TOKENIZER, plan({"messages": []}), UnsupportedFeature, "messages"),
        (WITH_TOKENIZER, plan({"messages": []}), UnsupportedFeature, "messages"),
        (WITH_TOKENIZER, plan({"token_ids": [100]}), InvalidTokenIds, "prompt"),
        (WITH_TOKENIZER, plan({"token_ids": [-1]}), InvalidTokenIds, "prompt"),
        (WITH_TOKENIZER, plan({"token_ids": [1] * 9}), PromptTooLong, "prompt"),
        (
            WITH_TOKENIZER,
            plan({"inputs": [{"token_ids": [1] * 9}]}, endpoint="embedding", embedding=EMBEDDING),
            PromptTooLong,
            "input",
        ),
        (
            WITH_TOKENIZER,
            plan({"inputs": [{"text": "a"}]}, endpoint="embedding", embedding=EMBEDDING),
            InvalidRequest,
            "dimensions",
        ),
        (
            WITH_TOKENIZER,
            plan({"text": "a"}, params=SamplingParams(stop_token_ids=(100,))),
            InvalidTokenIds,
            "stop_token_ids",
        ),
        (
            WITH_TOKENIZER,
            plan({"text": "a"}, params=SamplingParams(logit_bias={100: 1.0})),
            InvalidTokenIds,
            "logit_bias",
        ),
        (WITHOUT_TOKENIZER, plan({"token_ids": [1]}, params=SamplingParams(stop=("x",))), UnsupportedFeature, "stop"),
    ],
)
def test_plans_that_a_model_cannot_serve(
    model: ServedModel, asked: GenerationPlan, error: type[BlazrError], param: str
) -> None:
    with pytest.raises(error) as caught:
        model.check(asked)
    assert caught.value.param == param


def test_the_first_wrong_id_is_named() -> None:
    with pytest.raises(InvalidTokenIds, match="token id 250; the model 'demo' has the ids 0 to 99"):
        WITH_TOKENIZER.check_token_ids([1, 250, 300], param="prompt")


def test_plans_that_fit_pass() -> None:
    WITH_TOKENIZER.check(plan({"text": "a"}, {"token_ids": [0, 99]}, params=SamplingParams(stop=("x",))))
    WITHOUT_TOKENIZER.check(plan({"token_ids": [1] * 8}))
