"""A network that gives the argmax of its logits, against one that gives all logits."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pytest
import torch

from inference.engine.engine import Engine
from inference.engine.request import EngineOutput, EngineRequest
from tests.inference.engine.fakes import FakeNetwork, assert_all_free, make_engine, make_spec, request

INVALID_IDS = (0, 33, 96)


@dataclass
class ChoosingNetwork(FakeNetwork):
    """Gives the argmax of its logits, as native heads do."""

    can_choose: bool = True
    num_choices: int = 0

    def argmax_logits(self, hidden: torch.Tensor, masked: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        self.num_choices += 1
        logits = self.compute_logits(hidden)
        if masked is not None:
            is_masked = [(int(masked[at // 32]) >> at % 32) & 1 == 1 for at in range(logits.shape[1])]
            logits[:, torch.tensor(is_masked)] = -torch.inf
        return logits.argmax(-1), logits.amax(-1)


def news(outputs: Sequence[EngineOutput]) -> list[dict[str, object]]:
    """Everything that outputs say but the time, in a form that can be compared."""
    return [asdict(output) | {"error": output.error and output.error.to_dict(), "admitted_at": 0} for output in outputs]


def counters(engine: Engine) -> dict[str, object]:
    return asdict(engine.stats())


def random_request(rng: random.Random, name: str, room: int) -> EngineRequest:
    prompt = [rng.randrange(97) for _ in range(rng.randint(1, 12))]
    special: dict[str, object] = rng.choice(
        [{}] * 8 + [{"temperature": 0.8}, {"logprobs": 2}, {"min_tokens": 4}, {"presence_penalty": 1.0}]
    )
    values = {"max_tokens": rng.randint(1, room - len(prompt)), "eos": [rng.randrange(97)], **special}
    values["min_tokens"] = min(values.get("min_tokens", 0), values["max_tokens"])
    return request(name, prompt, priority=rng.choice([0, 0, 1]), **values)


@pytest.mark.parametrize("kind", ["paged", "slots", "hybrid", "stateless"])
def test_an_argmax_network_gives_the_outputs_and_counters_of_one_with_logits(kind) -> None:
    short = plain = 0
    for seed in range(25):
        rng = random.Random(seed)
        spec = make_spec(kind)
        options: dict[str, object] = {
            "max_model_len": 60,
            "block_size": rng.choice([2, 4, 8]),
            "num_blocks": rng.choice([35, 65]),
            "num_state_slots": rng.randint(4, 7),
            "num_snapshot_slots": rng.choice([0, 3]),
            "max_num_seqs": rng.randint(2, 5),
            "max_num_batched_tokens": rng.randint(5, 20),
            "invalid_token_ids": INVALID_IDS,
        }
        poison = {rng.randrange(97): rng.choice([float("nan"), float("inf")]) for _ in range(rng.choice([0, 0, 2]))}
        network = ChoosingNetwork(spec, dict(poison))
        engines = [
            make_engine(network=network, **options),
            make_engine(network=FakeNetwork(spec, dict(poison)), **options),
        ]
        arrivals = {f"r{number}": rng.randint(0, 25) for number in range(rng.randint(1, 5))}
        requests = {name: random_request(rng, name, 60) for name in arrivals}
        leaves = {name: rng.randint(0, 60) for name in arrivals if rng.random() < 0.2}
        step = 0
        while step < 26 or engines[0].has_unfinished():
            for engine in engines:
                for name, at in arrivals.items():
                    if at == step:
                        engine.add_request(requests[name])
                    if leaves.get(name) == step:
                        engine.abort_request(name)
            found, expected = (news(engine.step()) for engine in engines)
            assert found == expected, f"schedule {seed}, step {step}"
            assert step % 4 or counters(engines[0]) == counters(engines[1]), f"schedule {seed}, step {step}"
            step += 1
        for engine in engines:
            assert_all_free(engine)
        short += network.num_choices
        plain += len(network.batches)
    assert plain / 3 < short < plain


@pytest.mark.parametrize("block_size", [16, 24])
@pytest.mark.parametrize("kind", ["paged", "slots", "hybrid"])
def test_what_long_decodes_leave_in_the_prefix_cache(kind, block_size: int) -> None:
    options: dict[str, object] = {
        "max_model_len": 720,
        "block_size": block_size,
        "num_blocks": 2 + 2 * 720 // block_size,
        "num_snapshot_slots": 20,
    }
    spec = make_spec(kind)
    engines = [make_engine(network=ChoosingNetwork(spec), **options), make_engine(network=FakeNetwork(spec), **options)]
    for engine in engines:
        for number, length in enumerate((3, 40)):
            engine.add_request(request(f"r{number}", range(number, number + length), max_tokens=600))
    while engines[0].has_unfinished():
        assert news(engines[0].step()) == news(engines[1].step())
    assert counters(engines[0]) == counters(engines[1])
    cached = engines[0].stats().prefix_cache
    assert cached.num_snapshots > 2 if kind != "paged" else cached.num_idle_blocks > 40


def test_an_engine_without_a_prefix_cache_asks_for_the_argmax_too() -> None:
    network = ChoosingNetwork(make_spec("hybrid"))
    engine = make_engine(network=network, prefix_cache=False)
    engine.add_request(request("r", [1, 2, 3], max_tokens=20))
    tokens = []
    while engine.has_unfinished():
        tokens += [token for output in engine.step() for token in output.new_token_ids]
    assert len(tokens) == 20
    assert network.num_choices == 20
