"""Networks, requests and faults for random schedules of an engine.

The networks of hashes compute exactly, and each of their tokens depends on the whole state. The real networks are
float32, whose products round differently in another batch; their requests are greedy, and a token may differ where the
two most probable tokens are as good as equal.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from inference.engine.config import EngineConfig
from inference.engine.engine import Engine
from inference.engine.model_runner import Network
from inference.engine.request import EngineRequest
from inference.engine.speculation.setup import Speculation
from inference.modelling.forward_batch import ForwardBatch, LayerState
from inference.values.sampling_params import SamplingParams
from inference.values.speculative_options import SpeculativeOptions
from inference.values.token_constraint import TokenMask
from tests.inference.engine.fakes import VOCAB_SIZE, Collected, FakeNetwork, make_spec, run
from tests.inference.modelling import reference_oxidizr as oxidizr
from tests.inference.modelling.harness import load_directory

MAX_LEN = 40
NUM_EXACT, NUM_REAL = 60, 15
"""Requests of a network of hashes, and of a real one, which takes twenty times as long."""
HASHES = ("paged", "slots", "hybrid")


class PanicException(BaseException):
    """What a Rust library raises through pyo3: no ``Exception``."""


ERRORS = (ValueError, IndexError, RuntimeError, RecursionError, MemoryError, PanicException)
MEMORY_ERRORS = (
    torch.OutOfMemoryError("CUDA out of memory"),
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("std::bad_alloc"),
)


@dataclass
class Interrupted:
    """A network around another one, whose passes run out of memory.

    Attributes:
        passes: Numbers of forward passes that fail after they have advanced all states.
        heads: Numbers of computations of logits that fail.
    """

    network: Network
    error: BaseException
    passes: set[int] = field(default_factory=set)
    heads: set[int] = field(default_factory=set)
    num_passes: int = 0
    num_heads: int = 0

    def __call__(self, batch: ForwardBatch, states: Sequence[LayerState]) -> torch.Tensor:
        hidden = self.network(batch, states)
        self.num_passes += 1
        if self.num_passes in self.passes:
            raise self.error
        return hidden

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.num_heads += 1
        if self.num_heads in self.heads:
            raise self.error
        return self.network.compute_logits(hidden)


class FailingConstraint:
    """A grammar that allows everything, and raises at one of its calls; and the DRY penalty's breakers likewise."""

    error: str | None = None
    must_end = False

    def __init__(self, call: str, number: int, error: type[BaseException]) -> None:
        self._call, self._left, self._error = call, number, error
        self.has_failed = False

    def _count(self, call: str) -> None:
        if call == self._call:
            self._left -= 1
            if self._left < 0:
                self.has_failed = True
                raise self._error("injected")

    @property
    def is_finished(self) -> bool:
        self._count("is_finished")
        return False

    def mask(self) -> TokenMask:
        self._count("mask")
        return TokenMask(np.empty(0, dtype=np.int64), allows=False)

    def allows(self, token_id: int) -> bool:
        self._count("allows")
        return True

    def accept(self, token_id: int) -> None:
        self._count("accept")

    def ends_at(self, token_ids: Sequence[int], stop: int) -> bool:
        self._count("ends_at")
        return True


CALLS = ("is_finished", "mask", "allows", "accept", "ends_at")


class Model:
    """A network with a pool of requests, and what each of them generates alone."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_exact = name in HASHES
        rng = random.Random(name)
        if self.is_exact:
            self.spec: Any = make_spec(name)  # type: ignore[arg-type]
            self._real: Any = None
        else:
            self._real = _real_network(name)
            self.spec = self._real.spec
        prefixes = [[rng.randrange(80) for _ in range(rng.randint(4, 18))] for _ in range(3)]
        self.requests = [
            self._request(rng, number, prefixes) for number in range(NUM_EXACT if self.is_exact else NUM_REAL)
        ]
        self.alone: dict[str, Collected] = {}
        for request in self.requests:
            self.alone |= run(self.engine(self.network(), prefix_cache=False, max_num_seqs=1), request)

    def _request(self, rng: random.Random, number: int, prefixes: Sequence[Sequence[int]]) -> EngineRequest:
        prompt = [*rng.choice([[], *prefixes]), *(rng.randrange(80) for _ in range(rng.randint(1, 6)))]
        if rng.random() < 0.2:
            prompt += prompt[-6:] + prompt[-6:]  # for draft tokens
        prompt = prompt[: MAX_LEN - 2]
        params: dict[str, Any] = {"temperature": 0.0, "logprobs": 2}
        if self.is_exact:
            params = {
                "temperature": rng.choice([0.0, 0.0, 0.7, 1.3]),
                "top_p": rng.choice([1.0, 0.9]),
                "top_k": rng.choice([0, 0, 20]),
                "logprobs": rng.choice([None, None, 2]),
                "repetition_penalty": rng.choice([1.0, 1.0, 1.2]),
                "frequency_penalty": rng.choice([0.0, 0.0, 0.5]),
                "min_tokens": rng.choice([0, 0, 2]),
            }
        params["seed"] = number
        params["max_tokens"] = rng.randint(2, min(20, MAX_LEN - len(prompt)))
        stop = (rng.randrange(VOCAB_SIZE),)
        return EngineRequest(f"r{number}", tuple(prompt), SamplingParams(**params), stop, rng.choice([0, 0, 0, 1, 7]))

    def network(self) -> Network:
        """A network of hashes has a memory of its passes; a real one is shared."""
        return self._real if self._real is not None else FakeNetwork(self.spec)

    def engine(self, network: Network, *, is_drafting: bool = False, **options: Any) -> Engine:
        values: dict[str, Any] = {"num_blocks": 70, "num_state_slots": 9, "block_size": 4, "max_num_seqs": 8} | options
        config = EngineConfig(max_model_len=MAX_LEN, num_spare_slots=2, num_snapshot_slots=6, **values)
        inner = getattr(network, "network", network)
        if isinstance(inner, FakeNetwork):
            inner.block_size = config.block_size
        ngram = Speculation(SpeculativeOptions("ngram", num_tokens=3, is_adaptive=False))
        return Engine(network, self.spec, config, speculation=ngram if is_drafting else None)

    @contextmanager
    def poisoned(self, rng: random.Random) -> Iterator[tuple[Network, Callable[[EngineRequest], int | None]]]:
        """Yield a network with unusable logits behind one token, and after how many tokens a request gets there."""
        token = rng.randrange(80)
        if self._real is None:
            value = rng.choice([float("nan"), float("inf"), -float("inf")])
            yield FakeNetwork(self.spec, poison={token: value}), lambda request: self._first(request, token, 1)
            return
        weight = self._real.embed_tokens.weight
        with torch.inference_mode():
            row = weight[token].clone()
            weight[token] = float("nan")
        yield self._real, lambda request: self._first(request, token, len(request.prompt_token_ids))
        with torch.inference_mode():
            weight[token] = row

    def _first(self, request: EngineRequest, token: int, num_last: int) -> int | None:
        if token in request.prompt_token_ids[-num_last:]:
            return 0
        tokens = self.alone[request.request_id].tokens[:-1]
        return tokens.index(token) + 1 if token in tokens else None

    def failing(self, request: EngineRequest, rng: random.Random) -> tuple[EngineRequest, FailingConstraint]:
        """A request whose own text program raises; without the error its tokens would be those of ``request``."""
        constraint = FailingConstraint(rng.choice(CALLS), rng.randrange(6), rng.choice(ERRORS))
        if constraint._call == "ends_at":
            # Each token ends a match, so nothing is penalised.
            params = replace(request.params, dry_multiplier=0.5)
            return replace(request, params=params, dry_breakers=constraint), constraint
        return replace(request, constraint=constraint), constraint


def _real_network(name: str) -> Any:
    layers = {"attention": ("gqa", "mla"), "mixed": ("mamba2", "mla", "mamba3", "gqa", "mamba1")}[name]
    with tempfile.TemporaryDirectory() as directory:
        config = oxidizr.OxidizrConfig(layers)
        oxidizr.write_checkpoint(Path(directory), config, oxidizr.random_weights(config))
        return load_directory(Path(directory), model_type="oxidizr")
