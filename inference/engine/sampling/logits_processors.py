"""Define the logits processors, which change the logits of a batch before tokens are chosen.

A processor changes only the entries that its requests name, so that its cost doesn't depend on the vocabulary.

Shape letters: n rows, V vocabulary, e entries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from inference.engine.device import upload
from inference.engine.sampling.row_ops import entries
from inference.engine.sampling.sampling_state import SamplingState

_LEAST_REPETITION_PENALTY = 1e-6
"""A smaller one would make infinite logits; at this one a repeated token already outweighs all others."""


class LogitsProcessor(Protocol):
    """Interface of logits processors."""

    def apply(self, logits: torch.Tensor, rows: Sequence[SamplingState]) -> None:
        """Change (n, V) float32 ``logits`` in place, each row by its own state only."""


class InvalidTokens:
    """Mask the ids without a token in the vocabulary."""

    def __init__(self, token_ids: Sequence[int], device: torch.device) -> None:
        self.token_ids = torch.tensor(list(token_ids), dtype=torch.int64, device=device)

    def apply(self, logits: torch.Tensor, rows: Sequence[SamplingState]) -> None:
        if self.token_ids.numel():
            logits.index_fill_(1, self.token_ids, -math.inf)


class MinTokens:
    """Mask stop ids until a sequence has ``min_tokens`` output tokens, unless its grammar allows no other token."""

    def apply(self, logits: torch.Tensor, rows: Sequence[SamplingState]) -> None:
        chosen = [
            (at, row.stop_ids)
            for at, row in enumerate(rows)
            if row.is_below_min_tokens and len(row.stop_ids) and not (row.constraint and row.constraint.must_end)
        ]
        if chosen:
            logits[entries(chosen, logits.device)] = -math.inf


class LogitBias:
    """Add each request's ``logit_bias``."""

    def apply(self, logits: torch.Tensor, rows: Sequence[SamplingState]) -> None:
        chosen = [(at, row) for at, row in enumerate(rows) if len(row.bias_ids)]
        if chosen:
            places = entries([(at, row.bias_ids) for at, row in chosen], logits.device)
            biases = upload(np.concatenate([row.biases for _, row in chosen]), logits.device)
            logits[places] += biases


class Penalties:
    """Apply repetition (over prompt and output), frequency and presence (over the output) penalties.

    Source: vLLM's definitions, https://docs.vllm.ai/en/latest/api/vllm/sampling_params/; presence and frequency as
    in OpenAI's API, https://platform.openai.com/docs/api-reference/chat/create.
    """

    def apply(self, logits: torch.Tensor, rows: Sequence[SamplingState]) -> None:
        chosen = [(at, row, row.counts) for at, row in enumerate(rows) if row.counts is not None]
        if not chosen:
            return
        device = logits.device
        places = entries([(at, counts.ids) for at, _, counts in chosen], device)
        lengths = [len(counts.ids) for _, _, counts in chosen]

        def expand(values: list[float]) -> torch.Tensor:
            return upload(np.repeat(np.array(values, dtype=np.float32), lengths), device)

        repetition = expand([max(row.params.repetition_penalty, _LEAST_REPETITION_PENALTY) for _, row, _ in chosen])
        frequency = expand([row.params.frequency_penalty for _, row, _ in chosen])
        presence = expand([row.params.presence_penalty for _, row, _ in chosen])
        counts = upload(np.concatenate([counts.counts for _, _, counts in chosen]), device)

        values = logits[places]
        values = torch.where(values > 0, values / repetition, values * repetition)
        values -= frequency * counts + presence * (counts > 0)
        logits[places] = values
