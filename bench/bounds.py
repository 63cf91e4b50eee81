"""What a step must read and a prefill must multiply, from the checkpoint's headers and its spec: no torch."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path

from inference.modelling.spec import ModelSpec
from inference.modelling.specs.layers import MoESpec
from models_registry.detection.inspection import inspect_checkpoint

_EXPERT = re.compile(r"experts?\.(\d+\.|gate_up_proj|down_proj)|block_sparse_moe\.(input|output)_linear")
_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|embeddings?)\.weight$")
_HEAD = re.compile(r"(^|\.)lm_head\.weight$")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of one checkpoint.

    Attributes:
        vocab_size: Rows of the embedding.
        dense: Elements of matrices that every token multiplies, head included, experts not.
        head: Elements of the head among them.
        experts: Elements of all routed experts.
        routed: (experts, experts per token), (0, 0) without any.
        others: Elements of everything else that a step reads: norms, biases, convolutions.
        token_state: Bytes that one token leaves in paged states.
        fixed_state: Bytes of the recurrent states of a sequence.
    """

    vocab_size: int
    dense: int
    head: int
    experts: int
    routed: tuple[int, int]
    others: int
    token_state: int
    fixed_state: int

    def elements_read(self, batch: int) -> float:
        """Matrix elements of a decoding step: of the experts those that some row chose, if rows choose at random."""
        count, chosen = self.routed
        share = 1 - (1 - chosen / count) ** batch if count else 0.0
        return self.dense + self.experts * share

    def bytes_read(self, batch: int, context: float, bits: float) -> float:
        """Bytes that a decoding step must read: weights as stored, states, keys and values."""
        states = batch * (self.fixed_state + context * self.token_state)
        return self.elements_read(batch) * bits / 8 + 2 * self.others + states

    def prefill_operations(self, tokens: int) -> float:
        """Operations of the products with weights; the head multiplies one row."""
        count, chosen = self.routed
        per_token = self.dense - self.head + (self.experts * chosen / count if count else 0)
        return 2.0 * (per_token * tokens + self.head)

    @property
    def matrix_elements(self) -> int:
        """Elements that a quantiser stores in fewer bits."""
        return self.dense + self.experts


def read_sizes(directory: Path) -> Sizes:
    """Sizes of a checkpoint of ``bench.weights``."""
    inspection = inspect_checkpoint(directory)
    spec = inspection.spec
    assert isinstance(spec, ModelSpec)
    shapes: dict[str, list[int]] = {}
    for name in inspection.weight_files:
        shapes |= read_header(inspection.directory / name)
    dense = experts = others = head = embedding = 0
    for name, shape in shapes.items():
        size = prod(shape)
        if _EMBEDDING.search(name):
            embedding = size
        elif _EXPERT.search(name) and "shared" not in name:
            experts += size
        elif len(shape) >= 2 and "conv1d" not in name:
            dense += size
            head += size if _HEAD.search(name) else 0
        else:
            others += size
    if not head:  # tied: the embedding is the head
        head = embedding
        dense += head
    routed = (0, 0)
    token_state = fixed_state = 0
    for layer in spec.layers:
        if isinstance(layer.channel_mixer, MoESpec):
            routed = (layer.channel_mixer.num_experts, layer.channel_mixer.top_k)
        for part in layer.state():
            if part.per == "token":
                token_state += part.size_bytes("bfloat16")
            else:
                fixed_state += part.size_bytes("bfloat16")
    return Sizes(spec.vocab_size, dense, head, experts, routed, others, token_state, fixed_state)


def read_header(file: Path) -> dict[str, list[int]]:
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(length))
    return {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
