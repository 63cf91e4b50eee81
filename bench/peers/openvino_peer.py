"""OpenVINO GenAI's continuous batching pipeline, in process."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import openvino
import openvino_genai

from bench.peers.streaming import Arrivals, TokenPeer


class OpenVINOPeer(TokenPeer):
    """One pipeline.

    Args:
        directory: With the model that ``optimum-cli export openvino`` wrote.
        cache_gib: Memory for keys and values.
        properties: Of the device plugin, beyond its own choice.
    """

    def __init__(
        self, directory: str, vocab_size: int, cache_gib: int = 2, properties: dict[str, Any] | None = None
    ) -> None:
        self._directory = directory
        self._vocab_size = vocab_size
        self._cache_gib = cache_gib
        self._properties = properties or {}
        self._serial = 0

    def load(self) -> dict[str, Any]:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = self._cache_gib
        scheduler.max_num_batched_tokens = 512
        scheduler.max_num_seqs = 64
        scheduler.enable_prefix_caching = False
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(self._directory, scheduler, "CPU", self._properties)
        return {}

    def _run(self, prompts: list[list[int]], new: int) -> tuple[float, Arrivals]:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = new
        config.ignore_eos = True
        config.do_sample = False
        arrivals: Arrivals = [[] for _ in prompts]
        handles = []
        started = time.perf_counter()
        for prompt in prompts:
            self._serial += 1
            ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
            handles.append(self._pipeline.add_request(self._serial, ids, config))
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            now = time.perf_counter()
            for handle, stream in zip(handles, arrivals, strict=True):
                if handle.can_read():
                    count = sum(len(output.generated_ids) for output in handle.read().values())
                    if count:
                        stream.append((now, count))
        lengths = {sum(count for _, count in stream) for stream in arrivals}
        if lengths != {new}:
            raise RuntimeError(f"streams of {sorted(lengths)} tokens instead of {new}")
        return started, arrivals
