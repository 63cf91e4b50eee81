"""Compute the logits of short texts with a checkpoint's network, to compare them with another implementation's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from inference.engine.device import on_device
from inference.llm.options import LLMOptions
from inference.llm.quality import load_runner
from inference.modelling.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class LogitDifference:
    """How far the logits of two implementations are apart.

    Attributes:
        num_tokens: Positions that were compared.
        mean_kl: Mean KL divergence from the reference's distribution, in nats.
        top1_agreement: Share of positions at which both have the same argmax.
        max_difference: Largest difference between two log-probabilities that the reference has above e^-20.
    """

    num_tokens: int
    mean_kl: float
    top1_agreement: float
    max_difference: float


def text_logits(
    spec: ModelSpec, weight_files: Sequence[Path], texts: Sequence[Sequence[int]], *, options: LLMOptions
) -> list[torch.Tensor]:
    """Return float32 logits (n, V) on the CPU for each text, each from an empty state, without quantisation.

    Raises:
        CheckpointError: The files can't be loaded.
    """
    with on_device(torch.device(options.device)), torch.inference_mode():
        runner = load_runner(spec, weight_files, "none", options, max(map(len, texts)))
        return [runner.network.compute_logits(runner.hidden(text)).float().cpu() for text in texts]


def compare_logits(own: Sequence[torch.Tensor], reference: Sequence[torch.Tensor]) -> LogitDifference:
    """Compare logits of the same texts; columns that only one has (a padded vocabulary) are left out."""
    count, divergence, agreed, largest = 0, 0.0, 0, 0.0
    for mine, theirs in zip(own, reference, strict=True):
        columns = min(mine.shape[1], theirs.shape[1])
        first, second = (rows[:, :columns].double().log_softmax(-1) for rows in (mine, theirs))
        count += len(first)
        divergence += float((second.exp() * (second - first)).sum())
        agreed += int((first.argmax(-1) == second.argmax(-1)).sum())
        probable = second > -20.0
        largest = max(largest, float((first - second)[probable].abs().max()))
    mean = divergence / count
    return LogitDifference(count, mean if math.isnan(mean) else max(mean, 0.0), agreed / count, largest)
