"""Make pooled vectors of a request's events: in the order of the inputs, cut, normalised."""

from __future__ import annotations

import base64

import numpy as np
import numpy.typing as npt

from inference.errors import GenerationFailed, InvalidRequest
from inference.values.output_builder import OutputBuilder
from inference.values.plan import EmbeddingOptions

Float32Array = npt.NDArray[np.float32]


def output_vectors(builder: OutputBuilder) -> Float32Array:
    """Return the vectors of a request as (inputs, dimensions), in the order of the inputs.

    Raises:
        GenerationFailed: A vector is missing.
        InvalidRequest: More dimensions are requested than the model has.
    """
    plan = builder.plan
    assert plan.embedding is not None
    rows: list[Float32Array] = []
    for given, found in zip(plan.prompts, builder.prompts, strict=True):
        for number in range(len(given["inputs"])):
            if number not in found.embeddings:
                raise GenerationFailed("the worker ended the request before all vectors were computed.")
            rows.append(np.frombuffer(base64.b64decode(found.embeddings[number]), dtype="<f4"))
    return shaped(np.stack(rows), plan.embedding)


def shaped(vectors: Float32Array, options: EmbeddingOptions) -> Float32Array:
    """Return (n, h) cut to the requested dimensions, and normalised if requested; a zero vector stays zero.

    Raises:
        InvalidRequest: Fewer dimensions than one are requested, or more than the model has.
    """
    dimensions = options["dimensions"]
    if dimensions is not None and not 1 <= dimensions <= vectors.shape[1]:
        raise InvalidRequest(
            f"dimensions is {dimensions}; an embedding of this model has {vectors.shape[1]}, ask for 1 to that many.",
            param="dimensions",
        )
    cut = vectors[:, :dimensions]
    if not options["normalize"]:
        return cut
    lengths = np.linalg.norm(cut.astype(np.float64), axis=1, keepdims=True)
    normalised: Float32Array = np.divide(cut, lengths, out=np.zeros_like(cut), where=lengths > 0, casting="unsafe")
    return normalised
