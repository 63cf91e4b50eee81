"""Real networks in float32: a request's greedy tokens don't depend on batch, chunks or preemption."""

from __future__ import annotations

import random

import pytest
from transformers import LlamaConfig

from inference.engine.config import EngineConfig, plan_state_budget
from inference.engine.engine import Engine
from tests.inference.engine.fakes import request, run
from tests.inference.modelling import reference_oxidizr as oxidizr
from tests.inference.modelling.harness import load_directory
from tests.inference.modelling.huggingface import make_checkpoint

pytestmark = pytest.mark.usefixtures("two_threads")

MAX_LEN = 96
NUM_REQUESTS = 16


@pytest.fixture(scope="module", params=["llama", "oxidizr-hybrid"])
def network(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "llama":
        config = LlamaConfig(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=120,
            max_position_embeddings=256,
        )
        make_checkpoint(config, directory)
        return load_directory(directory)
    config = oxidizr.OxidizrConfig(("mamba2", "mla", "mamba3", "gqa", "mamba1"))
    oxidizr.write_checkpoint(directory, config, oxidizr.random_weights(config))
    return load_directory(directory, model_type="oxidizr")


def requests():
    rng = random.Random(5)
    return [
        request(f"r{i}", [rng.randrange(80) for _ in range(rng.randint(1, 45))], max_tokens=rng.randint(5, 40))
        for i in range(NUM_REQUESTS)
    ]


def engine_with(network, **options) -> Engine:
    values = {"num_blocks": 400, "num_state_slots": 17, "block_size": 4, "max_num_seqs": 16}
    return Engine(network, network.spec, EngineConfig(max_model_len=MAX_LEN, **(values | options)))


def test_sixteen_requests_together_alone_and_under_tiny_budgets(network):
    alone = {}
    for source in requests():
        alone |= run(engine_with(network, max_num_seqs=1), source)
    wanted = {name: entry.tokens for name, entry in alone.items()}
    assert len({tuple(tokens) for tokens in wanted.values()}) > NUM_REQUESTS // 2, "the networks must have a say"

    def check(engine: Engine) -> int:
        found = run(engine, *requests())
        assert {name: entry.tokens for name, entry in found.items()} == wanted
        return engine.stats().num_preemptions

    check(engine_with(network))
    check(engine_with(network, max_num_batched_tokens=16))
    check(engine_with(network, num_state_slots=4, max_num_seqs=3, max_num_batched_tokens=7))
    assert check(engine_with(network, num_blocks=26, max_num_batched_tokens=24)) > 0


def test_a_planned_budget_runs(network):
    spec = network.spec
    least = spec.state_bytes_per_token() * (MAX_LEN + 16) + 2 * spec.state_bytes_per_sequence()
    plan = plan_state_budget(
        spec, dtype="float32", budget_bytes=2 * least, max_num_seqs=8, max_model_len=MAX_LEN, block_size=8
    )
    engine = engine_with(
        network, num_blocks=plan.num_blocks, num_state_slots=plan.num_state_slots, block_size=8, max_num_seqs=8
    )
    assert engine.stats().state_bytes == plan.total_bytes <= 2 * least
    assert len(run(engine, *requests())) == NUM_REQUESTS
