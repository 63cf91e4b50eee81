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
    """Knows each request's output; its draft tokens are right up to a random place.

    Attributes:
        accepted: Draft tokens and accepted ones, call by call.
    """

    state_bytes = 0

    def __init__(self, outputs: Mapping[str, Sequence[int]], vocab_size: int, seed: int = 0) -> None:
        self.outputs = outputs
        self.vocab_size = vocab_size
        self.rng = random.Random(seed)
        self.open: dict[str, list[int]] = {}
        self.accepted: list[tuple[int, int]] = []
        self.forgotten: list[str] = []

    def observe(self, step, hidden):
        """Take no rows."""

    def propose(self, wanted):
        assert not self.open, "draft tokens without a call of accept"
        found = {}
        for request, count in wanted.items():
            assert count >= 1
            done = len(request.token_ids) - request.num_prompt_tokens
            truth = list(self.outputs[request.request_id][done : done + count])
            truth += [self.rng.randrange(self.vocab_size) for _ in range(count - len(truth))]
            if self.rng.random() < 0.6:
                at = self.rng.randrange(count)
                truth[at] = (truth[at] + 1) % self.vocab_size
            if self.rng.random() < 0.9:
                found[request] = truth[: self.rng.randint(1, count)]
        self.open = {request.request_id: drafts for request, drafts in found.items()}
        return found

    def accept(self, request, num_accepted):
        drafts = self.open.pop(request.request_id)
        assert 0 <= num_accepted <= len(drafts)
        self.accepted.append((len(drafts), num_accepted))

    def forget(self, request):
        self.forgotten.append(request.request_id)

    def can_propose(self, request):
        return True


def with_oracle(engine: Engine, oracle: Oracle) -> Engine:
    """The engine with another proposer."""
    assert engine._speculator is not None
    engine._speculator._proposer = oracle
    return engine


def always(method="ngram", **options) -> SpeculativeOptions:
    """Draft tokens whether it pays or not."""
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
