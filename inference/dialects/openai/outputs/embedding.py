"""Format vectors for /v1/embeddings: https://platform.openai.com/docs/api-reference/embeddings/object."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from inference.errors import GenerationFailed, InvalidRequest
from inference.values.messages import GenerationEvent
from inference.values.output_builder import OutputBuilder
from inference.values.plan import EmbeddingOptions, GenerationPlan

Float32Array = npt.NDArray[np.float32]


@dataclass(slots=True)
class EmbeddingFormat:
    """Response format of embeddings; there are no chunks, as vectors aren't streamed."""

    plan: GenerationPlan
    builder: OutputBuilder
    request_id: str
    model: str

    def opening(self) -> Iterator[dict[str, Any]]:
        return iter(())

    def chunks(self, number: int, event: GenerationEvent) -> Iterator[dict[str, Any]]:
        return iter(())

    def plain_text(self, number: int, event: GenerationEvent) -> str | None:
        return None

    def usage_chunk(self) -> dict[str, Any]:
        return {"usage": self._usage()}

    def vectors(self) -> Float32Array:
        """Return the vectors as (inputs, dimensions), in the order of the inputs.

        Raises:
            GenerationFailed: A vector is missing.
            InvalidRequest: More dimensions are requested than the model has.
        """
        assert self.plan.embedding is not None
        rows: list[Float32Array] = []
        for given, found in zip(self.plan.prompts, self.builder.prompts, strict=True):
            for number in range(len(given["inputs"])):
                if number not in found.embeddings:
                    raise GenerationFailed("the worker ended the request before all vectors were computed.")
                rows.append(np.frombuffer(base64.b64decode(found.embeddings[number]), dtype="<f4"))
        return shaped(np.stack(rows), self.plan.embedding)

    def whole(self) -> dict[str, Any]:
        """Return the response with all vectors; slow for many long vectors, so call it in a thread."""
        assert self.plan.embedding is not None
        vectors = self.vectors()
        values: list[Any]
        if self.plan.embedding["encoding_format"] == "base64":
            values = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in vectors]
        else:
            values = vectors.tolist()
        return {
            "id": self.request_id,
            "object": "list",
            "model": self.model,
            "data": [{"object": "embedding", "index": index, "embedding": value} for index, value in enumerate(values)],
            "usage": self._usage(),
        }

    def _usage(self) -> dict[str, int]:
        return {"prompt_tokens": self.builder.prompt_tokens, "total_tokens": self.builder.prompt_tokens}


def shaped(vectors: Float32Array, options: EmbeddingOptions) -> Float32Array:
    """Return (n, h) cut to the requested dimensions, and normalised if requested; a zero vector stays zero.

    Raises:
        InvalidRequest: More dimensions are requested than the model has.
    """
    dimensions = options["dimensions"]
    if dimensions is not None and dimensions > vectors.shape[1]:
        raise InvalidRequest(
            f"dimensions is {dimensions}; an embedding of this model has {vectors.shape[1]}, ask for at most that.",
            param="dimensions",
        )
    cut = vectors[:, :dimensions]
    if not options["normalize"]:
        return cut
    lengths = np.linalg.norm(cut.astype(np.float64), axis=1, keepdims=True)
    normalised: Float32Array = np.divide(cut, lengths, out=np.zeros_like(cut), where=lengths > 0, casting="unsafe")
    return normalised
