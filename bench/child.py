"""One measured implementation in a process of its own: reads a JSON command per line, answers one per line.

    python -m bench.child engine|transformers CHECKPOINT_DIRECTORY

Commands: {"do": "prefill", "tokens": n}, {"do": "decode", "batch": b, "prompt": p, "new": n},
{"do": "first_token", "prompt": p, "repeats": r}, {"do": "quit"}. A process of its own keeps thread pools and
memory apart.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

SEED = 3


def random_prompts(count: int, length: int, vocab_size: int, seed: int = SEED) -> list[list[int]]:
    """Seeded token-id prompts, all different."""
    import random

    source = random.Random(seed)
    return [[source.randrange(vocab_size) for _ in range(length)] for _ in range(count)]


class TransformersPeer:
    """Eager transformers in bfloat16 with its default attention and cache."""

    def __init__(self, directory: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).eval()
        self.vocab_size = self.model.config.vocab_size

    def _generate_s(self, prompts: list[list[int]], new: int) -> float:
        ids = self.torch.tensor(prompts)
        started = time.perf_counter()
        self.model.generate(
            ids,
            attention_mask=self.torch.ones_like(ids),
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            pad_token_id=0,
        )
        return time.perf_counter() - started

    def prefill(self, tokens: int) -> dict[str, float]:
        """Prompt tokens per second of one forward pass that yields the next token."""
        prompts = random_prompts(1, tokens, self.vocab_size)
        return {"tokens_per_s": tokens / self._generate_s(prompts, 1)}

    def decode(self, batch: int, prompt: int, new: int) -> dict[str, float]:
        """Tokens per second of the steps after the first token."""
        prompts = random_prompts(batch, prompt, self.vocab_size)
        first = self._generate_s(prompts, 1)
        return {"tokens_per_s": batch * new / (self._generate_s(prompts, new + 1) - first)}


class EnginePeer:
    """Our engine without the platform: requests go straight to the engine's thread."""

    def __init__(self, directory: Path) -> None:
        from inference.engine.loop import EngineLoop
        from inference.llm import LLM, LLMOptions
        from models_registry.detection.inspection import inspect_checkpoint

        inspection = inspect_checkpoint(directory)
        self.llm = LLM.load(
            inspection.spec,
            inspection.tokenizer,
            [inspection.directory / name for name in inspection.weight_files],
            LLMOptions(device="cpu", dtype="bfloat16", max_num_seqs=64),
        )
        self.vocab_size = inspection.spec.vocab_size
        self.events: list[tuple[float, dict[str, Any]]] = []
        self.loop: EngineLoop[Any, Any] = EngineLoop(
            self.llm, self._on_events, on_refused=self._on_refused, on_dead=self._on_dead
        )
        self.loop.start()
        self.serial = 0
        self.pending: set[str] = set()
        import threading

        self.idle = threading.Condition()

    def _on_refused(self, item: Any, error: Exception) -> None:
        self._on_dead(error)

    def _on_dead(self, error: Exception) -> None:
        """A benchmark that can't go on ends at once instead of waiting."""
        import os

        sys.stderr.write(f"{error}\n")
        os._exit(1)

    def _on_events(self, events: list[Any]) -> None:
        now = time.perf_counter()
        with self.idle:
            for event in events:
                self.events.append((now, event))
                if event["type"] in ("done", "error"):
                    self.pending.discard(event["request_id"])
            if not self.pending:
                self.idle.notify_all()

    def _run(self, prompts: list[list[int]], new: int) -> tuple[float, list[tuple[float, dict[str, Any]]]]:
        self.events.clear()
        prepared = []
        for prompt in prompts:
            self.serial += 1
            name = f"bench-{self.serial}"
            self.pending.add(name)
            prepared.append(
                self.llm.prepare(
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
            self.loop.submit(item)
        with self.idle:
            self.idle.wait_for(lambda: not self.pending, timeout=600)
        for _, event in self.events:
            if event["type"] == "error":
                raise RuntimeError(event["error"]["message"])
        return started, list(self.events)

    def prefill(self, tokens: int) -> dict[str, float]:
        """Prompt tokens per second until the first new token."""
        started, events = self._run(random_prompts(1, tokens, self.vocab_size), 1)
        return {"tokens_per_s": tokens / (events[-1][0] - started)}

    def decode(self, batch: int, prompt: int, new: int) -> dict[str, float]:
        """Tokens per second from the moment every sequence has its first token."""
        _, events = self._run(random_prompts(batch, prompt, self.vocab_size), new + 1)
        deltas = [(at, event) for at, event in events if event["type"] == "delta"]
        firsts: dict[str, float] = {}
        for at, event in deltas:
            firsts.setdefault(event["request_id"], at)
        begin, end = max(firsts.values()), deltas[-1][0]
        count = sum(len(event["token_ids"]) for at, event in deltas if at > begin)
        return {"tokens_per_s": count / (end - begin)}

    def serve(self, batch: int, prompt: int, new: int) -> dict[str, float]:
        """Aggregate generated tokens per second of requests that arrive together, prefill included."""
        started, events = self._run(random_prompts(batch, prompt, self.vocab_size, seed=batch), new)
        return {"tokens_per_s": batch * new / (events[-1][0] - started)}

    def first_token(self, prompt: int, repeats: int) -> dict[str, float]:
        """Median seconds from submission to the first token, one request at a time."""
        times = []
        for prompts in random_prompts(repeats, prompt, self.vocab_size, seed=11):
            started, events = self._run([prompts], 2)
            times.append(next(at for at, event in events if event["type"] == "delta") - started)
        return {"seconds": sorted(times)[len(times) // 2]}


def main() -> None:
    """Serve commands from standard input."""
    kind, directory = sys.argv[1], Path(sys.argv[2])
    answers = sys.stdout
    sys.stdout = sys.stderr
    peer: Any = EnginePeer(directory) if kind == "engine" else TransformersPeer(directory)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        name = command.pop("do")
        if name == "quit":
            break
        print(json.dumps(getattr(peer, name)(**command)), file=answers, flush=True)
    import os

    os._exit(0)


if __name__ == "__main__":
    main()
