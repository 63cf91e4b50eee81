"""Replayed decode steps: the same tokens and log-probabilities to the bit as eager ones, for every layer type."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import DeepseekV2Config, Gemma2Config, Gemma3TextConfig, LlamaConfig

from inference.engine.config import EngineConfig
from inference.engine.engine import Engine
from inference.modelling.backends.backend import pack_weights
from inference.modelling.backends.native import library
from inference.modelling.backends.native.decode_programs import MAX_ATTEMPTS, DecodePrograms
from inference.modelling.forward_batch import ForwardBatch
from tests.inference.engine.fakes import request, run
from tests.inference.modelling import reference_oxidizr as oxidizr
from tests.inference.modelling import test_network_attention as attention_families
from tests.inference.modelling import test_network_linear as linear_families
from tests.inference.modelling import test_network_recurrent as recurrent_families
from tests.inference.modelling.contexts import contexts_of
from tests.inference.modelling.harness import load_directory
from tests.inference.modelling.huggingface import make_checkpoint

pytestmark = [
    pytest.mark.skipif(not library.is_available(), reason="the native kernels are not built"),
    pytest.mark.usefixtures("two_threads"),
]

ATTENTION = {
    "llama": LlamaConfig(**attention_families.BASE),
    "gemma2": Gemma2Config(**attention_families.BASE | {"sliding_window": 7, "head_dim": 8}),
    "gemma3_text": Gemma3TextConfig(**attention_families.BASE | attention_families.GEMMA3),
    "deepseek_v2": DeepseekV2Config(**attention_families.BASE | attention_families.MLA),
}
RECURRENT = ("mamba", "mamba2", "bamba", "granitemoehybrid-moe", "nemotron_h-moe", "nemotron_h-latent", "jamba")
LINEAR = ("lfm3", "zaya")
OXIDIZR = {
    "oxidizr-hybrid": oxidizr.OxidizrConfig(("mamba2", "mla", "mamba3", "gqa", "mamba1")),
    "oxidizr-conv": oxidizr.OxidizrConfig(("mamba3", "mla", "mamba3"), use_conv=True),
}


@pytest.fixture(scope="module", params=[*ATTENTION, *RECURRENT, *LINEAR, *OXIDIZR])
def network(request, tmp_path_factory):
    name = request.param
    directory = tmp_path_factory.mktemp(name)
    if name in OXIDIZR:
        oxidizr.write_checkpoint(directory, OXIDIZR[name], oxidizr.random_weights(OXIDIZR[name]))
        network = load_directory(directory, model_type="oxidizr")
    elif name in ATTENTION:
        make_checkpoint(ATTENTION[name], directory)
        network = load_directory(directory)
    else:
        family, values = (recurrent_families.CASES | linear_families.CASES)[name]
        recurrent_families.make_model(family, values).save_pretrained(directory)
        network = load_directory(directory)
    pack_weights(network)
    return network


def engine_with(network, **options) -> Engine:
    values = {"num_blocks": 200, "num_state_slots": 9, "block_size": 4, "max_num_seqs": 8, "max_model_len": 128}
    values["prefix_cache"] = False  # a prefix that is found changes the chunks, and so the last bits
    return Engine(network, network.spec, EngineConfig(**(values | options)))


def requests():
    rng = random.Random(7)
    return [
        request(f"r{i}", [rng.randrange(80) for _ in range(rng.randint(1, 30))], max_tokens=6 + 5 * i, logprobs=2)
        for i in range(4)
    ]


def test_replayed_and_eager_steps_are_equal(network):
    eager_engine = engine_with(network)
    eager_engine._runner._programs = None
    eager = run(eager_engine, *requests())
    engine = engine_with(network)
    for _ in range(2):  # the second time every size has its program from the start
        replayed = run(engine, *requests())
        assert {name: entry.tokens for name, entry in replayed.items()} == {n: e.tokens for n, e in eager.items()}
        assert {name: entry.logprobs for name, entry in replayed.items()} == {n: e.logprobs for n, e in eager.items()}
    programs = engine._runner._programs
    assert programs is not None
    assert {rows for rows, size in programs._sizes.items() if size.program is not None} == {1, 2, 3, 4}


def test_a_network_that_chooses_blocks_of_keys_stays_eager(tmp_path):
    """Whether it has to choose depends on the longest context."""
    recurrent_families.make_model(*linear_families.CASES["qwen4_exp"]).save_pretrained(tmp_path)
    network = load_directory(tmp_path)
    pack_weights(network)
    engine = engine_with(network)
    for _ in range(2):
        run(engine, *requests())
    programs = engine._runner._programs
    assert programs is not None
    assert all(size.program is None for size in programs._sizes.values())


def test_a_network_that_computes_with_the_number_of_blocks_stays_eager():
    weight = torch.ones(3, 5)

    def forward(batch: ForwardBatch, states):
        return weight[batch.input_ids] * len(batch.attention.blocks)

    programs = DecodePrograms(forward, [])
    with torch.inference_mode():
        for length in range(2, 20):
            ids = torch.tensor([0, 2])
            contexts = contexts_of([torch.arange(length)] * 2, (1, 1))
            batch = ForwardBatch(ids, contexts.lengths - 1, ids, ids, 2, (), contexts)
            assert programs.run(batch).tolist() == [[2.0 * length] * 5] * 2
    assert programs._sizes[2].program is None
    assert programs._sizes[2].attempts == MAX_ATTEMPTS
