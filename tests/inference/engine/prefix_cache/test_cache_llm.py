"""Through ``LLM``: options, usage, a reload from the cache directory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inference.errors import InvalidRequest
from inference.llm.llm import LLM
from inference.llm.options import LLMOptions
from inference.llm.sizes import plan_states
from inference.values.sampling_params import SamplingParams
from tests.inference.engine.fakes import make_spec
from tests.inference.llm.harness import Checkpoint

OPTIONS = LLMOptions(max_num_seqs=4, cache_bytes=1 << 22, num_threads=1)
PARAMS = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return Checkpoint(tmp_path_factory.mktemp("llama"))


def load(checkpoint, **options):
    return LLM.load(checkpoint.spec, checkpoint.tokenizer, checkpoint.files, replace(OPTIONS, **options))


def ask(llm, prompt, **options):
    events = list(llm.events(prompt, PARAMS, **options))
    tokens = [token for event in events for token in event.get("token_ids", ())]
    return tokens, events[-1]["usage"]


def test_usage_says_what_was_found_and_why_not_more(checkpoint):
    llm, prompt = load(checkpoint), [*range(1, 60)]
    try:
        first, usage = ask(llm, prompt)
        assert (usage["cached_tokens"], usage["cache_miss_reason"]) == (0, "cold")
        second, usage = ask(llm, prompt)
        assert (usage["cached_tokens"], usage["cache_miss_reason"]) == (58, None) and second == first
        _, usage = ask(llm, prompt, cache_salt="another")
        assert (usage["cached_tokens"], usage["cache_miss_reason"]) == (0, "cold")
        stats = llm.stats()["prefix_cache"]
        assert stats["num_hits"] == 1 and stats["misses"] == {"cold": 2}
    finally:
        llm.close()


def test_choices_of_one_request_count_its_prompt_once(checkpoint):
    llm = load(checkpoint, max_num_seqs=1)
    try:
        params = SamplingParams(temperature=0.0, max_tokens=2, n=3, ignore_eos=True)
        usage = list(llm.events([*range(1, 60)], params))[-1]["usage"]
        assert usage["cached_tokens"] == 0 and llm.stats()["prefix_cache"]["num_hits"] == 2
    finally:
        llm.close()


def test_off_means_off(checkpoint):
    llm = load(checkpoint, prefix_cache=False)
    try:
        for _ in range(2):
            _, usage = ask(llm, [*range(1, 60)])
            assert (usage["cached_tokens"], usage["cache_miss_reason"]) == (0, "disabled")
    finally:
        llm.close()


def test_a_reload_finds_the_prompt_in_the_directory(checkpoint, tmp_path):
    prompt, found = [*range(1, 100)], []
    for _ in range(2):
        llm = load(checkpoint, cache_dir=tmp_path)
        found.append(ask(llm, prompt))
        llm.close()
    assert found[0][0] == found[1][0]
    assert [usage["cached_tokens"] for _, usage in found] == [0, 98]
    llm = load(checkpoint, cache_dir=tmp_path, dtype="bfloat16")
    assert ask(llm, prompt)[1]["cached_tokens"] == 0, "other numbers, another cache"
    llm.close()


def test_a_directory_that_cannot_be_used_ends_the_load(checkpoint, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest, match="cache directory"):
        load(checkpoint, cache_dir=tmp_path / "file")


def test_snapshots_get_what_was_asked_for():
    spec = make_spec("hybrid")
    slot = spec.state_bytes_per_sequence()
    options = LLMOptions(max_num_seqs=2, max_model_len=64, cache_bytes=1 << 20)
    assert plan_states(spec, replace(options, snapshot_bytes=7 * slot)).num_snapshot_slots == 7
    assert plan_states(spec, replace(options, prefix_cache=False)).num_snapshot_slots == 0
    assert plan_states(spec, options).num_snapshot_slots > 0
    with pytest.raises(InvalidRequest, match="snapshot_bytes is -1, it must be at least 0"):
        LLMOptions(snapshot_bytes=-1)
