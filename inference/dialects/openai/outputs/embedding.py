"""Format vectors for /v1/embeddings: https://platform.openai.com/docs/api-reference/embeddings/object."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from inference.text.vectors import Float32Array, output_vectors
from inference.values.messages import GenerationEvent
from inference.values.output_builder import OutputBuilder
from inference.values.plan import GenerationPlan


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
        """Return the vectors as (inputs, dimensions); see ``output_vectors``."""
        return output_vectors(self.builder)

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
