"""Drive an engine in this process, without the platform: random prompts in, tokens out."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.soak.requests import NEW_TOKENS, PROMPT_TOKENS, REPEAT_EVERY
from bench.soak.server import CACHE_BYTES, MAX_MODEL_LEN
from bench.soak.verdict import Phase
from bench.soak.watch import SAMPLES, Watch
from inference.errors import BlazrError
from inference.llm.llm import LLM
from inference.llm.options import LLMOptions
from inference.modelling.spec import ModelSpec
from models_registry.detection.inspection import inspect_checkpoint


def load(directory: Path) -> tuple[LLM, int]:
    """The model of a directory, and the size of its vocabulary."""
    found = inspect_checkpoint(directory)
    assert isinstance(found.spec, ModelSpec)
    files = [found.directory / name for name in found.weight_files]
    options = LLMOptions(dtype="float32", cache_bytes=CACHE_BYTES, max_model_len=MAX_MODEL_LEN)
    return LLM.load(found.spec, found.tokenizer, files, options), found.spec.vocab_size


class EnginePhase:
    """Keeps an engine busy with a fixed number of requests at a time.

    Args:
        vocab_size: Prompts are ids below this.
        seed: Another seed makes other prompts.
    """

    def __init__(self, llm: LLM, vocab_size: int, phase: Phase, seed: int) -> None:
        self._llm = llm
        self._vocab_size = vocab_size
        self._phase = phase
        self._random = random.Random(seed)
        self._repeated = self._prompt()
        self._repeats: dict[str, list[int]] = {}
        self._first: list[int] | None = None
        self._num_sent = 0

    def run(self, total: int, clients: int, max_seconds: float | None, show: Callable[[int], None]) -> None:
        """Generate for ``total`` requests, or as many as there is time for; the death of the engine ends it."""
        phase, started = self._phase, time.monotonic()
        deadline = float("inf") if max_seconds is None else started + max_seconds
        every = max(1, total // SAMPLES) if max_seconds is None else 50
        watch = Watch(phase, lambda: {"engine": os.getpid()}, every)
        try:
            while phase.num_requests < total and not (
                time.monotonic() > deadline and self._num_sent == phase.num_requests
            ):
                while (
                    self._num_sent - phase.num_requests < clients
                    and self._num_sent < total
                    and time.monotonic() <= deadline
                ):
                    self._add()
                for event in self._llm.step():
                    self._record(event)
                watch.look(phase.num_requests)
                show(phase.num_requests)
        except BlazrError as error:
            phase.deaths.append(f"engine (after {phase.num_requests:,} requests): {error}")
        watch.look(phase.num_requests, force=True)
        phase.seconds = time.monotonic() - started

    def _prompt(self) -> list[int]:
        return [self._random.randrange(self._vocab_size) for _ in range(PROMPT_TOKENS)]

    def _add(self) -> None:
        name = f"r{self._num_sent}"
        repeated = self._num_sent % REPEAT_EVERY == 0
        if repeated:
            self._repeats[name] = []
        self._num_sent += 1
        self._llm.add(
            self._llm.prepare(
                {
                    "request_id": name,
                    "web_id": "soak",
                    "attempt": 0,
                    "model": "soak",
                    "prompt": {"token_ids": self._repeated if repeated else self._prompt()},
                    "params": {"max_tokens": NEW_TOKENS, "temperature": 0.0, "ignore_eos": True, "seed": 0},
                    "priority": 0,
                    "deadline": time.time() + 600,
                }
            )
        )

    def _record(self, event: Any) -> None:
        name = event["request_id"]
        if event["type"] == "delta" and name in self._repeats:
            self._repeats[name] += event["token_ids"]
        if event["type"] == "error":
            self._phase.failures.append(str(event["error"]["message"]))
        if event["type"] in ("done", "error"):
            self._phase.num_requests += 1
            tokens = self._repeats.pop(name, None)
            if tokens is None or event["type"] == "error":
                return
            self._first = self._first or tokens
            if tokens != self._first:
                self._phase.changed_repeats.append(f"{name}: other tokens than the first time")
