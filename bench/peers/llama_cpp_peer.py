"""llama.cpp through the C interface that llama-cpp-python binds: batches, flash attention and sampling are its own.

The C interface, not the ``Llama`` class, because that class computes one sequence at a time.
"""

from __future__ import annotations

import ctypes
import math
import os
import time
from pathlib import Path
from typing import Any

import llama_cpp
import numpy

from bench.child import decode_rate, random_prompts

MAX_TOKENS = 8192
MAX_SEQUENCES = 32


_errors: list[str] = []


def _quiet(level: int, text: bytes, data: Any) -> None:
    if level >= 3:  # warnings and errors
        os.write(2, text)
    if level == 4:
        _errors.append(text.decode(errors="replace").strip())


_LOG = llama_cpp.llama_log_callback(_quiet)


class LlamaCppPeer:
    """One model and one context.

    Args:
        threads: 0: one for each processor.
    """

    def __init__(self, file: str, threads: int = 0) -> None:
        self._file = file
        self._threads = threads or len(os.sched_getaffinity(0))

    def load(self) -> dict[str, Any]:
        """Load with the library's own settings, but for threads and the context's size."""
        llama_cpp.llama_log_set(_LOG, None)
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(self._file.encode(), llama_cpp.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp can't load {Path(self._file).name}: {' | '.join(_errors)}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = MAX_TOKENS, 2048, 512
        params.n_seq_max, params.kv_unified = MAX_SEQUENCES, True
        params.n_threads = params.n_threads_batch = self._threads
        params.no_perf = True
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError("llama.cpp can't make a context")
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._sampler = llama_cpp.llama_sampler_init_greedy()
        self._batch = llama_cpp.llama_batch_init(2048, 0, 1)
        return {"weights_bytes": llama_cpp.llama_model_size(self._model)}

    def _decode(self, rows: list[tuple[int, int, int, bool]]) -> None:
        """Compute (token, position, sequence, wanted) rows."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for number, (token, position, sequence, needs_logits) in enumerate(rows):
            batch.token[number] = token
            batch.pos[number] = position
            batch.n_seq_id[number] = 1
            batch.seq_id[number][0] = sequence
            batch.logits[number] = needs_logits
        status = llama_cpp.llama_decode(self._context, batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")

    def _sample(self, row: int) -> int:
        return int(llama_cpp.llama_sampler_sample(self._sampler, self._context, ctypes.c_int32(row)))

    def _start(self, prompt: list[int], sequence: int) -> int:
        """Prefill one prompt and sample its first token."""
        for begin in range(0, len(prompt), 2048):
            part = prompt[begin : begin + 2048]
            final = begin + len(part) == len(prompt)
            self._decode(
                [
                    (token, begin + number, sequence, final and number == len(part) - 1)
                    for number, token in enumerate(part)
                ]
            )
        return self._sample(-1)

    def _clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)

    def prefill(self, tokens: int, seed: int = 3) -> dict[str, float]:
        """Prompt tokens per second until the first new token."""
        prompt = random_prompts(1, tokens, self._vocab_size, seed)[0]
        self._clear()
        started = time.perf_counter()
        self._start(prompt, 0)
        return {"tokens_per_s": tokens / (time.perf_counter() - started)}

    def decode(self, batch: int, prompt: int, new: int, seed: int = 3) -> dict[str, float]:
        """Tokens per second of steps that compute one token of every sequence."""
        self._clear()
        prompts = random_prompts(batch, prompt, self._vocab_size, seed)
        tokens = [self._start(item, number) for number, item in enumerate(prompts)]
        times = [time.perf_counter()]
        for step in range(new):
            self._decode([(token, prompt + step, number, True) for number, token in enumerate(tokens)])
            tokens = [self._sample(number) for number in range(batch)]
            times.append(time.perf_counter())
        return decode_rate([[(at, 1) for at in times]] * batch)

    def perplexity(self, token_ids: list[int], window: int) -> dict[str, float]:
        """exp of the mean negative log-likelihood of each window's own next tokens."""
        total, count = 0.0, 0
        for begin in range(0, len(token_ids), window):
            tokens = token_ids[begin : begin + window]
            self._clear()
            self._decode([(token, number, 0, True) for number, token in enumerate(tokens)])
            for row, actual in enumerate(tokens[1:]):
                values = llama_cpp.llama_get_logits_ith(self._context, row)
                logits = numpy.ctypeslib.as_array(values, (self._vocab_size,)).astype(numpy.float64)
                total += float(numpy.logaddexp.reduce(logits) - logits[actual])
                count += 1
        return {"perplexity": math.exp(total / count)}
