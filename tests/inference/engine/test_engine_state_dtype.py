"""Engines whose recurrent states are stored in bfloat16: what is equal to the bit, and half the bytes.

A state is rounded at the end of every step. So texts are equal where the steps of a request are: alone and in a batch,
with replayed decodes, and each time from the same snapshot or saved state, which are copies. Other chunks, a
preemption, which computes output again as a prompt, and the verification of draft tokens round elsewhere.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from inference.engine.config import EngineConfig
from inference.engine.engine import Engine
from inference.engine.speculation.setup import Speculation
from inference.modelling.backends.backend import pack_weights
from tests.inference.engine.fakes import request, run
from tests.inference.engine.speculation.fakes import Oracle, always, with_oracle
from tests.inference.engine.test_saved_state import load_family, save

FAMILIES = ("mamba2", "olmo_hybrid", "xlstm", "oxidizr-mamba3")
MAX_LEN = 160


@pytest.fixture(scope="module", params=FAMILIES)
def network(request, tmp_path_factory):
    found = load_family(request.param, tmp_path_factory.mktemp(request.param))
    pack_weights(found)
    return found


def engine_with(network, speculation=None, **options):
    values = {"num_blocks": 400, "num_state_slots": 17, "block_size": 4, "max_num_seqs": 16, "state_dtype": "bfloat16"}
    config = EngineConfig(max_model_len=MAX_LEN, **(values | options))
    return Engine(network, network.spec, config, speculation=speculation)


def tokens_of(seed, count):
    rng = random.Random(seed)
    return [rng.randrange(80) for _ in range(count)]


def requests():
    rng = random.Random(5)
    return [
        request(f"r{number}", tokens_of(number, rng.randint(1, 45)), max_tokens=rng.randint(5, 40))
        for number in range(8)
    ]


def texts(found):
    return {name: entry.tokens for name, entry in found.items()}


@pytest.fixture(scope="module")
def alone(network):
    found = {}
    for source in requests():
        found |= texts(run(engine_with(network, max_num_seqs=1, prefix_cache=False), source))
    return found


def test_in_a_batch_as_alone_with_replayed_and_with_eager_steps(network, alone):
    engine, eager = engine_with(network, prefix_cache=False), engine_with(network, prefix_cache=False)
    eager._runner._programs = None
    for _ in range(2):
        assert texts(run(engine, *requests())) == alone
    assert texts(run(eager, *requests())) == alone
    programs = engine._runner._programs
    assert programs is None or any(size.program is not None for size in programs._sizes.values())


def test_snapshots_and_saved_states_are_copies(network):
    """What follows one is the same in every engine, whatever else it computes."""
    prompt, question = tokens_of(1, 90), tokens_of(2, 20)
    options = {"num_snapshot_slots": 8, "max_num_batched_tokens": 48}
    source = request("r", prompt + question, max_tokens=12)
    engine = engine_with(network, **options)
    run(engine, request("first", prompt, max_tokens=1))
    warm = [run(engine, source)["r"], run(engine, source)["r"]]
    assert warm[0].finals[0].num_cached_tokens > 0 and warm[0].tokens == warm[1].tokens
    saved = replace(source, saved_state=save(engine_with(network, **options), prompt))
    behind = run(engine_with(network, **options), saved)["r"]
    assert behind.finals[0].num_cached_tokens == 90
    wide = engine_with(network, **options | {"max_num_batched_tokens": 400})  # so that nobody's prompt is cut
    assert run(wide, saved, *requests())["r"].tokens == behind.tokens


def test_states_take_the_bytes_of_their_dtype(network):
    spec = network.spec
    sizes = {}
    for dtype in ("float32", "bfloat16"):
        engine = engine_with(network, state_dtype=dtype, num_snapshot_slots=4)
        slot = spec.state_bytes_per_sequence("float32", dtype)
        assert engine.stats().state_bytes == (17 + 4) * slot + 400 * 4 * spec.state_bytes_per_token("float32")
        for count in (20, 70):
            state = save(engine, tokens_of(3, count))
            assert len(state.slot) == slot
        sizes[dtype] = slot
    always_exact = sum(
        part.size_bytes("float32") for layer in spec.layers for part in layer.state()
        if part.per == "sequence" and part.dtype == "float32"
    )  # fmt: skip
    assert 2 * sizes["bfloat16"] == sizes["float32"] + always_exact


def test_preempted_and_speculating_requests_end_with_usable_tokens(network, alone):
    """Their steps are others, so their states are rounded elsewhere: most texts are the same, not all need be."""
    tight = engine_with(network, num_blocks=46, num_state_slots=9, max_num_seqs=8, max_num_batched_tokens=24)
    speculating = engine_with(network, Speculation(always()), num_spare_slots=8, prefix_cache=False)
    for engine in (tight, with_oracle(speculating, Oracle(alone, 80))):
        found = run(engine, *requests())
        assert {name: len(tokens) for name, tokens in texts(found).items()} == {n: len(t) for n, t in alone.items()}
        firsts = [texts(found)[name][:2] == tokens[:2] for name, tokens in alone.items()]
        assert sum(firsts) >= len(firsts) - 1, "rounding changes little"
        assert engine.stats().num_blocks_used == 0
    stats = speculating.stats().speculation
    assert stats is not None and stats.num_proposed > stats.num_accepted > 0
