"""A checkpoint's own head over LLM: the same text, its memory in the plan, its acceptance in the metrics, refusals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from inference.errors import InvalidRequest, OutOfCacheBlocks
from inference.llm.llm import LLM
from inference.llm.sizes import load_sizes, needed_bytes, plan_states
from inference.modelling.layers.linear import network_bytes
from inference.modelling.spec import ModelSpec
from inference.records.metrics import exposition
from inference.values.sampling_params import SamplingParams
from inference.values.speculative_options import SpeculativeOptions
from inference.values.states import ResidentModel, WorkerState, merge_models
from inference.values.tokenizer_spec import TokenizerSpec
from tests.inference.llm.harness import OPTIONS
from tests.inference.modelling.harness import load_directory
from tests.inference.modelling.heads import VOCAB, write_checkpoint

MTP = SpeculativeOptions("mtp", num_tokens=2, max_num_seqs=4, is_adaptive=False)
PARAMS = ({"temperature": 0.0}, {"temperature": 0.9, "seed": 3}, {"temperature": 1.0, "seed": 4, "n": 2})


@dataclass(frozen=True)
class Found:
    spec: ModelSpec
    weight_paths: tuple[Path, ...]


@pytest.fixture(scope="module", params=["qwen3_next", "glm4_moe"])
def found(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    write_checkpoint(request.param, directory)
    return Found(load_directory(directory).spec, (directory / "model.safetensors",))


def load(found, speculative, **options) -> LLM:
    options = replace(OPTIONS, speculative=speculative, **options)
    return LLM.load(found.spec, TokenizerSpec("none", VOCAB), found.weight_paths, options)


def said(llm, params):
    tokens: dict[int, list[int]] = {}
    for event in llm.events(list(range(1, 40)), SamplingParams(max_tokens=30, **params)):
        assert event["type"] != "error", event
        if event["type"] == "delta":
            tokens.setdefault(event["choice"], []).extend(event["token_ids"])
    return tokens


@pytest.mark.parametrize("quant", ["none", "int8"])
def test_the_same_tokens_and_the_plan_holds_the_head(found, quant):
    plain, drafting = load(found, None, quant=quant), load(found, MTP, quant=quant)
    for params in PARAMS:
        assert said(drafting, params) == said(plain, params)
    stats = drafting.stats()["speculation"]
    assert stats["method"] == "mtp" and stats["num_proposed"] > 20
    assert drafting.memory_bytes()["states"] == drafting.plan.total_bytes
    head = drafting._engine._speculator._proposer._head
    assert drafting.memory_bytes()["weights"] == plain.memory_bytes()["weights"] + network_bytes(head)
    assert stats["state_bytes"] == drafting.plan.num_blocks * drafting.plan.head_block_bytes
    worker = WorkerState("w1", models=(ResidentModel("c1", "ready", stats=drafting.stats()),))
    text = exposition(models=merge_models([worker]), workers={"w1": worker}, names={"c1": "demo"}, jobs={}).decode()
    assert f'accepted_tokens_total{{model="demo",worker="w1"}} {float(stats["num_accepted"])}' in text
    plain.close()
    drafting.close()


def test_the_plan_counts_weights_and_states_of_the_head(found):
    options = replace(OPTIONS, max_num_seqs=3, max_model_len=64)
    drafting = replace(options, speculative=MTP)
    spec, head = found.spec, found.spec.prediction_head
    plain, plan = plan_states(spec, options), plan_states(spec, drafting)
    assert plan.block_bytes == plain.block_bytes, "the sizes of saved states don't change"
    assert plan.head_block_bytes == head.state_bytes_per_token("float32") * plan.block_size > 0
    sizes = load_sizes(spec, drafting)
    assert sizes["weights_bytes"] + sizes["states_bytes"] == needed_bytes(spec, drafting)
    assert sizes["weights_bytes"] - load_sizes(spec, options)["weights_bytes"] == 4 * head.num_parameters()
    per_token = spec.state_bytes_per_token("float32") + head.state_bytes_per_token("float32")
    assert sizes["bytes_per_token"] == per_token
    assert sizes["full_sequences"] == 3
    budget = 200 * per_token + 5 * spec.state_bytes_per_sequence("float32")
    assert plan_states(spec, replace(drafting, cache_bytes=budget)).total_bytes <= budget
    with pytest.raises(OutOfCacheBlocks):
        plan_states(spec, replace(drafting, cache_bytes=20 * per_token))


def test_a_saved_state_goes_on_with_the_head_and_without(found):
    """A state holds nothing of the head, which begins behind it."""
    plain, drafting = load(found, None), load(found, MTP)
    assert plain.state_identity() == drafting.state_identity()
    params = SamplingParams(max_tokens=30, temperature=0.0)
    state = plain.save_state(list(range(1, 40)))
    texts = []
    for llm in (plain, drafting):
        events = list(llm.events([5, 6, 7], params, state=state))
        texts.append([token for event in events if event["type"] == "delta" for token in event["token_ids"]])
    assert texts[0] == texts[1] and len(texts[0]) == 30
    assert drafting.stats()["speculation"]["num_proposed"] > 10
    plain.close()
    drafting.close()


def test_a_checkpoint_without_a_head_is_refused_with_the_remedy(found):
    spec = found.spec.without_head()
    with pytest.raises(InvalidRequest, match=rf"{spec.model_type}.*no head.*ngram") as caught:
        load(replace(found, spec=spec), MTP)
    assert caught.value.param == "speculative"
    with pytest.raises(InvalidRequest, match="no head"):
        needed_bytes(spec, replace(OPTIONS, speculative=MTP))


def test_without_mtp_its_tensors_arent_loaded(found):
    llm = load(found, SpeculativeOptions("ngram"))
    names = [name for name, _ in llm._engine._runner._network.named_parameters()]
    assert not [name for name in names if "eh_proj" in name]
    assert llm.plan.head_block_bytes == 0
    llm.close()
