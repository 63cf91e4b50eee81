"""A network whose next token depends on every earlier token, read back from the state tensors.

Its attention-like half stores token and position of each token in paged state and hashes what it reads through
the slot tables; its recurrent half keeps a rolling hash in a state slot. A wrong table, a slot with two writers or a
stale state changes the hash, hence the tokens. ``expected_tokens`` computes the same without an engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import torch

from inference.engine.config import EngineConfig
from inference.engine.engine import Engine
from inference.engine.request import EngineOutput, EngineRequest, FinishReason
from inference.modelling.forward_batch import ForwardBatch, LayerState
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.layers import AttentionSpec, Mamba2Spec
from inference.modelling.specs.parts import NormSpec
from inference.values.sampling_params import SamplingParams

VOCAB_SIZE = 97
MODULUS = 4093  # products of two residues stay exact in float32 (below 2^24)
Kind = Literal["paged", "slots", "hybrid", "stateless"]


def make_spec(kind: Kind, vocab_size: int = VOCAB_SIZE) -> ModelSpec:
    """A spec with the wanted kinds of state, a few bytes each."""
    attention = LayerSpec(AttentionSpec(num_heads=1, num_kv_heads=1, head_dim=1, scale=1.0))
    recurrent = LayerSpec(
        Mamba2Spec(
            intermediate_size=1,
            num_heads=1,
            head_dim=1,
            state_size=1,
            num_groups=1,
            conv_kernel=2,
            norm_group_size=1,
            gated_norm=None,
        )
    )
    layers = {
        "paged": (attention,),
        "slots": (recurrent,),
        "hybrid": (recurrent, attention),
        "stateless": (LayerSpec(),),
    }
    return ModelSpec("huggingface", "fake", 2, vocab_size, 4096, layers[kind], NormSpec())


@dataclass
class FakeNetwork:
    """Hidden rows are (paged hash, rolling hash).

    Attributes:
        batches: Number of tokens, and of decodes, of each forward pass.
        poison: Tokens after which the logits are unusable, with the value to put there.
    """

    spec: ModelSpec
    poison: dict[int, float] = field(default_factory=dict)
    batches: list[tuple[int, int]] = field(default_factory=list)
    block_size: int = 1

    def __call__(self, batch: ForwardBatch, states: Sequence[LayerState]) -> torch.Tensor:
        self.batches.append((batch.num_tokens, batch.num_decodes))
        self._check(batch)
        hidden = torch.zeros(batch.num_tokens, 3, dtype=torch.float64, device=batch.input_ids.device)
        for layer in states:
            if "k" in layer:
                layer["k"][batch.slot_mapping, 0, 0] = (batch.input_ids + 1).to(layer["k"].dtype)
                layer["v"][batch.slot_mapping, 0, 0] = (batch.positions + 1).to(layer["v"].dtype)
                hidden[:, 0] = self._paged(batch, layer)
            if "ssm_state" in layer:
                hidden[:, 1] = self._recurrent(batch, layer["ssm_state"])
        hidden[:, 2] = batch.input_ids
        return hidden

    def _check(self, batch: ForwardBatch) -> None:
        rows = batch.num_decodes + sum(chunk.stop - chunk.start for chunk in batch.prefills)
        assert rows == batch.num_tokens == len(batch.positions) == len(batch.slot_mapping)
        assert len(batch.state_slots) == batch.num_decodes + len(batch.prefills)
        row = batch.num_decodes
        for chunk in batch.prefills:
            assert chunk.start == row and chunk.stop > row
            assert chunk.state_slot == int(batch.state_slots[chunk.sequence])
            row = chunk.stop
        slots = batch.state_slots.tolist()
        if self.spec.state_bytes_per_sequence():
            assert len(set(slots)) == len(slots) and 0 not in slots, "two sequences share a state slot"
        if self.spec.state_bytes_per_token():
            written = batch.slot_mapping.tolist()
            assert len(set(written)) == len(written), "two tokens share a physical slot"
            assert min(written) >= self.block_size, "somebody writes to the scratch block"

    def _paged(self, batch: ForwardBatch, layer: LayerState) -> torch.Tensor:
        found = []
        if batch.num_decodes:
            slots, lengths = batch.attention.slots(0, batch.num_decodes), batch.attention.lengths[: batch.num_decodes]
            mask = torch.arange(slots.shape[1], device=slots.device) < lengths.unsqueeze(1)
            assert int(slots.masked_fill(mask, 0).sum()) == 0, "padding isn't scratch"
            tokens, places = layer["k"][slots, 0, 0].double(), layer["v"][slots, 0, 0].double()
            assert torch.equal(lengths - 1, batch.positions[: batch.num_decodes])
            found.append(torch.where(mask, _terms(tokens, places), 0).sum(-1) % MODULUS)
        for chunk in batch.prefills:
            slots = batch.attention.slots(chunk.sequence, chunk.sequence + 1)[0]
            assert len(slots) == chunk.length
            tokens, places = layer["k"][slots, 0, 0].double(), layer["v"][slots, 0, 0].double()
            found.append(_terms(tokens, places).cumsum(0)[chunk.context_len :] % MODULUS)
        return torch.cat(found)

    def _recurrent(self, batch: ForwardBatch, state: torch.Tensor) -> torch.Tensor:
        found = torch.zeros(batch.num_tokens, dtype=torch.float64, device=state.device)
        count = batch.num_decodes
        if count:
            slots = batch.decode_state_slots
            value = _roll(state[slots, 0, 0, 0].double(), batch.input_ids[:count], batch.positions[:count])
            state[slots, 0, 0, 0] = value.float()
            found[:count] = value
        for chunk in batch.prefills:
            rows = slice(chunk.start, chunk.stop)
            value = int(state[chunk.state_slot, 0, 0, 0]) if chunk.context_len else 0
            values = []
            for token, position in zip(batch.input_ids[rows].tolist(), batch.positions[rows].tolist(), strict=True):
                value = _roll_one(value, token, position)
                values.append(value)
            found[rows] = torch.tensor(values, dtype=torch.float64)
            state[chunk.state_slot, 0, 0, 0] = value
        return found

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        mixed = hidden[:, 0] * 7 + hidden[:, 1] * 13 + hidden[:, 2] * 3 + 1
        logits = _logits_of(self.spec.vocab_size, hidden.device)[(mixed % 1009).long()]
        for token, value in self.poison.items():
            logits[hidden[:, 2] == token] = value
        return logits


@cache
def _logits_of(vocab_size: int, device: torch.device) -> torch.Tensor:
    """(1009, V) logits of each remainder that a row's number can have."""
    numbers = torch.arange(1009, device=device, dtype=torch.float64).unsqueeze(1)
    values = torch.arange(vocab_size, device=device, dtype=torch.float64)
    return ((numbers * (values + 1) * 17 + values * values * 5) % 1009 / 100).float()


def _terms(tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return (tokens * (places * places % 31 + places)) % MODULUS


def _roll(value: torch.Tensor, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    return (value * 31 + token.double() + position.double() % 7 + 1) % MODULUS


def _roll_one(value: int, token: int, position: int) -> int:
    return (value * 31 + token + position % 7 + 1) % MODULUS


def logits_after(spec: ModelSpec, tokens: Sequence[int]) -> torch.Tensor:
    """(V,) logits after a sequence of tokens, without any state."""
    paged = rolling = 0
    for position, token in enumerate(tokens):
        place = position + 1
        paged += ((token + 1) * (place * place % 31 + place)) % MODULUS
        rolling = _roll_one(rolling, token, position)
    paged = paged % MODULUS if spec.state_bytes_per_token() else 0
    rolling = rolling if spec.state_bytes_per_sequence() else 0
    hidden = torch.tensor([[paged, rolling, tokens[-1]]], dtype=torch.float64)
    return FakeNetwork(spec).compute_logits(hidden)[0]


def expected_tokens(spec: ModelSpec, prompt: Sequence[int], count: int, stop: Sequence[int] = ()) -> list[int]:
    """Greedy continuation."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(logits_after(spec, tokens).argmax()))
        if tokens[-1] in stop:
            break
    return tokens[len(prompt) :]


def make_engine(
    kind: Kind = "hybrid", *, network: FakeNetwork | None = None, vocab_size: int = VOCAB_SIZE, **options: object
) -> Engine:
    """A small engine around the fake network."""
    spec = network.spec if network is not None else make_spec(kind, vocab_size)
    values: dict[str, object] = {
        "max_model_len": 64,
        "num_blocks": 65,
        "num_state_slots": 9,
        "block_size": 4,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 32,
    }
    config = EngineConfig(**(values | options))  # type: ignore[arg-type]
    network = network or FakeNetwork(spec)
    network.block_size = config.block_size
    return Engine(network, spec, config)


def request(request_id: str, prompt: Sequence[int], *, priority: int = 0, **params: object) -> EngineRequest:
    """A greedy request unless a temperature is given."""
    eos = tuple(params.pop("eos", ()))  # type: ignore[call-overload]
    prior = tuple(params.pop("prior", ()))  # type: ignore[call-overload]
    values = {"temperature": 0.0, "seed": 0} | params
    return EngineRequest(request_id, tuple(prompt), SamplingParams(**values), eos, priority, prior)  # type: ignore[arg-type]


@dataclass
class Collected:
    """Everything that came out for one request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list = field(default_factory=list)
    prompt_logprobs: list | None = None
    finals: list[EngineOutput] = field(default_factory=list)

    @property
    def finish_reason(self) -> FinishReason | None:
        assert len(self.finals) == 1, f"{len(self.finals)} final outputs"
        return self.finals[0].finish_reason


def collect(outputs: Sequence[EngineOutput], into: dict[str, Collected]) -> None:
    """Sort outputs by request."""
    for output in outputs:
        entry = into.setdefault(output.request_id, Collected())
        assert not entry.finals, "news after the final output"
        entry.tokens += output.new_token_ids
        entry.logprobs += output.logprobs or []
        if output.prompt_logprobs is not None:
            assert entry.prompt_logprobs is None
            entry.prompt_logprobs = output.prompt_logprobs
        if output.finish_reason is not None:
            entry.finals.append(output)


def run(engine: Engine, *requests: EngineRequest, max_steps: int = 5000) -> dict[str, Collected]:
    """Add the requests and step until all have ended."""
    for item in requests:
        engine.add_request(item)
    found: dict[str, Collected] = {}
    for _ in range(max_steps):
        if not engine.has_unfinished():
            break
        collect(engine.step(), found)
    assert not engine.has_unfinished(), "requests never end"
    assert_all_free(engine)
    return found


def assert_all_free(engine: Engine) -> None:
    """No block and no slot has an owner."""
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    assert (stats.num_blocks_used, stats.num_state_slots_used) == (0, 0)
