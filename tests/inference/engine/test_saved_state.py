"""States that leave an engine and come back: the same tokens as a cold run, for every kind of state."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import DeepseekV2Config, LlamaConfig

from inference.engine.config import EngineConfig
from inference.engine.engine import Engine
from inference.engine.prefix_cache.state_access import StateAccess
from inference.engine.request import FinishReason
from inference.engine.saved_state import SavedState, read_state, write_state
from inference.errors import InvalidRequest
from inference.modelling.specs.parts import RopeScaling, RopeSpec
from tests.inference.engine.fakes import FakeNetwork, expected_tokens, make_spec, request, run
from tests.inference.modelling import reference_oxidizr as oxidizr
from tests.inference.modelling import test_network_attention as attention_families
from tests.inference.modelling import test_network_kimi as kimi_families
from tests.inference.modelling import test_network_large as large_families
from tests.inference.modelling import test_network_linear as linear_families
from tests.inference.modelling import test_network_recurrent as recurrent_families
from tests.inference.modelling.harness import load_directory
from tests.inference.modelling.huggingface import make_checkpoint
from tests.inference.modelling.test_network_dense import tiny_config

CASES = recurrent_families.CASES | linear_families.CASES | kimi_families.CASES
FAMILIES = ("llama", "mamba2", "bamba", "olmo_hybrid")
"""Attention, a recurrent model, a hybrid with attention, and gated delta rules with attention."""
FURTHER = (
    "deepseek_v2", "mamba", "nemotron_h-moe", "kimi_linear", "xlstm", "minimax", "rwkv", "zamba", "zamba2",
    "recurrent_gemma", "lfm3", "qwen4_exp", "zaya", "inkling", "inkling2", "glm5_next", "deepseek_v4",
    "oxidizr-mamba3",
)  # fmt: skip


def load_family(name, directory):
    if name == "oxidizr-mamba3":
        config = oxidizr.OxidizrConfig(("mamba3", "mla", "mamba3"), use_conv=True)
        oxidizr.write_checkpoint(directory, config, oxidizr.random_weights(config))
        return load_directory(directory, model_type="oxidizr")
    if name == "llama":
        make_checkpoint(LlamaConfig(**attention_families.BASE), directory)
    elif name == "deepseek_v2":
        make_checkpoint(DeepseekV2Config(**attention_families.BASE | attention_families.MLA), directory)
    elif name in large_families.CASES:
        make_checkpoint(tiny_config(*large_families.CASES[name]), directory)
    else:
        recurrent_families.make_model(*CASES[name]).save_pretrained(directory)
    return load_directory(directory)


@pytest.fixture(scope="module", params=FAMILIES)
def network(request, tmp_path_factory):
    return load_family(request.param, tmp_path_factory.mktemp(request.param))


def engine_with(network, spec=None, **options):
    values = {"num_blocks": 100, "num_state_slots": 5, "num_snapshot_slots": 8, "max_num_seqs": 4}
    return Engine(network, spec or network.spec, EngineConfig(max_model_len=600, **(values | options)))


def tokens_of(seed, count):
    rng = random.Random(seed)
    return [rng.randrange(80) for _ in range(count)]


def save(engine, prompt, saved_state=None):
    source = replace(request("save", prompt, max_tokens=0), returns_state=True, saved_state=saved_state)
    engine.add_request(source)
    outputs = []
    while engine.has_unfinished():
        outputs += engine.step()
    assert [output.finish_reason for output in outputs] == [FinishReason.LENGTH]
    return outputs[0].saved_state


def go_on(engine, prompt, state, **options):
    source = replace(request("r", prompt, **({"max_tokens": 8} | options)), saved_state=state)
    entry = run(engine, source)["r"]
    return entry.tokens, entry.finals[0].num_cached_tokens


@pytest.mark.parametrize("length", [1, 37, 64, 300])
def test_the_text_after_a_state_is_a_cold_runs(network, length):
    prompt = tokens_of(length, length)
    state = save(engine_with(network, max_num_batched_tokens=48), prompt)
    assert state.token_ids == tuple(prompt)
    warm, cold = engine_with(network), engine_with(network, prefix_cache=False)
    for seed, count in ((1, 1), (2, 30), (3, 1), (2, 30)):
        question = tokens_of(seed, count)
        tokens, found = go_on(warm, prompt + question, state)
        assert tokens == go_on(cold, prompt + question, None)[0]
        assert found >= length
    assert engine_with(network).stats().num_blocks_used == warm.stats().num_blocks_used == 0


@pytest.mark.parametrize("name", FURTHER)
def test_every_other_layer_goes_on_from_its_state(name, tmp_path):
    network, prompt = load_family(name, tmp_path), tokens_of(4, 203)
    state = save(engine_with(network, max_num_batched_tokens=48), prompt)
    cold = go_on(engine_with(network, prefix_cache=False), [*prompt, 3, 4], None)[0]
    assert go_on(engine_with(network), [*prompt, 3, 4], state) == (cold, 203)


def test_no_room_for_snapshots_is_needed(network):
    prompt = tokens_of(5, 100)
    state = save(engine_with(network, prefix_cache=False, num_snapshot_slots=0), prompt)
    warm = engine_with(network, prefix_cache=False, num_snapshot_slots=0)
    cold = go_on(engine_with(network, prefix_cache=False), [*prompt, 7, 8], None)[0]
    assert [go_on(warm, [*prompt, 7, 8], state) for _ in range(2)] == [(cold, 100)] * 2


def test_a_state_of_a_state(network):
    prompt = tokens_of(6, 90)
    engine = engine_with(network)
    first = save(engine, prompt[:50])
    second = save(engine_with(network), prompt, first)
    cold = go_on(engine_with(network, prefix_cache=False), [*prompt, 3], None)[0]
    assert go_on(engine, [*prompt, 3], second) == (cold, 90)


def test_recurrent_state_has_one_size_and_paged_state_grows(network):
    short, long = (save(engine_with(network), tokens_of(7, count)) for count in (40, 80))
    assert len(short.slot) == len(long.slot) == network.spec.state_bytes_per_sequence("float32")
    assert len(long.blocks) == 2 * len(short.blocks) == 80 * network.spec.state_bytes_per_token("float32")


def test_nothing_of_a_state_reaches_requests_without_it(network):
    """A file's state may be anything: only who names it gets it."""
    prompt = tokens_of(8, 70)
    true = save(engine_with(network), prompt)
    rng = np.random.default_rng(0)
    blocks, slot = (rng.standard_normal(len(part) // 4, np.float32).view(np.uint8) for part in (true.blocks, true.slot))
    false = SavedState(true.token_ids, blocks, slot)
    engine = engine_with(network)
    cold = go_on(engine_with(network, prefix_cache=False), [*prompt, 9], None)[0]
    assert go_on(engine, [*prompt, 9], false)[0] != cold
    assert go_on(engine, [*prompt, 9], None) == (cold, 0)
    assert go_on(engine, [*prompt, 9], true) == (cold, 70)
    assert false.digest != true.digest


def test_preempted_requests_begin_at_their_state_again(network):
    prompt = tokens_of(9, 60)
    state = save(engine_with(network), prompt)
    options = {"num_blocks": 10, "num_state_slots": 4, "num_snapshot_slots": 0, "prefix_cache": False}
    small = engine_with(network, **options)
    sources = [
        replace(request(f"r{number}", [*prompt, number], max_tokens=50), saved_state=state) for number in range(3)
    ]
    found = run(small, *sources)
    cold = engine_with(network, prefix_cache=False)
    for number, source in enumerate(sources):
        wanted = run(cold, replace(source, saved_state=None))[f"r{number}"].tokens
        assert found[f"r{number}"].tokens == wanted
    if network.spec.state_bytes_per_token():
        assert small.stats().num_preemptions > 0


KIND = "hybrid"


@pytest.fixture
def engine():
    spec = make_spec(KIND)
    return Engine(FakeNetwork(spec), spec, EngineConfig(200, 40, 4, num_snapshot_slots=4))


@pytest.mark.parametrize(
    ("prompt", "options", "words"),
    [
        ([1, 2, 3, 4, 6, 7], {}, "doesn't begin with the 5 tokens of the saved state"),
        ([1, 2, 3, 4, 5], {}, "the prompt of 5 tokens doesn't begin with the 5 tokens"),
        ([1, 2, 3, 4, 5, 6], {"prompt_logprobs": 1}, "need all its tokens, a saved state skips them"),
    ],
)
def test_requests_that_a_state_does_not_fit(engine, prompt, options, words):
    state = save(engine, [1, 2, 3, 4, 5])
    with pytest.raises(InvalidRequest, match=words) as refused:
        engine.add_request(replace(request("r", prompt, **options), saved_state=state))
    assert refused.value.param == "state"
    assert not engine.has_unfinished()


def test_states_of_another_size(engine):
    state = save(engine, [1, 2, 3, 4, 5])
    for broken in (
        SavedState(state.token_ids, state.blocks[:-1], state.slot),
        SavedState(state.token_ids, state.blocks, np.append(state.slot, state.slot[:1])),
    ):
        with pytest.raises(InvalidRequest, match="use the model that it was saved with"):
            engine.add_request(replace(request("r", [1, 2, 3, 4, 5, 6]), saved_state=broken))


def test_a_request_for_a_state_generates_nothing(engine):
    with pytest.raises(InvalidRequest, match="max_tokens is 3; a request for a state generates nothing, set it to 0"):
        engine.add_request(replace(request("r", [1, 2], max_tokens=3), returns_state=True))


def test_rotations_that_depend_on_the_length():
    """LongRoPE's frequencies change beyond the trained context: a state from within it is of no use there."""
    spec = make_spec("paged")
    scaling = RopeScaling("longrope", original_max_position_embeddings=8, long_factor=(1.0,), short_factor=(1.0,))
    layer = spec.layers[0]
    rope = RopeSpec(10000.0, 2, scaling=scaling)
    spec = replace(spec, layers=(replace(layer, token_mixer=replace(layer.token_mixer, head_dim=2, rope=rope)),))
    engine = Engine(FakeNetwork(spec), spec, EngineConfig(200, 40, 4))
    state = save(engine, [1, 2, 3, 4, 5])
    with pytest.raises(InvalidRequest, match="rotates a prompt of 9 tokens otherwise than the saved one of 5"):
        engine.add_request(replace(request("r", [1, 2, 3, 4, 5, 6, 7, 8, 9]), saved_state=state))


def test_a_step_without_memory_begins_at_the_state_again(engine, monkeypatch):
    state = save(engine, [1, 2, 3, 4, 5])
    prompt = [1, 2, 3, 4, 5, 6, 7]
    forward, calls = engine._runner.forward, []

    def fail_once(step):
        calls.append(step)
        hidden = forward(step)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("out of memory")
        return hidden

    monkeypatch.setattr(engine._runner, "forward", fail_once)
    spec = make_spec(KIND)
    assert go_on(engine, prompt, state, max_tokens=6)[0] == expected_tokens(spec, prompt, 6)
    assert [call.scheduled[0].num_computed_tokens for call in calls[:2]] == [5, 5]


def test_states_are_copied_as_tensors_too(engine):
    """As on a device."""
    spec = make_spec(KIND)
    layers = engine._runner.layer_states
    state = save(engine, [1, 2, 3, 4, 5] * 8)
    access = StateAccess(spec, layers, engine.config.block_size, use_tensors=True)
    write_state(access, [9, 7, 8], 2, state)
    again = read_state(access, [9, 7, 8], 2, state.token_ids)
    assert again.digest == state.digest
    assert read_state(engine._copies._access, [9, 7, 8], 2, state.token_ids).digest == state.digest
    assert read_state(engine._copies._access, [9, 8, 7], 2, state.token_ids).digest != state.digest


def test_a_state_that_cannot_be_read_fails_its_request_only(engine, monkeypatch):
    def fail(*_):
        raise MemoryError

    monkeypatch.setattr("inference.engine.state_copies.read_state", fail)
    engine.add_request(replace(request("save", [1, 2, 3], max_tokens=0), returns_state=True))
    found = []
    while engine.has_unfinished():
        found += engine.step()
    assert [output.finish_reason for output in found] == [FinishReason.ERROR]
    assert "the state could not be copied" in found[0].error.message
    assert run(engine, request("r", [1, 2, 3], max_tokens=2))["r"].tokens
