"""PredictionRunner: heads of every family that has them draft, and the text stays the same."""

from __future__ import annotations

import random

import pytest
import torch

from inference.engine.config import EngineConfig
from inference.engine.engine import Engine
from inference.engine.speculation.prediction_runner import FLUSH_ROWS
from inference.engine.speculation.setup import Speculation
from tests.inference.engine.fakes import collect, request, run
from tests.inference.engine.speculation.fakes import always
from tests.inference.modelling.heads import CASES, VOCAB, load_with_head, write_checkpoint

MAX_LEN = 160
LOADED: dict = {}


@pytest.fixture(scope="module", params=CASES)
def model(request, tmp_path_factory):
    return load(request.param, tmp_path_factory)


def load(name, factory):
    """(network, head, reference), once for each family."""
    if name not in LOADED:
        directory = factory.mktemp(name)
        reference = write_checkpoint(name, directory)
        LOADED[name] = (*load_with_head(directory), reference)
    return LOADED[name]


def config(**values) -> EngineConfig:
    sizes = {"num_blocks": 400, "num_state_slots": 9, "block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    return EngineConfig(max_model_len=MAX_LEN, **(sizes | values))


def engine_of(model, *, k=3, **values) -> Engine:
    network, head, _ = model
    options = always("mtp", num_tokens=k)
    spare = 8 if network.spec.state_bytes_per_sequence() else 0
    sizes = config(**({"num_spare_slots": spare} | values))
    return Engine(network, network.spec, sizes, speculation=Speculation(options, head=head))


def plain_engine(model, **values) -> Engine:
    network = model[0]
    return Engine(network, network.spec, config(max_num_seqs=1, prefix_cache=False, **values))


def sources():
    rng = random.Random(5)
    stem = [rng.randrange(VOCAB) for _ in range(70)]
    params = (
        {},
        {"temperature": 0.8, "seed": 3},
        {"temperature": 1.0, "seed": 9, "top_k": 20, "frequency_penalty": 0.4},
    )
    return [
        request(
            f"r{number}",
            (stem[: rng.randrange(40, 70)] if number % 2 else [])
            + [rng.randrange(VOCAB) for _ in range(rng.randint(1, 25))],
            max_tokens=rng.randint(2, 24),
            **params[number % 3],
        )
        for number in range(6)
    ]


def outputs(found):
    return {name: (entry.tokens, entry.finish_reason) for name, entry in found.items()}


@pytest.fixture(scope="module")
def wanted(model):
    found = {}
    for source in sources():
        found |= outputs(run(plain_engine(model), source))
    return found


@pytest.mark.parametrize(
    ("k", "values"),
    [
        (1, {}),
        (3, {}),
        (3, {"max_num_seqs": 1}),
        (2, {"max_num_batched_tokens": 11, "num_snapshot_slots": 12}),
    ],
    ids=["k1", "k3", "alone", "chunked"],
)
def test_the_same_tokens_as_without(model, wanted, k, values):
    engine = engine_of(model, k=k, **values)
    for _ in range(2):  # the second time with what the prefix cache has kept
        assert outputs(run(engine, *sources())) == wanted
    stats = engine.stats()
    assert stats.speculation.method == "mtp"
    assert stats.speculation.num_proposed > 20
    assert stats.speculation.lengths[0] > 0, "random heads are wrong, so there were roll-backs"
    engine._speculator._forget_stopped()
    assert engine._speculator._proposer._states.kv.pool.num_used == 0


def test_preempted_requests_draft_again(model):
    items = [request(str(number), [number, 5, 9, 2, 7, number], max_tokens=24) for number in range(8)]
    expected = {}
    for item in items:
        expected |= outputs(run(plain_engine(model), item))
    engine = engine_of(model, k=2, num_blocks=42)
    assert outputs(run(engine, *items)) == expected
    assert engine.stats().num_preemptions > 0


def draw(logits: torch.Tensor) -> int:
    return int(logits.argmax())


def drafts_of(reference, tokens: list[int], first: int, k: int) -> list[int]:
    """What the head drafts after ``tokens``, from the rows of the positions from ``first`` on; greedy."""
    rows = reference.rows_of_model(tokens)[first : len(tokens) - 1]
    inputs, drafts = tokens[first + 1 :], []
    for _ in range(k):
        logits, fed = reference.logits(rows, inputs)
        drafts.append(draw(logits[-1]))
        rows, inputs = torch.cat([rows, fed[-1:]]), [*inputs, drafts[-1]]
    return drafts


class Recorder:
    """Records what a proposer drafts, with the tokens that it drafts after."""

    def __init__(self, engine: Engine) -> None:
        self.drafted: list[tuple[str, list[int], list[int]]] = []
        proposer = engine._speculator._proposer
        propose = proposer.propose

        def recording(limits):
            found = propose(limits)
            self.drafted += [(item.request_id, list(item.token_ids), drafts) for item, drafts in found.items()]
            return found

        proposer.propose = recording


@pytest.mark.parametrize("values", [{}, {"max_num_batched_tokens": 13}], ids=["whole", "chunked"])
def test_the_drafts_are_those_of_the_reference(model, values):
    """Rows, positions, keys and values of every step are right: the head drafts what the whole sequence gives."""
    reference = model[2]
    engine = engine_of(model, k=2, prefix_cache=False, **values)
    recorder = Recorder(engine)
    rng = random.Random(1)
    prompts = {name: [rng.randrange(VOCAB) for _ in range(length)] for name, length in (("a", 5), ("b", 80))}
    run(engine, *(request(name, prompt, max_tokens=10) for name, prompt in prompts.items()))
    assert {name for name, _, _ in recorder.drafted} == set(prompts)
    assert len(recorder.drafted) > 10
    for _, tokens, drafts in recorder.drafted:
        assert drafts == drafts_of(reference, tokens, 0, len(drafts))


def test_after_a_hit_the_head_begins_behind_the_hit(tmp_path_factory):
    model = load("glm4_moe", tmp_path_factory)
    engine = engine_of(model, k=2)
    rng = random.Random(2)
    prompt = [rng.randrange(VOCAB) for _ in range(41)]
    run(engine, request("first", prompt, max_tokens=1))
    recorder = Recorder(engine)
    run(engine, request("second", [*prompt[:40], 7, 8, 9], max_tokens=12))
    assert engine.stats().prefix_cache.num_hits == 1
    assert len(recorder.drafted) > 3
    for _, tokens, drafts in recorder.drafted:
        assert drafts == drafts_of(model[2], tokens, 40, len(drafts))


def test_rows_wait_until_many_are_there_or_a_token_is_drafted(tmp_path_factory):
    """A step that doesn't draft costs no pass of the head."""
    _, _, reference = model = load("qwen3_5", tmp_path_factory)
    engine = engine_of(model, k=2, prefix_cache=False)
    proposer = engine._speculator._proposer
    passes = []
    compute = proposer._run
    proposer._run = lambda work: (passes.append([len(rows) for _, rows in work]), compute(work))[1]
    speculator = engine._speculator
    speculator._policy.can_draft = lambda request, num_decoding: False
    engine.add_request(request("r", [1, 2, 3], max_tokens=150))
    found: dict = {}
    for _ in range(FLUSH_ROWS + 20):
        collect(engine.step(), found)
    assert passes == [[FLUSH_ROWS - 1]], "of the last row the next token isn't known yet"
    recorder = Recorder(engine)
    del speculator._policy.can_draft
    while engine.has_unfinished():
        collect(engine.step(), found)
    _, tokens, drafts = recorder.drafted[0]
    assert drafts == drafts_of(reference, tokens, 0, len(drafts))
    assert found["r"].tokens == run(plain_engine(model), request("r", [1, 2, 3], max_tokens=150))["r"].tokens


def test_a_step_copies_a_recurrent_state_once(tmp_path_factory):
    model = load("qwen3_next", tmp_path_factory)
    engine = engine_of(model, k=3)
    copies, access = [], engine._speculator._rollback._access
    plain = access.copy_slot
    access.copy_slot = lambda source, target: (copies.append(source), plain(source, target))[1]
    for number in range(3):
        engine.add_request(request(str(number), [1, 2, number], max_tokens=25))
    while engine.has_unfinished():
        before, drafted = len(copies), engine.stats().speculation.num_proposed
        engine.step()
        assert len(copies) - before <= 3
        assert len(set(copies[before:])) == len(copies) - before
        if engine.stats().speculation.num_proposed == drafted:
            assert len(copies) == before
    assert copies


def test_requests_without_drafts_share_the_steps(tmp_path_factory):
    """A grammar that can't go back and a single token get no drafts; the others draft beside them."""
    model = load("nemotron_h", tmp_path_factory)
    engine = engine_of(model, k=2)
    recorder = Recorder(engine)
    items = [request("short", [4, 5, 6], max_tokens=1), request("long", [1, 2], max_tokens=20), *sources()[:3]]
    expected = {}
    for item in items:
        expected |= outputs(run(plain_engine(model), item))
    assert outputs(run(engine, *items)) == expected
    names = {name for name, _, _ in recorder.drafted}
    assert "long" in names and "short" not in names


def test_little_room_only_costs_drafts(tmp_path_factory):
    """Without blocks a sequence is dropped, and begins anew at the next row."""
    model = load("deepseek_v3", tmp_path_factory)
    engine = engine_of(model, k=2)
    proposer = engine._speculator._proposer
    pool = proposer._states.kv.pool
    pool.allocate(pool.num_free - 12)
    expected = {}
    for item in sources():
        expected |= outputs(run(plain_engine(model), item))
    assert outputs(run(engine, *sources())) == expected
    assert engine.stats().speculation.num_proposed > 0


def test_a_failed_pass_drops_all_sequences(tmp_path_factory, caplog):
    model = load("glm4_moe", tmp_path_factory)
    engine = engine_of(model, k=2)
    proposer = engine._speculator._proposer
    draw, calls = proposer._draw, []

    def failing(rows):
        calls.append(len(rows))
        if len(calls) in (2, 3):
            raise torch.OutOfMemoryError
        return draw(rows)

    proposer._draw = failing
    source = request("r", [1, 2, 3], max_tokens=20)
    assert outputs(run(engine, source)) == outputs(run(plain_engine(model), source))
    assert "ran out of memory" in caplog.text
    assert len(calls) > 4


def test_its_memory_is_counted(tmp_path_factory):
    model = load("qwen3_5_moe", tmp_path_factory)
    engine = engine_of(model, num_blocks=50)
    spec = model[1].spec
    assert engine.stats().speculation.state_bytes == 50 * 4 * spec.state_bytes_per_token("float32")


def test_a_device_runs_steps_of_every_kind_first(tmp_path_factory):
    """What a CUDA device does at the start, here on the CPU: its scratch states are zero afterwards."""
    engine = engine_of(load("glm4_moe", tmp_path_factory), k=2)
    proposer = engine._speculator._proposer
    passes = []
    head = proposer._head
    proposer._head = lambda network, batch, rows, states: (
        passes.append(rows.shape),
        head(network, batch, rows, states),
    )[1]
    proposer._head.spec, proposer._head.compute_logits = head.spec, head.compute_logits
    proposer._warm_up(engine.config, (5,))
    assert passes == [(2 + 3 + 5 + 1 + 1, 32), (5, 32), (64, 32)]
    assert all(not tensor[:4].any() for layer in proposer._layers for tensor in layer.values())
