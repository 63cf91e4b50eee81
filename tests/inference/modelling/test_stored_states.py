"""States in bfloat16 for each kind of recurrent layer: rounded once a step, computed in float32, sequences apart."""

from __future__ import annotations

import random

import pytest
import torch

from inference.modelling.backends.backend import NativeBackend, bind_backend, pack_weights
from inference.modelling.forward_batch import ForwardBatch, PrefillChunk
from inference.modelling.hybrid_layer import MIXERS
from inference.modelling.stored_states import StepEntries, StoredStates
from inference.modelling.weights.loader import load_network
from tests.inference.engine.test_saved_state import load_family
from tests.inference.modelling.harness import SequenceRunner

DIVERGENCES = {
    "mamba": 1e-5, "mamba2": 1e-5, "oxidizr-mamba3": 5e-5, "olmo_hybrid": 5e-4, "kimi_linear": 5e-3, "minimax": 1e-3,
    "recurrent_gemma": 5e-5, "xlstm": 1e-4, "lfm3": 5e-5, "rwkv": 1e-5, "qwen4_exp": 1e-5, "zaya": 2e-2,
    "inkling": 1e-5, "inkling2": 1e-5,
}  # fmt: skip
"""A family of each kind of layer, and the bound of its mean KL divergence from float32 states, in nats.

Kimi Linear's and ZAYA's rounded rows reach routers, which choose other experts in a few places.
"""
KINDS = {
    "mamba": {"mamba1"}, "mamba2": {"mamba2"}, "oxidizr-mamba3": {"mamba3"}, "olmo_hybrid": {"gated_delta"},
    "kimi_linear": {"kimi_delta"}, "minimax": {"lightning"}, "recurrent_gemma": {"rg_lru"}, "xlstm": {"mlstm"},
    "lfm3": {"short_conv"}, "rwkv": {"time_mix", "channel_mix"}, "qwen4_exp": {"gated_delta"},
    "zaya": {"convolved_attention"}, "inkling": {"relative_attention"},
    "inkling2": {"clipped_attention"},
}  # fmt: skip
"""The kinds of mixers with recurrent states that the families have."""
WITHOUT_STATES = {
    "attention", "mla", "compressed_attention", "parallel", "mlp", "memory_moe", "moe", "shared_moe", "token_moe",
}  # fmt: skip
SAME_ALONE = {"mamba", "mamba2", "olmo_hybrid", "xlstm", "rwkv"}
"""Families whose other layers compute a row alone to the bit as in a batch, with these shapes."""
PLAN = [20] + [1] * 20 + [5] + [1] * 15
TEXTS = {name: [random.Random(name).randrange(80) for _ in range(sum(PLAN))] for name in "abcde"}


@pytest.fixture(scope="module", params=DIVERGENCES)
def family(request, tmp_path_factory):
    network = load_family(request.param, tmp_path_factory.mktemp(request.param))
    pack_weights(network)
    return request.param, network


@pytest.fixture(scope="module")
def together(family):
    """Logits of three texts in one batch, with states in bfloat16."""
    return logits_of(family[1], "abc")


def logits_of(network, names, state_dtype=torch.bfloat16):
    """(n, V) of each text; together in a batch, in the steps of ``PLAN``."""
    runner = SequenceRunner(network, state_dtype=state_dtype)
    found, done = {name: [] for name in names}, 0
    for count in PLAN:
        for name, part in runner.step([(name, TEXTS[name][done : done + count]) for name in names]).items():
            found[name].append(part)
        done += count
    return {name: torch.cat(parts) for name, parts in found.items()}


def test_kernels_that_read_stored_states_compute_what_they_compute_on_copies(family, together, monkeypatch):
    name, network = family
    assert isinstance(bind_backend(network), NativeBackend)
    runner = SequenceRunner(network, state_dtype=torch.bfloat16)
    layers = runner.network.layers
    copied = [set(names) for names in StoredStates(network.spec).states_to_copy(layers, runner.states)]
    without_kernels = {"zaya": "head_conv_state", "inkling2": "dynamic_conv_state"}
    assert all(without_kernels[name] in names for names in copied if names)
    assert any(copied) == (name in without_kernels), "only their second and dynamic convolutions have no kernel"
    with monkeypatch.context() as patch:
        patch.setattr(NativeBackend, "bfloat16_states", frozenset())
        bind_backend(network)
        assert any(StoredStates(network.spec).states_to_copy(layers, runner.states))
        on_copies = logits_of(network, "abc")
    bind_backend(network)
    assert all(torch.equal(on_copies[one], together[one]) for one in "abc")


def test_a_family_of_each_kind_of_mixer_is_tried(family):
    name, network = family
    mixers = [mixer for layer in network.spec.layers for mixer in layer.token_mixers]
    found = {mixer.kind for mixer in mixers if any(part.dtype == "state" for part in mixer.state())}
    assert found == KINDS[name]
    assert set().union(*KINDS.values()) | WITHOUT_STATES == MIXERS.keys(), "new kinds need a family here"


def test_float32_states_are_never_copied(family):
    _, network = family
    states = SequenceRunner(network).states
    assert not any(StoredStates(network.spec).states_to_copy(network.layers, states))


def test_a_step_stores_the_float32_states_rounded_to_nearest(family):
    _, network = family
    exact, rounded = (SequenceRunner(network, state_dtype=dtype) for dtype in (torch.float32, torch.bfloat16))
    for runner in (exact, rounded):  # the states of both are equal before, zero, so all layers read the same
        runner.step([(name, TEXTS[name][:9]) for name in "ab"])
    dtypes = set()
    for layer, expected, found in zip(network.spec.layers, exact.states, rounded.states, strict=True):
        for part in layer.state():
            stored = found[part.name]
            assert stored.dtype == (torch.bfloat16 if part.dtype == "state" else torch.float32)
            assert torch.equal(stored, expected[part.name].to(stored.dtype)), part.name
            dtypes.add(part.dtype)
    assert "state" in dtypes


def test_only_the_slots_of_the_batch_are_written(family):
    _, network = family
    runner = SequenceRunner(network, state_dtype=torch.bfloat16)
    runner.run("a", TEXTS["a"][:9], 9)
    runner.step([("a", [3]), ("b", TEXTS["b"][:5]), ("c", [4])])
    runner.step([("a", [3]), ("b", [5])])
    used = {sequence.state_slot for sequence in runner.sequences.values()}
    for layer, state in zip(network.spec.layers, runner.states, strict=True):
        for part in layer.state():
            if part.per == "sequence":
                untouched = [bool((row == 7.0).all()) for row in state[part.name]]
                assert {slot for slot, same in enumerate(untouched) if not same} == used


def test_a_sequence_computes_the_same_whatever_its_neighbours_are(family, together):
    name, network = family
    assert torch.equal(logits_of(network, "ade")["a"], together["a"])
    if name in SAME_ALONE:
        assert all(torch.equal(logits_of(network, one)[one], together[one]) for one in "abc")


def test_predictions_stay_close_to_those_of_float32_states(family, together):
    name, network = family
    exact = logits_of(network, "abc", torch.float32)
    divergence = 0.0
    for one in "abc":
        expected, found = exact[one].log_softmax(-1), together[one].log_softmax(-1)
        assert torch.equal(expected[:20], found[:20]), "the first step starts at zero"
        divergence += float((expected.exp() * (expected - found)).sum(-1).mean()) / 3
    assert 0 < divergence < DIVERGENCES[name]


def test_windows_of_convolutions_lose_nothing_in_a_bfloat16_network(tmp_path):
    spec = load_family("lfm3", tmp_path).spec
    network = load_network(spec, sorted(tmp_path.glob("*.safetensors")), dtype=torch.bfloat16)
    pack_weights(network)
    exact, rounded = (logits_of(network, "abc", dtype) for dtype in (torch.float32, torch.bfloat16))
    assert all(torch.equal(exact[one], rounded[one]) for one in "abc")


def test_padding_rows_stay_at_the_scratch_slot():
    slots, rows = torch.tensor([4, 0, 2]), torch.arange(3)
    batch = ForwardBatch(rows, rows, rows, slots, 2, (PrefillChunk(2, 3, 5, 2, 2), PrefillChunk(3, 3, 0, 1, 0)))
    step = StepEntries(batch).batch
    assert step.state_slots.tolist() == [1, 0, 3]
    assert [chunk.state_slot for chunk in step.prefills] == [3, 0]
    pool = torch.arange(5.0).to(torch.bfloat16).unsqueeze(1)

    def layer(batch, state):
        assert state["s"].dtype == torch.float32 and state["s"].flatten().tolist() == [0, 4, 0, 2]
        state["s"][batch.state_slots] += 0.501  # the padding row's goes to scratch

    StepEntries(batch).run(layer, {"s": pool, "k": pool}, ("s",))
    assert pool.flatten().tolist() == [0, 1, 2.5, 3, 4.5]
