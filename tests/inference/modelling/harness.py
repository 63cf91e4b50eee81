"""Run a network through the ways in which an engine computes a sequence, and compare with an oracle.

``SequenceRunner`` keeps paged and per-sequence state with deliberately scattered slots, filled with garbage
before use, so that a layer that reads a slot it doesn't own gives wrong numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open

from inference.modelling.families.config import CheckpointConfig, CheckpointView, Facts, TensorInfo, TensorTable
from inference.modelling.families.registry import family_builder
from inference.modelling.forward_batch import AttentionMetadata, ForwardBatch, LayerState, PrefillChunk
from inference.modelling.network import HybridForCausalLM
from inference.modelling.spec import ModelSpec
from inference.modelling.weights.loader import load_network

BLOCK_SIZE = 4
CHUNKS = (1, 7, 64)


def read_view(directory: Path, config: dict | None = None) -> CheckpointView:
    """The view that a family sees of a directory; ``config`` replaces config.json."""
    tensors: dict[str, TensorInfo] = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="pt") as handle:
            for name in handle.keys():  # noqa: SIM118
                part = handle.get_slice(name)
                tensors[name] = TensorInfo(part.get_dtype(), tuple(part.get_shape()), path.name)
    if config is None:
        config = json.loads((directory / "config.json").read_text())
    return CheckpointView(CheckpointConfig(config), TensorTable(tensors), Facts())


def load_directory(directory: Path, config: dict | None = None, model_type: str | None = None) -> HybridForCausalLM:
    """Spec by the registered family, checked JSON round trip, weights in float32."""
    view = read_view(directory, config)
    spec = family_builder(model_type or view.config.string("model_type"))(view)
    assert ModelSpec.from_dict(json.loads(spec.to_json())) == spec
    assert spec.parameters.keys() == spec.parameter_shapes().keys()
    return load_network(spec, sorted(directory.glob("*.safetensors")), dtype=torch.float32)


@dataclass
class Sequence_:
    """One sequence's place in the state."""

    state_slot: int
    blocks: list[int]
    num_computed: int = 0

    def slots(self, stop: int) -> torch.Tensor:
        """Physical slots of positions 0 … stop-1."""
        positions = torch.arange(stop)
        return torch.tensor(self.blocks)[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE


@dataclass
class SequenceRunner:
    """A tiny engine without scheduling: computes given numbers of tokens of given sequences per step."""

    network: HybridForCausalLM
    max_sequences: int = 8
    max_len: int = 128
    state_dtype: torch.dtype = torch.float32
    states: list[LayerState] = field(default_factory=list)
    sequences: dict[str, Sequence_] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.blocks_each = -(-self.max_len // BLOCK_SIZE)
        num_blocks = 1 + self.max_sequences * self.blocks_each
        generator = torch.Generator().manual_seed(1)
        self.free_blocks = (1 + torch.randperm(num_blocks - 1, generator=generator)).tolist()
        self.free_slots = (1 + torch.randperm(self.max_sequences, generator=generator)).tolist()
        dtype = self.network.embed_tokens.weight.dtype
        for layer in self.network.spec.layers:
            tensors: LayerState = {}
            for part in layer.state():
                rows = num_blocks * BLOCK_SIZE if part.per == "token" else self.max_sequences + 1
                kind = {"model": dtype, "state": self.state_dtype, "float32": torch.float32}[part.dtype]
                tensors[part.name] = torch.full((rows, *part.shape), 7.0, dtype=kind)
            self.states.append(tensors)

    def step(self, work: Sequence[tuple[str, Sequence[int]]]) -> dict[str, torch.Tensor]:
        """Compute the given next tokens of each named sequence in one batch.

        Returns:
            Logits (n, V) of each sequence's tokens.
        """
        for name, _ in work:
            if name not in self.sequences:
                blocks = [self.free_blocks.pop() for _ in range(self.blocks_each)]
                self.sequences[name] = Sequence_(self.free_slots.pop(), blocks)
        decodes = [item for item in work if len(item[1]) == 1 and self.sequences[item[0]].num_computed > 0]
        others = [item for item in work if item not in decodes]
        ordered = decodes + others
        ids, positions, mapping, chunks, first_rows = [], [], [], [], [0]
        for index, (name, tokens) in enumerate(ordered):
            sequence = self.sequences[name]
            start, stop = sequence.num_computed, sequence.num_computed + len(tokens)
            row = len(ids)
            ids += list(tokens)
            positions += list(range(start, stop))
            mapping.append(sequence.slots(stop)[start:])
            first_rows.append(len(ids))
            if index >= len(decodes):
                chunks.append(PrefillChunk(row, len(ids), start, index, sequence.state_slot))
        batch = ForwardBatch(
            input_ids=torch.tensor(ids),
            positions=torch.tensor(positions),
            slot_mapping=torch.cat(mapping),
            state_slots=torch.tensor([self.sequences[name].state_slot for name, _ in ordered]),
            num_decodes=len(decodes),
            prefills=tuple(chunks),
            attention=AttentionMetadata(
                blocks=torch.tensor([self.sequences[name].blocks for name, _ in ordered], dtype=torch.int32).flatten(),
                starts=torch.arange(len(ordered)) * self.blocks_each,
                lengths=torch.tensor([self.sequences[name].num_computed + len(tokens) for name, tokens in ordered]),
                first_rows=torch.tensor(first_rows),
                block_size=BLOCK_SIZE,
            ),
        )
        with torch.inference_mode():
            logits = self.network.compute_logits(self.network(batch, self.states))
        results, row = {}, 0
        for name, tokens in ordered:
            results[name] = logits[row : row + len(tokens)]
            self.sequences[name].num_computed += len(tokens)
            row += len(tokens)
        return results

    def run(self, name: str, tokens: Sequence[int], chunk: int) -> torch.Tensor:
        """All tokens of one sequence in pieces of ``chunk``; logits (n, V)."""
        parts = [self.step([(name, tokens[at : at + chunk])])[name] for at in range(0, len(tokens), chunk)]
        return torch.cat(parts)


LARGE = 10.0
"""Logits of a network of seeded weights are seldom larger; granite's with a tied head are 33."""


def assert_matches_oracle(
    network: HybridForCausalLM,
    oracle: Callable[[torch.Tensor], torch.Tensor],
    *,
    tolerance: float = 1e-4,
    length: int = 70,
    seed: int = 0,
) -> None:
    """Full forward, chunks of 1, 7 and 64, prefill then step-by-step decode, and mixed batches.

    Args:
        oracle: (n,) token ids to (n, V) logits.
        tolerance: Greatest absolute difference of a logit, where the largest ones are at most ``LARGE``; in proportion
            where they are larger, as float32 rounds on both sides.
    """
    generator = torch.Generator().manual_seed(seed)
    vocab = network.spec.vocab_size
    tokens = torch.randint(0, vocab, (length,), generator=generator).tolist()
    wanted = oracle(torch.tensor(tokens))

    def compare(found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
        difference = (found - expected).abs().max().item()
        limit = tolerance * max(1.0, expected.abs().max().item() / LARGE)
        assert difference <= limit, f"{what}: logits differ by {difference:.2e}, more than {limit:.1e}"

    runner = SequenceRunner(network)
    compare(runner.run("full", tokens, length), wanted, "full forward")
    for chunk in CHUNKS:
        compare(SequenceRunner(network).run("chunked", tokens, chunk), wanted, f"prefill in chunks of {chunk}")
    runner = SequenceRunner(network)
    head = runner.run("decode", tokens[:20], 20)
    tail = runner.run("decode", tokens[20:], 1)
    compare(torch.cat([head, tail]), wanted, "prefill then decode")
    _check_mixed(network, oracle, compare, generator)


def _check_mixed(network, oracle, compare, generator) -> None:
    """Four sequences of different lengths start at different steps; decodes, first and later chunks share steps."""
    vocab = network.spec.vocab_size
    lengths = {"a": 33, "b": 21, "c": 40, "d": 12}
    plans = {
        "a": [9] + [1] * 24,
        "b": [0, 1] + [5, 1, 7] + [1] * 7,
        "c": [0, 0, 17, 11] + [1] * 12,
        "d": [0] * 5 + [1] * 12,
    }
    texts = {key: torch.randint(0, vocab, (n,), generator=generator).tolist() for key, n in lengths.items()}
    runner = SequenceRunner(network)
    gathered: dict[str, list[torch.Tensor]] = {key: [] for key in lengths}
    done = dict.fromkeys(lengths, 0)
    for step in range(max(len(plan) for plan in plans.values())):
        work = []
        for key, plan in plans.items():
            count = plan[step] if step < len(plan) else 0
            if count:
                work.append((key, texts[key][done[key] : done[key] + count]))
                done[key] += count
        for key, logits in runner.step(work).items():
            gathered[key].append(logits)
    for key, parts in gathered.items():
        found = torch.cat(parts)
        compare(found, oracle(torch.tensor(texts[key][: found.shape[0]])), f"mixed batch, sequence {key}")
