"""Sampler: logits of the sampled rows to token ids and log-probabilities.

In this order, which is vLLM's (https://docs.vllm.ai/en/latest/api/vllm/v1/sample/sampler/):

    1  log-probabilities, of the logits as the network gave them
    2  masks (ids without a token, ``min_tokens``), ``logit_bias``, penalties
    3  greedy rows: the likeliest token, the lowest id among equals
    4  other rows: temperature, ``min_p``, ``top_k``, ``top_p``, draw

Equals are treated alike: a token as likely as the last one that ``top_k`` or ``top_p`` keeps is kept too.
Hence the choice never depends on how a sort orders equals, which differs between devices and batch sizes.

Shape letters: n rows, V vocabulary.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from inference.engine.logits_processors import InvalidTokens, LogitBias, LogitsProcessor, MinTokens, Penalties
from inference.engine.random_draws import uniforms
from inference.engine.request import TokenLogprobs
from inference.engine.sampling_state import SamplingState
from inference.errors import BlazrError, GenerationFailed

logger = logging.getLogger(__name__)

MIN_LOGPROB = -9999.0
"""Stands for log 0, which JSON can't say; OpenAI's value for tokens that are out of reach."""

TOPK_LIMIT = 1024
"""Up to this ``top_k``, picking the likeliest is faster than sorting."""


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The sampler's answer for one row."""

    token_id: int
    logprobs: TokenLogprobs | None = None


class Sampler:
    """Chooses tokens for a batch.

    Args:
        invalid_token_ids: Ids that are never sampled nor listed among alternatives.
        device: Of the logits.
    """

    def __init__(self, invalid_token_ids: Sequence[int], device: torch.device) -> None:
        self._invalid = InvalidTokens(invalid_token_ids, device)
        self._processors: tuple[LogitsProcessor, ...] = (self._invalid, MinTokens(), LogitBias(), Penalties())

    def sample(
        self,
        logits: torch.Tensor,
        rows: Sequence[SamplingState],
        recompute: Callable[[], torch.Tensor],
    ) -> list[SampledToken | BlazrError]:
        """One token for each row.

        A row with unusable logits, or for which the arithmetic raises, gets an error; the others get what they
        would have got without it.

        Args:
            logits: (n, V) float32, may be overwritten.
            rows: The requests.
            recompute: Gives ``logits`` again, when the batch has to be redone row by row.
        """
        try:
            return self._sample(logits, rows)
        except Exception:
            logger.exception("sampling a batch of %d failed; trying its rows one by one", len(rows))
        logits = recompute()
        return [self._sample_alone(logits[at : at + 1], row) for at, row in enumerate(rows)]

    def _sample_alone(self, logits: torch.Tensor, row: SamplingState) -> SampledToken | BlazrError:
        try:
            return self._sample(logits, [row])[0]
        except Exception as error:
            logger.exception("sampling failed for one request")
            return GenerationFailed(f"the next token could not be chosen ({type(error).__name__}).")

    def _sample(self, logits: torch.Tensor, rows: Sequence[SamplingState]) -> list[SampledToken | BlazrError]:
        # amax passes NaN on, so this one reduction finds NaN, +inf and rows of -inf.
        is_usable = torch.isfinite(logits.amax(-1))
        scored = [at for at, row in enumerate(rows) if row.params.logprobs is not None]
        log_probs = log_softmax_rows(logits, scored) if scored else None
        if any(row.changes_logits for row in rows):
            for processor in self._processors:
                processor.apply(logits, rows)
        else:
            self._invalid.apply(logits, rows)

        token_ids = likeliest(logits)
        # After the masks nothing may be left.
        has_token = logits.gather(1, token_ids.unsqueeze(1)).squeeze(1) > -math.inf
        drawn = [at for at, row in enumerate(rows) if not row.greedy]
        if len(drawn) == len(rows):
            token_ids = draw(logits, rows)
        elif drawn:
            index = torch.tensor(drawn, device=logits.device)
            token_ids[index] = draw(logits[index], [rows[at] for at in drawn])

        found = self._gather(log_probs, token_ids, scored, rows) if log_probs is not None else {}
        verdicts = torch.stack([token_ids, is_usable.long(), has_token.long()]).tolist()
        results: list[SampledToken | BlazrError] = []
        for at, (token_id, usable, has_any) in enumerate(zip(*verdicts, strict=True)):
            if not usable:
                results.append(numerical_error())
            elif not has_any:
                results.append(GenerationFailed("every token of the vocabulary is masked; lower min_tokens."))
            else:
                results.append(SampledToken(token_id, found.get(at)))
        return results

    def _gather(
        self, log_probs: torch.Tensor, token_ids: torch.Tensor, scored: Sequence[int], rows: Sequence[SamplingState]
    ) -> dict[int, TokenLogprobs]:
        chosen = token_ids[torch.tensor(scored, device=token_ids.device)]
        entries = self.score(log_probs, chosen, [rows[at].params.logprobs or 0 for at in scored])
        return dict(zip(scored, entries, strict=True))

    def score(self, log_probs: torch.Tensor, token_ids: torch.Tensor, num_top: Sequence[int]) -> list[TokenLogprobs]:
        """Log-probability and rank of one token per row, and the row's likeliest tokens.

        Args:
            log_probs: (n, V) log-softmax; overwritten.
            token_ids: (n,) int64.
            num_top: Alternatives wanted in each row.
        """
        chosen = log_probs.gather(1, token_ids.unsqueeze(1))
        ranks = (log_probs > chosen).sum(-1).add_(1).tolist()
        most = min(max(num_top), log_probs.shape[1])
        top_ids: list[list[int]] = [[] for _ in num_top]
        top_values: list[list[float]] = [[] for _ in num_top]
        if most:
            self._invalid.apply(log_probs, ())
            values, indices = log_probs.topk(most, dim=-1)
            top_ids, top_values = indices.tolist(), values.tolist()
        return [
            TokenLogprobs(
                token_id=token_id,
                logprob=max(value, MIN_LOGPROB),
                rank=rank,
                top=tuple(
                    (other, other_value)
                    for other, other_value in zip(ids[:count], others[:count], strict=True)
                    if other_value > -math.inf
                ),
            )
            for token_id, value, rank, ids, others, count in zip(
                token_ids.tolist(), chosen.squeeze(1).tolist(), ranks, top_ids, top_values, num_top, strict=True
            )
        ]


def numerical_error() -> GenerationFailed:
    """For logits that hold NaN or +inf, or nothing but -inf."""
    return GenerationFailed("numerical_error: the model computed no usable probabilities for this request.")


def log_softmax_rows(logits: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Log-softmax of the named rows, a new tensor (len(rows), V)."""
    if len(rows) < logits.shape[0]:
        logits = logits[torch.tensor(rows, device=logits.device)]
    return torch.log_softmax(logits, dim=-1)


def likeliest(logits: torch.Tensor) -> torch.Tensor:
    """(n,) position of each row's maximum, the first among equals."""
    if logits.device.type == "cpu":
        # numpy's argmax is vectorised: 0.3 ms against torch's 1.2 ms for 32 rows of 128,256.
        return torch.from_numpy(logits.numpy().argmax(-1))
    return logits.argmax(-1)


def draw(logits: torch.Tensor, rows: Sequence[SamplingState]) -> torch.Tensor:
    """A token for each row by its temperature, min_p, top_k and top_p.

    The inverse of the cumulated probabilities, in the order of token ids, at the uniform number that belongs to
    (seed, output position).

    Args:
        logits: (n, V) float32.

    Returns:
        (n,) int64.
    """
    device = logits.device
    temperatures = torch.tensor([[row.params.temperature] for row in rows], dtype=torch.float32, device=device)
    # Relative to the maximum, so that a small temperature can't overflow.
    scaled = (logits - logits.amax(-1, keepdim=True)) / temperatures
    if any(row.params.min_p > 0.0 for row in rows):
        limits = [[math.log(row.params.min_p) if row.params.min_p > 0.0 else -math.inf] for row in rows]
        scaled.masked_fill_(scaled < torch.tensor(limits, dtype=torch.float32, device=device), -math.inf)

    vocab_size = logits.shape[1]
    few: list[int] = []
    many: list[int] = []
    for at, row in enumerate(rows):
        if 0 < row.params.top_k <= min(TOPK_LIMIT, vocab_size - 1):
            few.append(at)
        elif row.params.top_p < 1.0 or 0 < row.params.top_k < vocab_size:
            many.append(at)
    for group, count in ((few, max((rows[at].params.top_k for at in few), default=0)), (many, vocab_size)):
        if len(group) == len(rows):
            truncate(scaled, rows, count)
        elif group:
            index = torch.tensor(group, device=device)
            part = scaled[index]
            truncate(part, [rows[at] for at in group], count)
            scaled[index] = part

    cumulated = scaled.exp_().cumsum(-1, dtype=torch.float64)
    total = cumulated[:, -1:]
    numbers = uniforms([row.params.seed or 0 for row in rows], [row.num_output_tokens for row in rows])
    target = torch.from_numpy(numbers).to(device).unsqueeze(1) * total
    # u < 1, but the product may round up to the total, beyond the last token.
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    found = torch.searchsorted(cumulated, target, right=True).squeeze(1)
    return found.clamp_(max=vocab_size - 1)


def truncate(scaled: torch.Tensor, rows: Sequence[SamplingState], count: int) -> None:
    """Mask what ``top_k`` and then ``top_p`` (of what is left, made to sum to 1) leave out.

    Args:
        scaled: (n, V) logits relative to the maximum, changed in place.
        rows: Each with ``top_k`` at most ``count``, or ``count`` = V.
        count: Likeliest tokens to look at.
    """
    device = scaled.device
    vocab_size = scaled.shape[1]
    ordered = _descending(scaled, count)
    last = torch.tensor(
        [[min(row.params.top_k, vocab_size) - 1 if row.params.top_k else vocab_size - 1] for row in rows],
        device=device,
    )
    threshold = ordered.gather(1, last)
    if any(row.params.top_p < 1.0 for row in rows):
        cumulated = ordered.exp().cumsum(-1, dtype=torch.float64)
        # Equals of the k-th token count as well, also those beyond the columns looked at.
        equals = (scaled >= threshold).sum(-1, keepdim=True) - (last + 1)
        total = cumulated.gather(1, last) + equals * threshold.double().exp()
        shares = torch.tensor([[row.params.top_p] for row in rows], dtype=torch.float64, device=device)
        # The token that crosses the share is kept.
        crossing = torch.searchsorted(cumulated, shares * total)
        threshold = torch.where(shares < 1.0, ordered.gather(1, torch.minimum(crossing, last)), threshold)
    scaled.masked_fill_(scaled < threshold, -math.inf)


def _descending(values: torch.Tensor, count: int) -> torch.Tensor:
    """(n, count) greatest values of each row, greatest first."""
    if count < values.shape[1]:
        return values.topk(count, dim=-1).values
    if values.device.type == "cpu":
        # numpy sorts with vector instructions: 10 ms against torch's 160 ms for 32 rows of 128,256.
        return torch.from_numpy(np.negative(np.sort(np.negative(values.numpy()), axis=-1)))
    return values.sort(dim=-1, descending=True).values
