"""Bodies of /v1/embeddings: inputs in messages of bounded size, options, what is refused."""

from __future__ import annotations

import pytest

from inference.dialects.openai.embeddings import INPUTS_PER_MESSAGE, EmbeddingRequestSerializer
from inference.errors import InvalidRequest
from inference.values.plan import GenerationPlan


def plan(**values) -> GenerationPlan:
    return EmbeddingRequestSerializer.shared().plan({"model": "m", "input": "a"} | values)


def test_inputs_go_into_messages_of_bounded_size():
    texts = [f"{number}" for number in range(INPUTS_PER_MESSAGE + 1)]
    found = plan(input=texts)
    assert [len(prompt["inputs"]) for prompt in found.prompts] == [INPUTS_PER_MESSAGE, 1]
    assert [item["text"] for prompt in found.prompts for item in prompt["inputs"]] == texts
    assert plan(input=[1, 2]).prompts[0]["inputs"][0]["token_ids"] == [1, 2]
    assert found.params.max_tokens == 0


def test_options_reach_the_plan():
    found = plan(dimensions=8, encoding_format="base64").embedding
    assert found is not None
    assert (found["dimensions"], found["encoding_format"], found["pooling"]) == (8, "base64", None)


@pytest.mark.parametrize(
    ("values", "param"),
    [({"input": []}, "input"), ({"input": [[]]}, "input"), ({"input": ["a", 3]}, "input"),
     ({"dimensions": 0}, "dimensions"),
     ({"encoding_format": "hex"}, "encoding_format"), ({"stream": True}, "stream"), ({"colour": 1}, "colour")],
)  # fmt: skip
def test_what_is_wrong_is_named(values, param):
    with pytest.raises(InvalidRequest) as caught:
        plan(**values)
    assert caught.value.param == param
