"""transformers in bfloat16: eager with its default attention and cache, or compiled with a static cache."""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList
from transformers.utils import logging

from bench.child import decode_rate, random_prompts

MAX_DECODE_TOKENS = 256
"""Tokens that the static cache holds; a longer one would cost the compiled attention more."""


class _Clock(StoppingCriteria):  # type: ignore[misc]
    """Notes when each step has its tokens; stops nothing."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


class TransformersPeer:
    """``generate`` on the same files.

    Args:
        compiled: Compile the decoding step (inductor, weights frozen) over a static cache.
    """

    def __init__(self, directory: str, compiled: bool = False) -> None:
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self._directory = directory
        self._compiled = compiled

    def load(self) -> dict[str, Any]:
        """Load and, if asked for, prepare to compile (the first call compiles)."""
        self._model = AutoModelForCausalLM.from_pretrained(self._directory, dtype=torch.bfloat16).eval()
        self._vocab_size = self._model.config.vocab_size
        if self._compiled:
            if getattr(self._model, "_is_stateful", False):
                raise RuntimeError(f"transformers has no static cache for {self._model.config.model_type}")
            torch._inductor.config.freezing = True
            self._step = torch.compile(self._model.forward, fullgraph=True, dynamic=False)
        return {}

    def _generate(self, prompts: list[list[int]], new: int) -> tuple[float, list[float]]:
        ids, clock = torch.tensor(prompts), _Clock()
        started = time.perf_counter()
        self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            eos_token_id=None,
            stopping_criteria=StoppingCriteriaList([clock]),
        )
        return started, clock.times

    def _generate_compiled(self, prompts: list[list[int]], new: int) -> tuple[float, list[float]]:
        from transformers import StaticCache

        if len(prompts[0]) + new > MAX_DECODE_TOKENS:
            raise RuntimeError(f"{len(prompts[0])} + {new} tokens don't fit the static cache of {MAX_DECODE_TOKENS}")
        cache = StaticCache(config=self._model.config, max_cache_len=MAX_DECODE_TOKENS)
        times, ids = [], torch.tensor(prompts)
        started = time.perf_counter()
        with torch.inference_mode():
            logits = self._model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            for _ in range(new):
                ids = logits[:, -1:].argmax(-1)
                times.append(time.perf_counter())
                logits = self._step(input_ids=ids, past_key_values=cache, use_cache=True).logits
        return started, times

    def prefill(self, tokens: int, seed: int = 3) -> dict[str, float]:
        """Prompt tokens per second of one forward pass that yields the next token."""
        started, times = self._generate(random_prompts(1, tokens, self._vocab_size, seed), 1)
        return {"tokens_per_s": tokens / (times[0] - started)}

    def decode(self, batch: int, prompt: int, new: int, seed: int = 3) -> dict[str, float]:
        """Tokens per second of the steps after the first token."""
        prompts = random_prompts(batch, prompt, self._vocab_size, seed)
        _, times = (self._generate_compiled if self._compiled else self._generate)(prompts, new + 1)
        return decode_rate([[(at, 1) for at in times]] * batch)
