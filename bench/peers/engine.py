"""Our engine without the platform: requests go straight to the engine's thread."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from bench.peers.streaming import Arrivals, TokenPeer
from bench.step_clock import StepClock
from inference.engine.loop import EngineLoop
from inference.llm.llm import LLM
from inference.llm.options import LLMOptions
from inference.modelling.backends.native import library as native_library
from inference.modelling.spec import ModelSpec
from models_registry.detection.inspection import inspect_checkpoint

Event = tuple[float, dict[str, Any]]


class EnginePeer(TokenPeer):
    """``LLM`` and ``EngineLoop`` as the worker uses them.

    Args:
        dtype: Of weights and activations.
        quant: ``int8`` or ``int4``: weights are quantised at the load.
        cache_bytes: Memory for states.
    """

    def __init__(
        self, directory: str, dtype: str = "bfloat16", quant: str | None = None, cache_bytes: int = 2 << 30
    ) -> None:
        self._directory = Path(directory)
        options: dict[str, Any] = {"device": "cpu", "dtype": dtype, "cache_bytes": cache_bytes, "max_model_len": 8192}
        if quant is not None:
            if "quant" not in {field.name for field in dataclasses.fields(LLMOptions)}:
                raise RuntimeError(f"quant is {quant}, and this version of the engine quantises nothing at the load")
            options["quant"] = quant
        self._options = LLMOptions(**options)
        self._events: list[Event] = []
        self._serial = 0
        self._pending: set[str] = set()
        self._idle = threading.Condition()

    def load(self) -> dict[str, Any]:
        inspection = inspect_checkpoint(self._directory)
        assert isinstance(inspection.spec, ModelSpec)
        files = [inspection.directory / name for name in inspection.weight_files]
        self._llm = LLM.load(inspection.spec, inspection.tokenizer, files, self._options)
        self._vocab_size = inspection.spec.vocab_size
        self._clock = StepClock(self._llm)
        self._loop: EngineLoop[Any, Any] = EngineLoop(
            self._llm, self._on_events, on_refused=self._on_refused, on_dead=self._on_dead
        )
        self._loop.start()
        memory = self._llm.memory_bytes()
        return {
            "weights_bytes": memory["weights"],
            "cache_bytes": memory["states"],
            "native": native_library.is_available(),
        }

    def _on_refused(self, item: Any, error: Exception) -> None:
        self._on_dead(error)

    def _on_dead(self, error: Exception) -> None:
        """A benchmark that can't go on ends at once instead of waiting."""
        sys.stderr.write(f"{error}\n")
        os._exit(1)

    def _on_events(self, events: list[Any]) -> None:
        now = time.perf_counter()
        with self._idle:
            for event in events:
                self._events.append((now, event))
                if event["type"] in ("done", "error"):
                    self._pending.discard(event["request_id"])
            if not self._pending:
                self._idle.notify_all()

    def _run(self, prompts: list[list[int]], new: int) -> tuple[float, Arrivals]:
        """When the requests went off, and of each when how many of its tokens came."""
        self._events.clear()
        prepared = []
        for prompt in prompts:
            self._serial += 1
            name = f"bench-{self._serial}"
            self._pending.add(name)
            prepared.append(
                self._llm.prepare(
                    {
                        "request_id": name,
                        "web_id": "bench",
                        "attempt": 0,
                        "model": "bench",
                        "prompt": {"token_ids": prompt},
                        "params": {"max_tokens": new, "temperature": 0.0, "ignore_eos": True, "seed": 0},
                        "priority": 0,
                        "deadline": time.time() + 600,
                    }
                )
            )
        started = time.perf_counter()
        for item in prepared:
            self._loop.submit(item)
        with self._idle:
            self._idle.wait_for(lambda: not self._pending, timeout=600)
        arrivals: dict[str, list[tuple[float, int]]] = {}
        for at, event in self._events:
            if event["type"] == "error":
                raise RuntimeError(event["error"]["message"])
            if event["type"] == "delta" and event["token_ids"]:
                arrivals.setdefault(event["request_id"], []).append((at, len(event["token_ids"])))
        return started, list(arrivals.values())

    def first_token(self, prompt: int, repeats: int, seed: int = 11) -> dict[str, float]:
        """Median seconds from submission to the first token, one request at a time."""
        times = []
        for prompts in self._prompts(repeats, prompt, seed):
            started, arrivals = self._run([prompts], 2)
            times.append(arrivals[0][0][0] - started)
        return {"seconds": sorted(times)[len(times) // 2]}

    def own_work(self, batch: int, prompt: int, new: int, seed: int = 3) -> dict[str, float]:
        """Share of the steps' time that is not the network's: schedule, sample, detokenise, emit."""
        self._clock.reset()
        self._run(self._prompts(batch, prompt, seed), new)
        return {"share": 1 - self._clock.network_s / self._clock.steps_s}
