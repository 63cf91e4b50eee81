"""mistral.rs in process: its wheel has no server. Requests are streamed from threads, one for each client."""

from __future__ import annotations

import threading
import time
from typing import Any

import mistralrs

from bench.child import add_unshown
from bench.peers.streaming import Arrivals, StreamingPeer
from bench.tokenizer_files import random_text


class MistralrsPeer(StreamingPeer[str]):
    """One runner.

    Args:
        quant: In-situ quantisation by mistral.rs' name, None for bfloat16.
    """

    def __init__(self, directory: str, quant: str | None = None) -> None:
        self._directory = directory
        self._quant = quant
        self._sending = threading.Lock()

    def load(self) -> dict[str, Any]:
        """Load, quantising if asked for; prefix cache off."""
        which = mistralrs.Which.Plain(model_id=self._directory, dtype=mistralrs.ModelDType.BF16)
        self._runner = mistralrs.Runner(which=which, max_seqs=32, prefix_cache_n=0, in_situ_quant=self._quant)
        return {}

    def _stream(self, text: str, new: int, arrivals: list[tuple[float, int]], failures: list[Exception]) -> None:
        try:
            request = mistralrs.ChatCompletionRequest(
                messages=text, model="default", max_tokens=new, temperature=0.0, stream=True, ignore_eos=True
            )
            with self._sending:  # the runner can't be borrowed by two threads at once
                chunks = self._runner.send_chat_completion_request(request)
            total = None
            for chunk in chunks:
                if chunk.choices and chunk.choices[0].delta.content:
                    arrivals.append((time.perf_counter(), 1))
                if chunk.usage is not None:  # the last chunk's
                    total = chunk.usage.completion_tokens
            if total is not None:
                add_unshown(arrivals, total)
        except Exception as error:
            failures.append(error)

    def _run(self, prompts: list[str], new: int) -> tuple[float, Arrivals]:
        arrivals: Arrivals = [[] for _ in prompts]
        failures: list[Exception] = []
        threads = [
            threading.Thread(target=self._stream, args=(text, new, stream, failures))
            for text, stream in zip(prompts, arrivals, strict=True)
        ]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        lengths = {sum(count for _, count in stream) for stream in arrivals}
        if lengths != {new}:
            raise RuntimeError(f"streams of {sorted(lengths)} chunks instead of {new} tokens")
        return started, arrivals

    def _prompts(self, count: int, length: int, seed: int) -> list[str]:
        return [random_text(length, seed * 1000 + number) for number in range(count)]
