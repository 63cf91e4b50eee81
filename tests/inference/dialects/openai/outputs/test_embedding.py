"""Vectors of /v1/embeddings: cut, normalised, complete."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from inference.dialects.openai.embeddings import EmbeddingRequestSerializer
from inference.dialects.openai.outputs.formats import output_formatter
from inference.errors import GenerationFailed
from inference.values.output_builder import OutputBuilder
from tests.inference.dialects.openai.outputs.builders import event


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_all_vectors_in_the_order_of_the_inputs(encoding):
    plan = EmbeddingRequestSerializer.shared().plan({"model": "m", "input": ["a", "b"], "encoding_format": encoding})
    builder = OutputBuilder(plan)
    builder.add(0, event("start", prompt_tokens=4))
    found = output_formatter(plan, builder, request_id="e", created=0, model="m")
    for number in (1, 0):
        with pytest.raises(GenerationFailed):
            found.whole()
        vector = base64.b64encode(np.array([number, 1.0 - number], dtype="<f4").tobytes()).decode()
        builder.add(0, event("delta", choice=number, embedding=vector))
    whole = found.whole()
    values = [item["embedding"] for item in whole["data"]]
    if encoding == "base64":
        values = [np.frombuffer(base64.b64decode(value), dtype="<f4").tolist() for value in values]
    assert values == [[0.0, 1.0], [1.0, 0.0]]
    assert whole["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
