"""Speculation over a real tiny network and tokenizer: the same events' contents, a draft model checked, its metrics."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from inference.errors import InvalidRequest
from inference.llm.draft_loading import DraftCheckpoint
from inference.llm.llm import LLM
from inference.llm.sizes import needed_bytes, plan_states
from inference.records.metrics import exposition
from inference.values.sampling_params import SamplingParams
from inference.values.speculative_options import SpeculativeOptions
from inference.values.states import ResidentModel, WorkerState, merge_models
from tests.inference.llm.harness import OPTIONS, Checkpoint

ALWAYS = {"is_adaptive": False, "max_num_seqs": 4, "num_tokens": 4}
PARAMS = (
    {"max_tokens": 40, "temperature": 0.0, "logit_bias": {72: 9.0, 73: 8.5}},
    {"max_tokens": 30, "seed": 4, "temperature": 0.7, "logprobs": 2},
    {"max_tokens": 40, "seed": 5, "n": 2, "repetition_penalty": 1.1},
    {"max_tokens": 30, "seed": 6, "typical_p": 0.8, "top_n_sigma": 1.5, "dry_multiplier": 0.8, "xtc_probability": 0.5},
    {"max_tokens": 30, "seed": 7, "mirostat": 2, "mirostat_tau": 3.0, "logit_bias": {72: 9.0, 73: 8.5}},
    {"max_tokens": 40, "temperature": 0.0, "dry_multiplier": 2.0, "dry_sequence_breakers": ("fox",)},
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return Checkpoint(tmp_path_factory.mktemp("checkpoint"))


def load(checkpoint, speculative=None, draft=None):
    options = replace(OPTIONS, speculative=speculative)
    return LLM.load(checkpoint.spec, checkpoint.tokenizer, checkpoint.files, options, draft=draft)


def itself(checkpoint):
    return DraftCheckpoint("itself", checkpoint.spec, checkpoint.tokenizer, checkpoint.files)


def said(llm, params):
    """Per choice: text, ids, log-probabilities and the ending; and the number of completion tokens."""
    choices, usage = {}, None
    for event in llm.events("the quick brown fox", SamplingParams(**params)):
        assert event["type"] != "error", event
        if event["type"] == "delta":
            entry = choices.setdefault(event["choice"], ["", [], [], None])
            entry[0] += event["text"]
            entry[1] += event["token_ids"]
            entry[2] += [(item["token_id"], round(item["logprob"], 3)) for item in event.get("logprobs", ())]
            entry[3] = (event.get("finish_reason"), event.get("stop_reason"))
        elif event["type"] == "done":
            usage = event["usage"]["completion_tokens"]
    assert usage == sum(len(entry[1]) for entry in choices.values())
    return choices, usage


@pytest.fixture(scope="module")
def plain(checkpoint):
    llm = load(checkpoint)
    yield llm
    llm.close()


@pytest.mark.parametrize("method", ["ngram", "draft"])
def test_the_same_text_usage_logprobs_and_endings(checkpoint, plain, method):
    draft = itself(checkpoint) if method == "draft" else None
    options = SpeculativeOptions(method, "itself" if draft else "", **ALWAYS, **({} if draft else {"min_match": 1}))
    llm = load(checkpoint, options, draft)
    try:
        for params in PARAMS:
            wanted = said(plain, params)
            assert said(llm, params) == wanted
            # A stop string in the middle of what one step brings ends the text and the usage there.
            text = wanted[0][0][0]
            for start in (3, 11, 20):
                stopped = params | {"stop": (text[start : start + 3],)}
                assert said(llm, stopped) == said(plain, stopped)
        assert llm.stats()["speculation"]["num_accepted"] > 10
        memory, without = llm.memory_bytes(), plain.memory_bytes()
        assert (memory["states"] > without["states"]) == (memory["weights"] > without["weights"]) == bool(draft)
        planned = needed_bytes(checkpoint.spec, replace(OPTIONS, speculative=options), draft)
        planned -= needed_bytes(checkpoint.spec, OPTIONS)
        assert llm.total_bytes() - plain.total_bytes() == pytest.approx(planned, rel=0.02)
    finally:
        llm.close()


def test_another_vocabulary_is_refused_by_name(checkpoint, tmp_path):
    other = Checkpoint(tmp_path)
    table = json.loads((tmp_path / "tokenizer.json").read_text())
    vocab = table["model"]["vocab"]
    left, right = sorted(vocab, key=vocab.get)[40:42]
    vocab[left], vocab[right] = vocab[right], vocab[left]
    (tmp_path / "tokenizer.json").write_text(json.dumps(table))
    draft = DraftCheckpoint("other", other.spec, other.tokenizer, other.files)
    with pytest.raises(InvalidRequest, match="'other' has another vocabulary"):
        load(checkpoint, SpeculativeOptions("draft", "other"), draft)


def test_a_draft_model_that_is_not_given_is_missed(checkpoint):
    with pytest.raises(InvalidRequest, match="draft model"):
        load(checkpoint, SpeculativeOptions("draft", "other"))


def test_spare_slots_are_planned_where_there_are_recurrent_states(checkpoint):
    assert plan_states(checkpoint.spec, replace(OPTIONS, speculative=SpeculativeOptions("ngram"))).num_spare_slots == 0


def test_metrics():
    stats = {"speculation": {"num_proposed": 12, "num_accepted": 5, "lengths": [2, 1, 2], "method": "ngram"}}
    worker = WorkerState("w1", models=(ResidentModel("c1", "ready", stats=stats), ResidentModel("c2", "ready")))
    text = exposition(models=merge_models([worker]), workers={"w1": worker}, names={"c1": "demo"}, jobs={}).decode()
    label = 'model="demo",worker="w1"'
    assert f"blazr_speculation_proposed_tokens_total{{{label}}} 12.0" in text
    assert f"blazr_speculation_accepted_tokens_total{{{label}}} 5.0" in text
    for bound, count in (("0.0", 2), ("1.0", 3), ("2.0", 5), ("+Inf", 5)):
        assert f'blazr_speculation_accepted_length_bucket{{le="{bound}",{label}}} {count}.0' in text
    assert f"blazr_speculation_accepted_length_sum{{{label}}} 5.0" in text
