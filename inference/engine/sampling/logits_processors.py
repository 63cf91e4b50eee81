"""Logits processors: what changes logits before a token is chosen, one class each, batch-wise.

A processor gets the logits of all sampled rows and changes them in place. It touches only the entries that its
requests name, so its cost follows the number of such entries and not the vocabulary.

Shape letters: n rows, V vocabulary, e entries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from inference.engine.device import upload
from inference.engine.sampling.entries import entries
from inference.engine.sampling.sampling_state import SamplingState

_LEAST_REPETITION_PENALTY = 1e-6
"""A smaller one would make infinite logits; at this one a repeated token already outweighs all others."""


class LogitsProcessor(Protocol):
    """Contract of the classes below."""

    def apply(self, logits: torch.Tensor, rows: Sequence[SamplingState]) -> None:
        """Change (n, V) float32 ``logits`` in place; row i belongs to ``rows[i]``. Every row stands for itself."""
        ...


class InvalidTokens:
    """Masks the ids that the vocabulary lacks.

    Args:
        token_ids: Those ids.
    """

    def __init__(self, token_ids: Sequence[int], device: torch.device) -> None:
        self.token_ids = torch.tensor(list(token_ids), dtype=torch.int64, device=device)

    def apply(self, logits: torch.Tensor, rows: Sequence[SamplingState]) -> None:
        """All rows alike."""
        if self.token_ids.numel():
            logits.index_fill_(1, self.token_ids, -math.inf)


class MinTokens:
    """Masks the ids that end a sequence until it has ``min_tokens`` output tokens, unless nothing else may follow."""

    def apply(self, logits: torch.Tensor, rows: Sequence[SamplingState]) -> None:
        """Only rows that are below their minimum."""
        chosen = [
            (at, row.stop_ids)
            for at, row in enumerate(rows)
            if row.is_below_min_tokens and len(row.stop_ids) and not (row.constraint and row.constraint.must_end)
        ]
        if chosen:
            logits[entries(chosen, logits.device)] = -math.inf


class LogitBias:
    """Adds each request's biases."""

    def apply(self, logits: torch.Tensor, rows: Sequence[SamplingState]) -> None:
        """Only rows with ``logit_bias``."""
        chosen = [(at, row) for at, row in enumerate(rows) if len(row.bias_ids)]
        if chosen:
            places = entries([(at, row.bias_ids) for at, row in chosen], logits.device)
            biases = upload(np.concatenate([row.biases for _, row in chosen]), logits.device)
            logits[places] += biases


class Penalties:
    """Repetition (over prompt and output), frequency and presence (over the output) penalties.

    Source: vLLM's definitions, https://docs.vllm.ai/en/latest/api/vllm/sampling_params/; presence and frequency as
    OpenAI has them, https://platform.openai.com/docs/api-reference/chat/create.
    """

    def apply(self, logits: torch.Tensor, rows: Sequence[SamplingState]) -> None:
        """Only rows with a penalty."""
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
