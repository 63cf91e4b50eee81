"""Run random schedules of an engine with faults: ``python -m tests.faults.engine_schedules --schedules 10000``.

In each schedule requests join, leave, are preempted and find prefixes of others, within tight limits, and one fault
happens. Every request but the faulty one has to get the tokens that it gets alone, and nothing stays allocated.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from inference.engine.engine import Engine
from inference.engine.model_runner import Network
from inference.engine.request import EngineRequest, FinishReason
from tests.faults.campaigns import add_argument, record
from tests.faults.engine_models import HASHES, MEMORY_ERRORS, Interrupted, Model
from tests.inference.engine.fakes import Collected, collect

FAULTS = ("none", "memory", "exception", "logits")
SCHEDULES_OF_RUN = 1_000_000
"""Distance of the runs' first schedules."""
MODELS = (*HASHES, "attention", "mixed")
REAL_EVERY = 40
"""One schedule of so many has a real network, where there are both: a pass takes twenty times as long."""
TIE = 1e-4
"""Difference of log-probabilities, in nats, below which a real network's next token may depend on the batch."""


@dataclass
class Figures:
    """What was counted, and what was wrong.

    Attributes:
        counts: Schedules, neighbours (requests without a fault of their own), failed requests, …
        problems: One line for each deviation.
    """

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return ", ".join(f"{name} {count:,}" for name, count in sorted(self.counts.items()))


class Campaign:
    """Random schedules; the same seed gives the same schedule."""

    def __init__(self, models: Sequence[str] = MODELS) -> None:
        made = [Model(name) for name in models]
        self._exact = [model for model in made if model.is_exact] or made
        self._real = [model for model in made if not model.is_exact] or made
        self.figures = {fault: Figures() for fault in FAULTS}

    def run(self, fault: str, seeds: range) -> Figures:
        """Run one schedule for each seed."""
        figures = self.figures[fault]
        for seed in seeds:
            number, rest = divmod(seed, REAL_EVERY)
            model = self._exact[seed % len(self._exact)] if rest else self._real[number % len(self._real)]
            _Schedule(model, fault, seed, figures).run()
        return figures


class _Schedule:
    def __init__(self, model: Model, fault: str, seed: int, figures: Figures) -> None:
        self._model, self._fault, self._figures = model, fault, figures
        self._rng = random.Random(f"{model.name} {fault} {seed}")
        self._what = f"fault {fault}, model {model.name}, seed {seed}"
        self._found: dict[str, Collected] = {}
        self._left: set[str] = set()
        self._refused: set[str] = set()

    def run(self) -> None:
        """Compute the schedule and compare its outputs."""
        rng, model = self._rng, self._model
        self._count("schedules")
        requests = [
            replace(request, caller=rng.choice("abc")) for request in rng.sample(model.requests, rng.randint(3, 9))
        ]
        if self._fault == "logits":
            with model.poisoned(rng) as (network, fails_after):
                self._compute(network, requests)
            for request in requests:
                self._compare(request, fails_after(request))
            return
        if self._fault == "exception":
            requests[0], constraint = model.failing(requests[0], rng)
            self._compute(model.network(), requests)
            self._compare_failing(requests.pop(0), has_failed=constraint.has_failed)
        elif self._fault == "memory":
            self._compute(self._interrupted(), requests)
        else:
            self._compute(model.network(), requests)
        for request in requests:
            self._compare(request)

    def _interrupted(self) -> Interrupted:
        rng = self._rng
        first, count = rng.randint(1, 20), rng.choice([1, 1, 2, 3, 5])
        numbers = set(range(first, first + count))
        passes, heads = (numbers, set()) if rng.random() < 0.7 else (set(), numbers)
        return Interrupted(self._model.network(), rng.choice(MEMORY_ERRORS), passes, heads)

    def _compute(self, network: Network, requests: Sequence[EngineRequest]) -> None:
        rng = self._rng
        max_num_seqs = rng.randint(1, 6)
        engine = self._model.engine(
            network,
            is_drafting=rng.random() < 0.25,
            block_size=rng.choice([1, 2, 4, 8]),
            num_blocks=rng.choice([42, 50, 70]),
            num_state_slots=rng.randint(2, 7),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=rng.randint(max_num_seqs, 16),
            prefix_cache=rng.random() < 0.8,
        )
        joins = {request.request_id: rng.randint(0, 12) for request in requests}
        leaves = {request.request_id: rng.randint(1, 30) for request in requests if rng.random() < 0.15}
        step = 0
        while step <= 12 or engine.has_unfinished():
            for request in requests:
                if joins[request.request_id] == step:
                    self._add(engine, request)
                if leaves.get(request.request_id) == step and engine.abort_request(request.request_id):
                    self._left.add(request.request_id)
            collect(engine.step(), self._found)
            step += 1
            if step > 3000:
                raise AssertionError(f"{self._what}: no progress")
        self._check_engine(engine)

    def _add(self, engine: Engine, request: EngineRequest) -> None:
        try:
            engine.add_request(request)
        except BaseException as error:  # the loop refuses the request then
            if "injected" not in str(error):
                raise
            self._refused.add(request.request_id)

    def _check_engine(self, engine: Engine) -> None:
        stats = engine.stats()
        self._count("preemptions", stats.num_preemptions)
        self._count("tokens found in the cache", stats.prefix_cache.num_cached_tokens)
        leaked = stats.num_blocks_used + stats.num_state_slots_used + stats.num_running + stats.num_waiting
        self._count("leaked", leaked)
        if leaked:
            self._problem(f"{leaked} blocks, slots or requests are left")
        engine.close()

    def _compare(self, request: EngineRequest, fails_after: int | None = None) -> None:
        """Compare one request with its run alone.

        Args:
            fails_after: Number of tokens after which it has to end with an error of its logits; None: it hasn't to.
        """
        name = request.request_id
        entry, alone = self._found[name], self._model.alone[name]
        final = entry.finals[0]
        if final.finish_reason is FinishReason.ERROR:
            self._count("failed")
            wanted = {"memory": "ran out of memory", "logits": "numerical_error"}.get(self._fault)
            message = "" if final.error is None else final.error.message
            if wanted is None or wanted not in message or (self._fault == "logits" and fails_after is None):
                self._problem(f"{name} failed: {message}")
            if fails_after is not None and len(entry.tokens) != fails_after:
                self._problem(f"{name} failed after {len(entry.tokens)} tokens, not {fails_after}")
        else:
            if fails_after is not None and name not in self._left:
                self._problem(f"{name} didn't fail")
            self._count("neighbours")
            if name not in self._left and final.finish_reason is not alone.finish_reason:
                self._problem(f"{name} ended with {final.finish_reason}")
        self._compare_tokens(request, is_whole=final.finish_reason in (FinishReason.STOP, FinishReason.LENGTH))

    def _compare_tokens(self, request: EngineRequest, *, is_whole: bool) -> None:
        entry, alone = self._found[request.request_id], self._model.alone[request.request_id]
        length = len(alone.tokens) if is_whole else len(entry.tokens)
        if entry.tokens == alone.tokens[:length]:
            if self._model.is_exact and entry.logprobs != alone.logprobs[: len(entry.logprobs)]:
                self._problem(f"{request.request_id}: other log-probabilities")
            return
        at = next(i for i, token in enumerate([*entry.tokens, None]) if token != [*alone.tokens, None][i])
        top = alone.logprobs[at].top if not self._model.is_exact else ()
        if len(top) > 1 and top[0][1] - top[1][1] < TIE:
            self._count("equally probable tokens")
        else:
            self._count("changed")
            self._problem(f"{request.request_id} changed at {at}: {entry.tokens}, alone {alone.tokens}")

    def _compare_failing(self, request: EngineRequest, *, has_failed: bool) -> None:
        if request.request_id in self._refused:
            self._count("failed")
            return
        final = self._found[request.request_id].finals[0]
        if has_failed and request.request_id not in self._left:
            self._count("failed")
            if final.finish_reason is not FinishReason.ERROR or final.error is None:
                self._problem(f"{request.request_id} raised, and ended with {final.finish_reason}")
        self._compare_tokens(request, is_whole=final.finish_reason in (FinishReason.STOP, FinishReason.LENGTH))

    def _count(self, name: str, number: int = 1) -> None:
        self._figures.counts[name] += number

    def _problem(self, words: str) -> None:
        self._figures.problems.append(f"{self._what}: {words}")


def main() -> int:
    """Return 0 if no neighbour changed and nothing was left."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.engine_schedules", description=__doc__)
    parser.add_argument("--schedules", type=int, default=10_000, help="of each fault")
    parser.add_argument("--seed", type=int, default=0, help="run, whose schedules have numbers of their own")
    parser.add_argument("--first", type=int, help="in place of a run: the first schedule, such as that of a problem")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=FAULTS)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    add_argument(parser)
    given = parser.parse_args()
    if given.record and (given.first is not None or given.models != MODELS):
        parser.error("--record counts whole runs of all models: leave out --first and --models")
    first = given.seed * SCHEDULES_OF_RUN if given.first is None else given.first
    logging.disable(logging.CRITICAL)  # the engine logs each injected error
    campaign = Campaign(given.models)
    for fault in given.faults:
        started = time.monotonic()
        figures = campaign.run(fault, range(first, first + given.schedules))
        seconds = time.monotonic() - started
        record(
            given.record, f"engine {fault}", seed=given.seed, size=given.schedules, failures=len(figures.problems),
            seconds=seconds, figures=figures.counts,
        )  # fmt: skip
        sys.stdout.write(f"{fault}: {figures}, problems {len(figures.problems)}, {seconds:.0f} s\n")
        for problem in figures.problems[:20]:
            sys.stdout.write(f"  {problem}\n")
        sys.stdout.flush()
    return 1 if any(figures.problems for figures in campaign.figures.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
