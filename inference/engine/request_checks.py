"""Check a request before the engine accepts it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inference.engine.config import EngineConfig, blocks_for
from inference.engine.prefix_cache.namespace import Namespaces
from inference.engine.request import EngineRequest
from inference.errors import InvalidRequest, InvalidSamplingParams, InvalidTokenIds, OutOfCacheBlocks, PromptTooLong
from inference.modelling.spec import ModelSpec


class RequestChecks:
    """Check requests against one model and one engine.

    Args:
        spec: Specification of the model.
        config: Sizes of the engine.
        has_vision: Whether the engine computes the rows of pictures.
    """

    def __init__(self, spec: ModelSpec, config: EngineConfig, *, has_vision: bool = False) -> None:
        self._has_vision = has_vision
        self._vocab_size = spec.vocab_size
        self._max_model_len = config.max_model_len
        self._block_size = config.block_size
        self._num_blocks = config.num_blocks - 1 if spec.state_bytes_per_token() else None
        self._token_bytes = spec.state_bytes_per_token(config.dtype)
        self._slot_bytes = spec.state_bytes_per_sequence(config.dtype, config.state_dtype)
        self._namespaces = Namespaces(spec)

    def check(self, source: EngineRequest) -> int:
        """Check a request.

        Returns:
            The maximum number of output tokens.

        Raises:
            InvalidTokenIds: The prompt is empty, or the model doesn't have an id.
            InvalidSamplingParams: The engine can't follow the parameters.
            InvalidRequest: Earlier attempts have delivered more than ``max_tokens``, the saved state isn't one of the
                prompt's first tokens, or there are pictures where there can be none.
            PromptTooLong: Prompt and ``max_tokens`` exceed ``max_model_len``.
            OutOfCacheBlocks: The request needs more state than the engine has.
        """
        self._check_token_ids("prompt", source.prompt_token_ids)
        if not source.prompt_token_ids:
            raise InvalidTokenIds("the prompt has no tokens; give at least one.", param="prompt")
        self._check_token_ids("prior_output_token_ids", source.prior_output_token_ids)
        self._check_params(source)
        self._check_state(source)
        self._check_images(source)
        return self._check_length(source)

    def _check_token_ids(self, name: str, token_ids: Sequence[int]) -> None:
        try:
            ids = np.asarray(token_ids)
        except (OverflowError, ValueError):
            ids = np.empty(1, dtype=object)
        if ids.size and (ids.dtype.kind not in "iu" or ids.ndim != 1):
            raise InvalidTokenIds(f"{name} must be a list of token ids, integers below 2^63.", param=name)
        if ids.size and (ids.min() < 0 or ids.max() >= self._vocab_size):
            bad = int(ids[(ids < 0) | (ids >= self._vocab_size)][0])
            raise InvalidTokenIds(
                f"{name} has the token id {bad}, the model's ids are 0 to {self._vocab_size - 1}.", param=name
            )

    def _check_params(self, source: EngineRequest) -> None:
        params = source.params
        if params.n != 1:
            raise InvalidSamplingParams(f"n is {params.n}, the engine takes one request per choice.", param="n")
        if params.seed is None and not params.is_greedy:
            raise InvalidSamplingParams("seed must be set before a request reaches the engine.", param="seed")
        if source.pooling is not None and params.max_tokens != 0:
            raise InvalidSamplingParams(
                f"max_tokens is {params.max_tokens}; a request for a pooled vector generates nothing, set it to 0.",
                param="max_tokens",
            )
        self._check_token_ids("stop_token_ids", params.stop_token_ids)
        self._check_token_ids("logit_bias", tuple(params.logit_bias))

    def _check_state(self, source: EngineRequest) -> None:
        params, saved = source.params, source.saved_state
        if source.adapter is not None and source.adapter.is_xlora and (source.returns_state or saved is not None):
            raise InvalidRequest(
                "a request through an X-LoRA has two states, and a saved state holds one; leave the state out.",
                param="state",
            )
        if source.returns_state and (params.max_tokens != 0 or source.pooling is not None):
            raise InvalidRequest(
                f"max_tokens is {params.max_tokens}; a request for a state generates nothing, set it to 0.",
                param="max_tokens",
            )
        if saved is None:
            return
        count, num_prompt = len(saved.token_ids), len(source.prompt_token_ids)
        if not 0 < count < num_prompt or source.prompt_token_ids[:count] != saved.token_ids:
            raise InvalidRequest(
                f"the prompt of {num_prompt:,} tokens doesn't begin with the {count:,} tokens of the saved state; "
                "send what follows them, or leave the state out.",
                param="state",
            )
        sizes, expected = (saved.blocks.nbytes, saved.slot.nbytes), (count * self._token_bytes, self._slot_bytes)
        if sizes != expected:
            raise InvalidRequest(
                f"the saved state has {sizes[0]:,} bytes of paged and {sizes[1]:,} of recurrent state, this model's "
                f"has {expected[0]:,} and {expected[1]:,}; use the model that it was saved with.",
                param="state",
            )
        if params.prompt_logprobs is not None or source.pooling is not None:
            raise InvalidRequest(
                "log-probabilities or a vector of the prompt need all its tokens, a saved state skips them; "
                "leave the state out.",
                param="state",
            )
        if self._namespaces.regimes(count) != self._namespaces.regimes(num_prompt):
            raise InvalidRequest(
                f"the model rotates a prompt of {num_prompt:,} tokens otherwise than the saved one of {count:,}; "
                "leave the state out and send the whole text.",
                param="state",
            )

    def _check_images(self, source: EngineRequest) -> None:
        if not source.images:
            return
        if not self._has_vision:
            raise InvalidRequest("the model reads text only; leave the images out.", param="messages")
        if source.saved_state is not None or source.returns_state:
            raise InvalidRequest("a saved state holds no images; leave the state or the images out.", param="state")
        before = 0
        for span in source.images:
            if not before <= span.start < span.stop <= len(source.prompt_token_ids):
                raise InvalidRequest(
                    f"an image takes the tokens {span.start:,} to {span.stop:,}, which aren't its own.",
                    param="messages",
                )
            before = span.stop

    def _check_length(self, source: EngineRequest) -> int:
        num_prompt, requested = len(source.prompt_token_ids), source.params.max_tokens
        capacity = self._max_model_len - num_prompt
        if (1 if requested is None else requested) > capacity:
            raise PromptTooLong.of(self._max_model_len, num_prompt, requested)
        max_tokens = requested
        if max_tokens is None:
            max_tokens = capacity
            if self._num_blocks is not None:  # the state of the last token is never computed
                max_tokens = min(capacity, max(1, self._num_blocks * self._block_size + 1 - num_prompt))
        if source.params.min_tokens > max_tokens:
            raise InvalidSamplingParams(
                f"min_tokens is {source.params.min_tokens:,}, only {max_tokens:,} fit behind the prompt; lower it.",
                param="min_tokens",
            )
        if len(source.prior_output_token_ids) > max_tokens:
            raise InvalidRequest(
                f"{len(source.prior_output_token_ids):,} tokens were delivered before, max_tokens is {max_tokens:,}.",
                param="prior_output_token_ids",
            )
        self._check_blocks(num_prompt + max(0, max_tokens - 1))
        return max_tokens

    def _check_blocks(self, num_tokens: int) -> None:
        """Raise an error unless a sequence with ``num_tokens`` computed tokens fits when it runs alone."""
        needed, total = blocks_for(num_tokens, self._block_size), self._num_blocks
        if total is not None and needed > total:
            raise OutOfCacheBlocks(
                f"prompt and max_tokens need {needed:,} blocks of state, the server has {total:,} "
                f"({total * self._block_size:,} tokens); shorten the prompt or lower max_tokens.",
                param="max_tokens",
            )
