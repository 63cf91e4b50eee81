"""Proposers that know the answer, more or less, and engines with them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from inference.engine.config import EngineConfig
from inference.engine.engine import Engine
from inference.engine.speculation.draft_runner import DraftModel
from inference.engine.speculation.setup import Speculation
from inference.values.speculative_options import SpeculativeOptions
from tests.inference.engine.fakes import FakeNetwork, Kind, make_spec

VALUES = {
    "max_model_len": 64,
    "num_blocks": 65,
    "num_state_slots": 9,
    "num_spare_slots": 8,
    "block_size": 4,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 32,
}


class Oracle:
    """Knows each request's output; its guesses are right up to a random place.

    Attributes:
        settled: Guesses and accepted ones, call by call.
    """

    state_bytes = 0
    priors = (0.5,)
    has_hindsight = False

    def __init__(self, outputs: Mapping[str, Sequence[int]], vocab_size: int, seed: int = 0) -> None:
        self.outputs = outputs
        self.vocab_size = vocab_size
        self.rng = random.Random(seed)
        self.open: dict[str, list[int]] = {}
        self.settled: list[tuple[int, int]] = []
        self.forgotten: list[str] = []

    def propose(self, wanted):
        assert not self.open, "guesses that nobody settled"
        found = {}
        for request, count in wanted.items():
            assert count >= 1
            done = request.num_output_tokens
            truth = list(self.outputs[request.request_id][done : done + count])
            truth += [self.rng.randrange(self.vocab_size) for _ in range(count - len(truth))]
            if self.rng.random() < 0.6:
                at = self.rng.randrange(count)
                truth[at] = (truth[at] + 1) % self.vocab_size
            if self.rng.random() < 0.9:
                found[request] = truth[: self.rng.randint(1, count)]
        self.open = {request.request_id: guesses for request, guesses in found.items()}
        return found

    def settle(self, request, num_accepted):
        guesses = self.open.pop(request.request_id)
        assert 0 <= num_accepted <= len(guesses)
        self.settled.append((len(guesses), num_accepted))

    def forget(self, request):
        self.forgotten.append(request.request_id)

    def kind_of(self, request):
        return 0

    def num_unread(self, request):
        return 0

    def take_reading(self):
        return 0, 0.0

    def take_hindsight(self):
        return ()


class SlowStart(Oracle):
    """Is always right, and reads each prompt for ``setup_s`` of its clock first, which goes on by 1 when it is read."""

    def __init__(self, outputs: Mapping[str, Sequence[int]], vocab_size: int, setup_s: float) -> None:
        super().__init__(outputs, vocab_size)
        self.now = 0.0
        self.num_read, self.taken_s = 0, 0.0
        self._setup_s = setup_s
        self._known: set[str] = set()

    def clock(self):
        self.now += 1
        return self.now

    def propose(self, wanted):
        for request in wanted:
            self.num_read += self.num_unread(request)
            if self.num_unread(request):
                self._known.add(request.request_id)
                self.now += self._setup_s
                self.taken_s += self._setup_s
        found = {
            request: list(self.outputs[request.request_id][request.num_output_tokens :][:count])
            for request, count in wanted.items()
        }
        self.open = {request.request_id: guesses for request, guesses in found.items()}
        return found

    def num_unread(self, request):
        return 0 if request.request_id in self._known else len(request.token_ids)

    def take_reading(self):
        taken = self.num_read, self.taken_s
        self.num_read, self.taken_s = 0, 0.0
        return taken


def with_oracle(engine: Engine, oracle: Oracle) -> Engine:
    """The engine with another proposer."""
    assert engine._speculator is not None
    engine._speculator._proposer = oracle
    engine._speculator._accounts._has_hindsight = oracle.has_hindsight
    return engine


def always(method="ngram", **options) -> SpeculativeOptions:
    """Guess whether it pays or not."""
    values = {"num_tokens": 4, "is_adaptive": False} | options
    return SpeculativeOptions(method, "draft" if method == "draft" else "", **values)


def fake_engine(
    kind: Kind = "hybrid", *, options: SpeculativeOptions | None = None, draft_kind: Kind | None = None, **values
) -> Engine:
    """An engine around the fake network that speculates."""
    config = EngineConfig(**(VALUES | values))
    draft = None
    if draft_kind is not None:
        draft = draft_of(FakeNetwork(make_spec(draft_kind)), config)
    network = FakeNetwork(make_spec(kind))
    network.block_size = config.block_size
    options = options or always("ngram" if draft is None else "draft")
    return Engine(network, network.spec, config, speculation=Speculation(options, draft))


def draft_of(network, config: EngineConfig, **values) -> DraftModel:
    """A draft model with the sizes of the big one."""
    network.block_size = config.block_size
    sizes = {"num_blocks": 200, "num_state_slots": 9, "num_spare_slots": 8, "max_num_batched_tokens": 16}
    config = EngineConfig(
        **({"max_model_len": config.max_model_len, "block_size": config.block_size, "max_num_seqs": 8} | sizes | values)
    )
    return DraftModel(network, network.spec, config)
