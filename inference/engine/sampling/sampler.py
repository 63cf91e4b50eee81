"""Sampler: choose token ids from the logits of the sampled rows, and compute log-probabilities.

In this order, which is vLLM's (https://docs.vllm.ai/en/latest/api/vllm/v1/sample/sampler/):

    1  log-probabilities, of the logits as the network gave them
    2  masks (ids without a token, grammars, ``min_tokens``), ``logit_bias``, penalties
    3  greedy rows: the argmax, the lowest of equal ids
    4  other rows: temperature, ``min_p``, ``top_k``, ``top_p``, draw; rows that use one of the samplers of
       ``llama_cpp.chain`` go through that instead

A token with the same logit as the last one that ``top_k`` or ``top_p`` keeps is kept too. So the choice never depends
on how a sort orders equal values, which differs between devices and batch sizes.

Shape letters: n rows, V vocabulary.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from inference.engine.device import fetch, upload, upload_ids
from inference.engine.failures import failure_of
from inference.engine.request import TokenLogprobs
from inference.engine.sampling.llama_cpp.chain import draw_from_chain
from inference.engine.sampling.llama_cpp.dry import Dry
from inference.engine.sampling.logits_processors import InvalidTokens, LogitBias, LogitsProcessor, MinTokens, Penalties
from inference.engine.sampling.random_draws import uniforms
from inference.engine.sampling.row_ops import (
    column,
    descending,
    draw_by_numbers,
    draw_in_slices,
    mask_below,
    select_rows,
)
from inference.engine.sampling.sampling_state import SamplingState
from inference.engine.sampling.token_masks import TokenMasks, narrow_ids
from inference.errors import BlazrError, GenerationFailed, InvalidRequest
from inference.modelling.backends.plain import row_maxima

logger = logging.getLogger(__name__)

MIN_LOGPROB = -9999.0
"""Value for log 0, which JSON can't represent; OpenAI's value for impossible tokens."""

TOPK_LIMIT = 1024
"""Largest ``top_k`` that is found by a top-k selection; a larger one sorts all tokens."""

NUCLEUS_COLUMNS = 2048
"""Number of most probable tokens in which the end of a nucleus (``top_p``) is searched first on the CPU. A device
sorts all tokens, because the host would have to wait for the result of the search."""

RowMaxima = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


class SamplerOutput(NamedTuple):
    """The sampled tokens of n rows.

    Attributes:
        token_ids: One token id for each row; undefined for a row in ``errors``.
        logprobs: Log-probabilities by row number, for the rows that requested them.
        errors: Errors by row number, for the rows without a token.
    """

    token_ids: list[int]
    logprobs: dict[int, TokenLogprobs]
    errors: dict[int, BlazrError]


class Sampler:
    """Choose tokens for a batch.

    Args:
        invalid_token_ids: Ids that are never sampled nor listed as alternatives.
        device: Device of the logits.
        row_maxima: The backend's function for the index and value of each row's first maximum.

    Attributes:
        masks: The masks of grammars, which are computed ahead.
    """

    def __init__(
        self, invalid_token_ids: Sequence[int], device: torch.device, row_maxima: RowMaxima = row_maxima
    ) -> None:
        self._row_maxima = row_maxima
        self._invalid = InvalidTokens(invalid_token_ids, device)
        self.masks = TokenMasks(device)
        self._processors: tuple[LogitsProcessor, ...] = (
            self._invalid,
            self.masks,
            MinTokens(),
            LogitBias(),
            Penalties(),
            Dry(),
        )

    def sample(
        self,
        logits: torch.Tensor,
        rows: Sequence[SamplingState],
        recompute: Callable[[], torch.Tensor],
    ) -> SamplerOutput:
        """Sample one token for each row.

        A row with unusable logits, or whose computation raises, gets an error; the other rows aren't affected.

        Args:
            logits: (n, V) float32, may be overwritten.
            rows: Sampling states of the rows.
            recompute: Returns ``logits`` again, when the rows must be sampled one by one.
        """
        try:
            return self._sample(logits, rows)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # also a Rust panic of a grammar, which is no Exception
            logger.exception("sampling a batch of %d failed; trying its rows one by one", len(rows))
        logits = recompute()
        return _concatenate([self._sample_alone(logits[at : at + 1], row) for at, row in enumerate(rows)])

    def _sample_alone(self, logits: torch.Tensor, row: SamplingState) -> SamplerOutput:
        try:
            return self._sample(logits, [row])
        except BaseException as error:
            return SamplerOutput([0], {}, {0: failure_of(error, "the next token could not be chosen")})

    def _sample(self, logits: torch.Tensor, rows: Sequence[SamplingState]) -> SamplerOutput:
        if all(row.is_plain for row in rows):
            self._invalid.apply(logits, rows)
            return argmax_output(*self._row_maxima(logits))
        # amax passes NaN on, so this one reduction finds NaN, +inf and rows of -inf. Masks hide or make
        # them, so masked rows are also checked without their masks.
        masked = [at for at, row in enumerate(rows) if self.masks.precedes(row) or row.is_below_min_tokens]
        masked_maxima = select_rows(logits, rows, masked)[0].amax(-1) if masked else logits.new_empty(0)
        scored = [at for at, row in enumerate(rows) if row.params.logprobs is not None]
        log_probs = torch.log_softmax(select_rows(logits, rows, scored)[0], dim=-1) if scored else None
        for processor in self._processors:
            processor.apply(logits, rows)

        token_ids, values = self._row_maxima(logits)
        maxima = values.clone()
        self.masks.correct(logits, rows, token_ids, values)
        drawn = [at for at, row in enumerate(rows) if not row.greedy]
        if drawn:
            index = upload_ids(drawn, logits.device)
            token_ids[index] = draw(*select_rows(logits, rows, drawn))
            values[index] = logits[index, token_ids[index]]

        scores: tuple[torch.Tensor, ...] = ()
        num_top = [rows[at].params.logprobs or 0 for at in scored]
        if log_probs is not None:
            scores = self._score(log_probs, token_ids[upload_ids(scored, logits.device)], num_top)
        ids, chosen, found_maxima, found_masked, *score_lists = fetch(token_ids, values, maxima, masked_maxima, *scores)
        logprobs = dict(zip(scored, _described(score_lists, num_top), strict=True)) if scored else {}
        unmasked = dict(zip(masked, found_masked, strict=True))
        errors: dict[int, BlazrError] = {}
        for at, row in enumerate(rows):
            error = _row_error(row, chosen[at], found_maxima[at], unmasked.get(at))
            if error is not None:
                errors[at] = error
        return SamplerOutput(ids, logprobs, errors)

    def score(self, log_probs: torch.Tensor, token_ids: torch.Tensor, num_top: Sequence[int]) -> list[TokenLogprobs]:
        """Log-probability and rank of one token per row, and the row's likeliest tokens.

        Args:
            log_probs: (n, V) log-softmax; overwritten.
            token_ids: (n,) int64.
            num_top: Alternatives wanted in each row.
        """
        return _described(fetch(*self._score(log_probs, token_ids, num_top)), num_top)

    def _score(
        self, log_probs: torch.Tensor, token_ids: torch.Tensor, num_top: Sequence[int]
    ) -> tuple[torch.Tensor, ...]:
        """What ``_described`` puts into words: (n,) ids, (n,) values, (n,) ranks, (n, most) ids and values."""
        chosen = log_probs.gather(1, token_ids.unsqueeze(1))
        ranks = (log_probs > chosen).sum(-1).add_(1)
        most = min(max(num_top), log_probs.shape[1])
        if not most:
            nothing = log_probs[:, :0]
            return token_ids, chosen.squeeze(1), ranks, nothing, nothing
        self._invalid.apply(log_probs, ())
        values, indices = log_probs.topk(most, dim=-1)
        return token_ids, chosen.squeeze(1), ranks, indices, values


def _described(scores: Sequence[list[Any]], num_top: Sequence[int]) -> list[TokenLogprobs]:
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
        for token_id, value, rank, ids, others, count in zip(*scores, num_top, strict=True)
    ]


def argmax_output(token_ids: torch.Tensor, values: torch.Tensor) -> SamplerOutput:
    """The output of greedy rows: (n,) the ids of their greatest logits, and (n,) these logits."""
    ids, found = fetch(token_ids, values)
    errors: dict[int, BlazrError] = {}
    if not math.isfinite(sum(found)):
        errors = {row: numerical_error() for row, value in enumerate(found) if not math.isfinite(value)}
    return SamplerOutput(ids, {}, errors)


def _concatenate(outputs: Sequence[SamplerOutput]) -> SamplerOutput:
    """One output of single rows."""
    return SamplerOutput(
        [output.token_ids[0] for output in outputs],
        {row: output.logprobs[0] for row, output in enumerate(outputs) if output.logprobs},
        {row: output.errors[0] for row, output in enumerate(outputs) if output.errors},
    )


def numerical_error() -> GenerationFailed:
    """For logits that hold NaN or +inf, or nothing but -inf."""
    return GenerationFailed("numerical_error: the model computed no usable probabilities for this request.")


def _row_error(row: SamplingState, chosen: float, maximum: float, unmasked_maximum: float | None) -> BlazrError | None:
    """Return why a row has no token; None: it has one.

    Args:
        chosen: Logit of the chosen token.
        maximum: Maximum of the row after the processors.
        unmasked_maximum: Maximum before the processors, of a row with the mask of a grammar or of ``min_tokens``.
    """
    if not math.isfinite(maximum if unmasked_maximum is None else unmasked_maximum):
        return numerical_error()
    if row.constraint is not None and row.constraint.error is not None:
        return InvalidRequest(f"the grammar can't be followed any further ({row.constraint.error}); simplify it.")
    if chosen == -math.inf:  # after the masks nothing may be left
        return InvalidRequest("every token of the vocabulary is masked; lower min_tokens.")
    return None


def draw(logits: torch.Tensor, rows: Sequence[SamplingState]) -> torch.Tensor:
    """A token for each row by its temperature, min_p, top_k and top_p, or by the chain of further samplers.

    The inverse of the cumulated probabilities, in the order of token ids, at the uniform number that belongs to
    (seed, output position).

    Args:
        logits: (n, V) float32.

    Returns:
        (n,) int64.
    """
    narrow = {at: ids for at, row in enumerate(rows) if (ids := narrow_ids(row)) is not None}
    chained = [at for at, row in enumerate(rows) if row.uses_chain]
    others = [at for at, row in enumerate(rows) if at not in narrow and not row.uses_chain]
    found = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
    if narrow:
        found[upload_ids(list(narrow), logits.device)] = _draw_narrow(logits, rows, narrow)
    if chained:
        found[upload_ids(chained, logits.device)] = draw_from_chain(*select_rows(logits, rows, chained))
    if others:
        found[upload_ids(others, logits.device)] = draw_in_slices(_draw_slice, *select_rows(logits, rows, others))
    return found


def _draw_narrow(
    logits: torch.Tensor, rows: Sequence[SamplingState], narrow: Mapping[int, npt.NDArray[np.int64]]
) -> torch.Tensor:
    """For rows with few possible tokens, given by id: the same draw, among these alone."""
    width = max(map(len, narrow.values()))
    ids = np.zeros((len(narrow), width), dtype=np.int64)
    is_beyond = np.ones((len(narrow), width), dtype=np.bool_)
    for number, allowed in enumerate(narrow.values()):
        ids[number, : len(allowed)] = allowed
        is_beyond[number, : len(allowed)] = False
    columns = upload(ids, logits.device)
    values = logits[upload_ids(list(narrow), logits.device).unsqueeze(1), columns]
    values.masked_fill_(upload(is_beyond, logits.device), -math.inf)
    chosen = draw_in_slices(_draw_slice, values, [rows[at] for at in narrow])
    return columns.gather(1, chosen.unsqueeze(1)).squeeze(1)


def _draw_slice(logits: torch.Tensor, rows: Sequence[SamplingState]) -> torch.Tensor:
    device = logits.device
    temperatures = column([row.params.temperature for row in rows], np.float32, device)
    # Relative to the maximum, so that a small temperature can't overflow.
    scaled = (logits - logits.amax(-1, keepdim=True)).div_(temperatures)
    if any(row.params.min_p > 0.0 for row in rows):
        limits = [math.log(row.params.min_p) if row.params.min_p > 0.0 else -math.inf for row in rows]
        mask_below(scaled, column(limits, np.float32, device))
    truncate(scaled, rows)

    numbers = uniforms([row.params.seed or 0 for row in rows], [row.num_output_tokens for row in rows])
    return draw_by_numbers(scaled, numbers)


def truncate(scaled: torch.Tensor, rows: Sequence[SamplingState]) -> None:
    """Mask what ``top_k`` and then ``top_p`` (of what is left, made to sum to 1) leave out.

    How a row is treated follows from the row alone, so the result doesn't depend on the batch.

    Args:
        scaled: (n, V) logits relative to the maximum, changed in place.
    """
    vocab_size = scaled.shape[1]
    with_top_k: list[int] = []
    nucleus: list[int] = []
    whole: list[int] = []
    for at, row in enumerate(rows):
        if 0 < row.params.top_k < vocab_size:
            (with_top_k if row.params.top_k <= TOPK_LIMIT else whole).append(at)
        elif row.params.top_p < 1.0:
            is_searched = scaled.device.type == "cpu" and vocab_size > NUCLEUS_COLUMNS
            (nucleus if is_searched else whole).append(at)

    thresholds = torch.full((len(rows), 1), -math.inf, device=scaled.device)
    if nucleus:
        part, chosen = select_rows(scaled, rows, nucleus)
        threshold, is_found = _nucleus_threshold(part, chosen)
        thresholds[upload_ids(nucleus, scaled.device)] = threshold
        whole += [at for at, found in zip(nucleus, is_found.tolist(), strict=True) if not found]
    for group, columns in ((with_top_k, max((rows[at].params.top_k for at in with_top_k), default=0)), (whole, 0)):
        if group:
            part, chosen = select_rows(scaled, rows, group)
            thresholds[upload_ids(group, scaled.device)] = _threshold(part, chosen, columns or vocab_size)
    if with_top_k or nucleus or whole:
        mask_below(scaled, thresholds)


def _nucleus_threshold(scaled: torch.Tensor, rows: Sequence[SamplingState]) -> tuple[torch.Tensor, torch.Tensor]:
    """The last value that ``top_p`` keeps, if it is among the ``NUCLEUS_COLUMNS`` greatest.

    Most of the time it is by far, and finding those costs a third of a sort.

    Returns:
        (n, 1) values, and (n,) whether each is right.
    """
    ordered = descending(scaled, NUCLEUS_COLUMNS)
    # The last cumulated value and not a sum, whose order of additions may depend on the number of rows.
    total = scaled.exp().cumsum(-1, dtype=torch.float64)[:, -1:]
    crossing = torch.searchsorted(ordered.exp().cumsum(-1, dtype=torch.float64), _top_p(rows, scaled.device) * total)
    is_found = crossing < NUCLEUS_COLUMNS
    return ordered.gather(1, crossing.clamp(max=NUCLEUS_COLUMNS - 1)), is_found.squeeze(1)


def _threshold(scaled: torch.Tensor, rows: Sequence[SamplingState], columns: int) -> torch.Tensor:
    """(n, 1): the last value that ``top_k`` and ``top_p`` keep.

    Args:
        columns: Likeliest tokens to look at: V, or at least every row's ``top_k`` (none is 0).
    """
    vocab_size = scaled.shape[1]
    ordered = descending(scaled, columns)
    last = column([min(row.params.top_k or vocab_size, vocab_size) - 1 for row in rows], np.int64, scaled.device)
    threshold = ordered.gather(1, last)
    if all(row.params.top_p == 1.0 for row in rows):
        return threshold
    cumulated = ordered.exp().cumsum(-1, dtype=torch.float64)
    # Equals of the k-th token count as well, also those beyond the columns looked at.
    equals = torch.count_nonzero(scaled >= threshold, dim=-1).unsqueeze(1) - (last + 1)
    total = cumulated.gather(1, last) + equals * threshold.double().exp()
    shares = _top_p(rows, scaled.device)
    # The token that crosses the share is kept.
    crossing = torch.searchsorted(cumulated, shares * total)
    return torch.where(shares < 1.0, ordered.gather(1, torch.minimum(crossing, last)), threshold)


def _top_p(rows: Sequence[SamplingState], device: torch.device) -> torch.Tensor:
    return column([row.params.top_p for row in rows], np.float64, device)
