"""Every family in float32: the same tokens with the cache and without, and as much found as has to be."""

from __future__ import annotations

import random

import pytest
from transformers import DeepseekV2Config, LlamaConfig

from inference.engine.config import EngineConfig
from inference.engine.engine import Engine
from tests.inference.engine.fakes import request, run
from tests.inference.modelling import reference_oxidizr as oxidizr
from tests.inference.modelling import test_network_attention as attention_families
from tests.inference.modelling import test_network_dense as dense_families
from tests.inference.modelling import test_network_kimi as kimi_families
from tests.inference.modelling import test_network_large as large_families
from tests.inference.modelling import test_network_linear as linear_families
from tests.inference.modelling import test_network_recurrent as recurrent_families
from tests.inference.modelling.harness import load_directory
from tests.inference.modelling.huggingface import make_checkpoint
from tests.inference.modelling.test_network_dense import tiny_config

MAX_LEN = 1400
ATTENTION = {
    "llama": LlamaConfig(**attention_families.BASE),
    "deepseek_v2": DeepseekV2Config(**attention_families.BASE | attention_families.MLA),
}
RECURRENT = {
    "mamba": "mamba",
    "mamba2": "mamba2",
    "bamba": "bamba",
    "granitemoehybrid": "granitemoehybrid-moe",
    "nemotron_h": "nemotron_h-moe",
}
LINEAR = {
    "falcon_h1": "falcon_h1",
    "olmo_hybrid": "olmo_hybrid",
    "lfm3": "lfm3",
    "inkling": "inkling",
    "inkling2": "inkling2",
    "glm5_next": "glm5_next",
    "qwen4_exp": "qwen4_exp",
    "zaya": "zaya",
    "kimi_linear": "kimi_linear",
    "bailing_hybrid": "bailing_hybrid",
    "minimax": "minimax",
    "rwkv": "rwkv",
    "zamba": "zamba",
    "zamba2": "zamba2",
    "recurrent_gemma": "recurrent_gemma",
    "xlstm": "xlstm",
}
LARGE = (
    "gemma3n_text", "gemma4_text", "llama4_text", "deepseek_v32", "minimax_m3_vl_text", "longcat_flash", "axk2",
    "glm_moe_dsa", "hy_v4", "deepseek_v4", "step3p5", "molmo2_text",
    "muse_glimmer_text", "muse_spark_text", "mistral_large4_text", "dots3_note_text",
)  # fmt: skip
OXIDIZR = {
    "oxidizr-mamba2": oxidizr.OxidizrConfig(("mamba2", "mla", "gqa")),
    "oxidizr-mamba3": oxidizr.OxidizrConfig(("mamba3", "mla", "mamba3"), use_conv=True),
}


DENSE = ("bitnet", "diffllama", "jetmoe", "xglm")


@pytest.fixture(scope="module", params=[*ATTENTION, *DENSE, *LARGE, *RECURRENT, *LINEAR, *OXIDIZR])
def network(request, tmp_path_factory):
    name = request.param
    directory = tmp_path_factory.mktemp(name)
    if name in OXIDIZR:
        oxidizr.write_checkpoint(directory, OXIDIZR[name], oxidizr.random_weights(OXIDIZR[name]))
        return load_directory(directory, model_type="oxidizr")
    if name in ATTENTION:
        make_checkpoint(ATTENTION[name], directory)
    elif name in (*DENSE, *LARGE):
        make_checkpoint(tiny_config(*(dense_families.CASES | large_families.CASES)[name]), directory)
    else:
        cases = recurrent_families.CASES | linear_families.CASES | kimi_families.CASES
        family, values = cases[(RECURRENT | LINEAR)[name]]
        recurrent_families.make_model(family, values).save_pretrained(directory)
    return load_directory(directory)


def engine_with(network, **options) -> Engine:
    values = {"num_blocks": 400, "num_state_slots": 9, "num_snapshot_slots": 24, "max_num_seqs": 8}
    return Engine(network, network.spec, EngineConfig(max_model_len=MAX_LEN, **(values | options)))


def tokens_of(seed, count):
    rng = random.Random(seed)
    return [rng.randrange(80) for _ in range(count)]


class Pair:
    """An engine with the cache and its shadow without."""

    def __init__(self, network, **options):
        self.engine = engine_with(network, **options)
        self.shadow = engine_with(network, **options, prefix_cache=False)

    def ask(self, prompt, **params):
        """Tokens, and how many of the prompt's were found."""
        source = request("r", prompt, **({"max_tokens": 8} | params))
        entry = run(self.engine, source)["r"]
        assert entry.tokens == run(self.shadow, source)["r"].tokens
        return entry.tokens, entry.finals[0].num_cached_tokens


def test_a_long_prompt_with_new_questions(network):
    pair, prompt = Pair(network), tokens_of(0, 1000)
    assert pair.ask(prompt + tokens_of(1, 20))[1] == 0
    assert pair.ask(prompt + tokens_of(2, 20))[1] >= 936
    assert pair.ask(prompt + tokens_of(3, 20))[1] == 1000
    assert pair.ask(prompt + tokens_of(3, 20))[1] == 1019


def test_a_chat_of_five_turns(network):
    pair, conversation, earlier = Pair(network), tokens_of(4, 120), 0
    for turn in range(5):
        answer, cached = pair.ask(conversation, max_tokens=24)
        assert cached >= 0.95 * earlier
        earlier = len(conversation) + len(answer)
        conversation = conversation + answer + tokens_of(10 + turn, 20)


def test_short_prompts(network):
    pair, prompt = Pair(network), tokens_of(5, 5)
    assert [pair.ask(prompt)[1], pair.ask(prompt)[1], pair.ask([*prompt, 7])[1]] == [0, 4, 5 if paged(network) else 4]


def paged(network) -> bool:
    return network.spec.state_bytes_per_sequence() == 0


def test_together_under_tiny_budgets(network):
    """Sixteen requests with common beginnings: concurrent, chunked, preempted, snapshots and blocks evicted."""
    rng = random.Random(6)
    stems = [tokens_of(7, 60), tokens_of(8, 33), tokens_of(9, 7)]
    sources = [
        request(
            f"r{i}",
            rng.choice(stems) + tokens_of(20 + i % 5, rng.randint(1, 30)),
            max_tokens=rng.randint(2, 24),
            priority=rng.choice([0, 0, 3]),
        )
        for i in range(16)
    ]
    options = {"num_blocks": 80, "block_size": 4, "num_state_slots": 4, "max_num_batched_tokens": 24}
    wanted = {}
    shadow = Engine(network, network.spec, EngineConfig(152, 300, 9, block_size=4, max_num_seqs=8, prefix_cache=False))
    for source in sources:
        wanted |= run(shadow, source)
    engine = Engine(network, network.spec, EngineConfig(152, **options, max_num_seqs=3, num_snapshot_slots=8))
    for _ in range(2):
        found = run(engine, *sources)
        assert {name: entry.tokens for name, entry in found.items()} == {n: e.tokens for n, e in wanted.items()}
    stats = engine.stats().prefix_cache
    assert stats.num_hits > 0
    assert stats.num_evicted_blocks + stats.num_evicted_snapshots > 0
