"""Sampler: choose token ids from the logits of the sampled rows, and compute log-probabilities.

In this order, which is vLLM's (https://docs.vllm.ai/en/latest/api/vllm/v1/sample/sampler/):

    1  log-probabilities, of the logits as the network gave them
    2  masks (ids without a token, grammars, ``min_tokens``), ``logit_bias``, penalties
    3  greedy rows: the argmax, the lowest of equal ids
    4  other rows: temperature, ``min_p``, ``top_k``, ``top_p``, draw; rows that use one of the samplers of
       ``llama_cpp.chain`` go through that instead

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
from inference.engine.sampling.row_ops import column, draw_by_numbers, draw_in_slices, select_rows
from inference.engine.sampling.sampling_state import SamplingState
from inference.engine.sampling.token_masks import TokenMasks, narrow_ids
from inference.engine.sampling.truncation import mask_min_p, truncate
from inference.errors import BlazrError, InvalidRequest, NumericalError
from inference.modelling.backends.plain import row_maxima

logger = logging.getLogger(__name__)

MIN_LOGPROB = -9999.0
"""Value for log 0, which JSON can't represent; OpenAI's value for impossible tokens."""

RowMaxima = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
Fetch = Callable[..., tuple[list[Any], ...]]


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
        fetch: Reads what was sampled from the device: ``device.fetch``, or one that reads more with it.

    Attributes:
        masks: The masks of grammars, which are computed ahead.
    """

    def __init__(
        self,
        invalid_token_ids: Sequence[int],
        device: torch.device,
        row_maxima: RowMaxima = row_maxima,
        fetch: Fetch = fetch,
    ) -> None:
        self._row_maxima = row_maxima
        self._fetch = fetch
        self._invalid = InvalidTokens(invalid_token_ids, device)
        self.masks = TokenMasks(device)
        processors = (MinTokens(), LogitBias(), Penalties(), Dry())
        self._processors: tuple[LogitsProcessor, ...] = (self._invalid, self.masks, *processors)

    def sample(self, compute_logits: Callable[[], torch.Tensor], rows: Sequence[SamplingState]) -> SamplerOutput:
        """Sample one token for each row.

        A row with unusable logits, or whose computation raises, gets an error; the other rows aren't affected.

        Args:
            compute_logits: Returns (n, V) float32 logits, which are overwritten; called again when the rows must be
                sampled one by one.
            rows: Sampling states of the rows.
        """
        logits = compute_logits()
        try:
            return self._sample(logits, rows)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # also a Rust panic of a grammar, which is no Exception
            logger.exception("sampling a batch of %d failed; trying its rows one by one", len(rows))
        logits = compute_logits()
        output = SamplerOutput([0] * len(rows), {}, {})
        for at, row in enumerate(rows):
            try:
                alone = self._sample(logits[at : at + 1], [row])
            except BaseException as error:
                output.errors[at] = failure_of(error, "the next token could not be chosen")
                continue
            output.token_ids[at] = alone.token_ids[0]
            if alone.logprobs:
                output.logprobs[at] = alone.logprobs[0]
            if alone.errors:
                output.errors[at] = alone.errors[0]
        return output

    def _sample(self, logits: torch.Tensor, rows: Sequence[SamplingState]) -> SamplerOutput:
        if all(row.is_plain for row in rows):
            self._invalid.apply(logits, rows)
            return argmax_output(*self._row_maxima(logits), self._fetch)
        # amax passes NaN on, so it finds NaN, +inf and rows of -inf, before masks hide or make them.
        maxima = logits.amax(-1)
        scored = [at for at, row in enumerate(rows) if row.params.logprobs is not None]
        log_probs = torch.log_softmax(select_rows(logits, rows, scored)[0], dim=-1) if scored else logits[:0]
        for processor in self._processors:
            processor.apply(logits, rows)

        token_ids, values = self._row_maxima(logits)
        self.masks.correct(logits, rows, token_ids, values)
        drawn = [at for at, row in enumerate(rows) if not row.greedy]
        if drawn:
            index = upload_ids(drawn, logits.device)
            token_ids[index] = draw(*select_rows(logits, rows, drawn))
            values[index] = logits[index, token_ids[index]]

        num_top = [rows[at].params.logprobs or 0 for at in scored]
        scores = self._score(log_probs, token_ids[upload_ids(scored, logits.device)], num_top) if scored else ()
        ids, chosen, raw_maxima, *score_lists = self._fetch(token_ids, values, maxima, *scores)
        logprobs = dict(zip(scored, _token_logprobs(score_lists, num_top), strict=True)) if scored else {}
        found = map(_row_error, rows, raw_maxima, chosen)
        errors = {at: error for at, error in enumerate(found) if error is not None}
        return SamplerOutput(ids, logprobs, errors)

    def score(self, log_probs: torch.Tensor, token_ids: torch.Tensor, num_top: Sequence[int]) -> list[TokenLogprobs]:
        """Return the log-probability and rank of one token of each row, and its ``num_top`` most probable tokens.

        Args:
            log_probs: (n, V) log-softmax; overwritten.
            token_ids: (n,) int64.
        """
        return _token_logprobs(fetch(*self._score(log_probs, token_ids, num_top)), num_top)

    def _score(
        self, log_probs: torch.Tensor, token_ids: torch.Tensor, num_top: Sequence[int]
    ) -> tuple[torch.Tensor, ...]:
        """Return the fields of ``TokenLogprobs`` as tensors: (n,) ids, values and ranks; (n, most) ids and values."""
        chosen = log_probs.gather(1, token_ids.unsqueeze(1))
        ranks = (log_probs > chosen).sum(-1).add_(1)
        self._invalid.apply(log_probs, ())
        values, indices = log_probs.topk(min(max(num_top), log_probs.shape[1]), dim=-1)
        return token_ids, chosen.squeeze(1), ranks, indices, values


def _token_logprobs(scores: Sequence[list[Any]], num_top: Sequence[int]) -> list[TokenLogprobs]:
    """Build the results from ``_score``'s tensors, as lists."""
    found = []
    for token_id, value, rank, ids, values, count in zip(*scores, num_top, strict=True):
        top = tuple(pair for pair in zip(ids[:count], values[:count], strict=True) if pair[1] > -math.inf)
        found.append(TokenLogprobs(token_id, max(value, MIN_LOGPROB), rank, top))
    return found


def argmax_output(token_ids: torch.Tensor, values: torch.Tensor, fetch: Fetch = fetch) -> SamplerOutput:
    """Return the output of greedy rows from (n,) argmaxes and (n,) their logits, which ``fetch`` reads."""
    ids, found = fetch(token_ids, values)
    errors: dict[int, BlazrError] = {
        at: numerical_error() for at, value in enumerate(found) if not math.isfinite(value)
    }
    return SamplerOutput(ids, {}, errors)


def numerical_error() -> NumericalError:
    """Return the error for logits that hold NaN or +inf, or nothing but -inf."""
    return NumericalError("numerical_error: the model computed no usable probabilities for this request.")


def _row_error(row: SamplingState, raw_maximum: float, chosen: float) -> BlazrError | None:
    """Return why a row has no token; None: it has one.

    Args:
        raw_maximum: Maximum of the row's logits before the processors.
        chosen: Logit of the chosen token after the processors.
    """
    if not math.isfinite(raw_maximum):
        return numerical_error()
    if row.constraint is not None and row.constraint.error is not None:
        return InvalidRequest(f"the grammar can't be followed any further ({row.constraint.error}); simplify it.")
    if chosen == -math.inf:  # after the masks nothing may be left
        return InvalidRequest("every token of the vocabulary is masked; lower min_tokens.")
    return None


def draw(logits: torch.Tensor, rows: Sequence[SamplingState]) -> torch.Tensor:
    """Draw a token for each row: the (n,) int64 ids, from (n, V) float32 logits.

    The cumulated probabilities, in the order of token ids, are inverted at the uniform number that belongs to (seed,
    output position).
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
    """Draw for rows with few allowed tokens, ``narrow`` by row, among these alone."""
    lengths = np.array([len(ids) for ids in narrow.values()]).reshape(-1, 1)
    width = int(lengths.max())
    # Shorter lists repeat their ids up to the width; the repeated ones are masked.
    columns = upload(np.stack([np.resize(ids, width) for ids in narrow.values()]), logits.device)
    values = logits[upload_ids(list(narrow), logits.device).unsqueeze(1), columns]
    values.masked_fill_(upload(np.arange(width) >= lengths, logits.device), -math.inf)
    chosen = draw_in_slices(_draw_slice, values, [rows[at] for at in narrow])
    return columns.gather(1, chosen.unsqueeze(1)).squeeze(1)


def _draw_slice(logits: torch.Tensor, rows: Sequence[SamplingState]) -> torch.Tensor:
    device = logits.device
    temperatures = column([row.params.temperature for row in rows], np.float32, device)
    # Relative to the maximum, so that a small temperature can't overflow.
    scaled = (logits - logits.amax(-1, keepdim=True)).div_(temperatures)
    if any(row.params.min_p > 0.0 for row in rows):
        mask_min_p(scaled, 0.0, [row.params.min_p for row in rows])
    truncate(scaled, [(row.params.top_k, row.params.top_p) for row in rows])
    numbers = uniforms([row.params.seed or 0 for row in rows], [row.num_output_tokens for row in rows])
    return draw_by_numbers(scaled, numbers)
