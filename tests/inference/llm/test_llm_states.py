"""``LLM.save_state`` and ``LLM.generate(state=...)``: the same text as a cold run, through a file and without."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inference.errors import InvalidRequest
from inference.llm.llm import LLM
from inference.values.sampling_params import SamplingParams
from tests.inference.llm.harness import OPTIONS, SPECIAL

PARAMS = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
TEXT = "the quick brown fox jumps over the lazy dog. " * 4


@pytest.fixture(scope="module")
def cold(checkpoint):
    loaded = LLM.load(checkpoint.spec, checkpoint.tokenizer, checkpoint.files, replace(OPTIONS, prefix_cache=False))
    yield loaded
    loaded.close()


def ask(llm, prompt, state=None, params=PARAMS, **options):
    events = list(llm.generate(prompt, params, state=state, **options))
    assert events[-1]["type"] == "done", events[-1]
    return [token for event in events for token in event.get("token_ids", ())], events[-1]["usage"]


def test_a_state_of_a_file_is_gone_on_from_twice(llm, cold, tmp_path):
    shares = []
    state = cold.save_state(TEXT, progress=shares.append)
    assert shares == sorted(shares) and shares[-1] == 1.0 and len(shares) > 2
    assert state.token_ids[0] == 0, "the text begins with BOS"
    llm.write_state(state, tmp_path / "a.state", model="tiny")
    read = cold.read_state(tmp_path / "a.state")
    for question in ("hello", " wörld", "hello"):
        following = llm.tokenizer.encode(question, add_special_tokens=False)
        wanted, _ = ask(cold, [*state.token_ids, *following])
        tokens, usage = ask(cold, question, read)
        assert tokens == wanted
        assert usage["prompt_tokens"] == len(state.token_ids) + len(following)
        assert usage["cached_tokens"] == len(state.token_ids) - 1 and usage["cache_miss_reason"] == "diverged"
        assert ask(cold, following, read)[0] == wanted


def test_nothing_need_follow(llm, cold):
    state = llm.save_state(TEXT)
    for prompt in ("", []):
        assert ask(llm, prompt, state)[0] == ask(cold, TEXT)[0]


def test_choices_fork_from_one_state(llm, cold):
    state = llm.save_state(TEXT)
    params = replace(PARAMS, n=3, temperature=1.0, seed=4)
    found = list(llm.generate("hello", params, state=state))
    wanted = list(cold.generate([*state.token_ids, *llm.tokenizer.encode("hello", add_special_tokens=False)], params))
    texts = [
        ["".join(event.get("text", "") for event in events if event.get("choice") == number) for number in range(3)]
        for events in (found, wanted)
    ]
    assert texts[0] == texts[1] and len(set(texts[0])) == 3


def test_a_state_is_taken_further(llm, cold):
    first = llm.save_state(TEXT)
    second = llm.save_state("hello", state=first)
    assert second.token_ids[: len(first.token_ids)] == first.token_ids
    assert ask(llm, "", second)[0] == ask(cold, second.token_ids)[0]
    assert llm.save_state("", state=first) is first


def test_a_conversation_begins_with_its_state(llm, cold):
    system = [{"role": "system", "content": "the quick brown fox"}]
    state = llm.save_state(system)
    messages = [*system, {"role": "user", "content": "hello"}]
    tokens, usage = ask(llm, messages, state)
    assert tokens == ask(cold, messages)[0] and usage["cached_tokens"] >= len(state.token_ids) - 1
    with pytest.raises(InvalidRequest, match=r"doesn't begin with the .* tokens of the saved state"):
        ask(llm, [{"role": "user", "content": "hello"}], state)


@pytest.mark.parametrize(
    ("prompt", "options", "words"),
    [
        ("hello", {"suffix": "x"}, "suffix fills a gap, which can't begin in a saved state"),
        ([400], {}, "400"),
        ("a b " * 60, {}, "maximum context length is 128 tokens"),
    ],
)
def test_continuations_that_are_refused(llm, prompt, options, words):
    state = llm.save_state(TEXT)
    with pytest.raises(InvalidRequest, match=words):
        ask(llm, prompt, state, **options)
    assert not llm.has_unfinished()


def test_prompts_without_a_state(llm):
    with pytest.raises(InvalidRequest, match="the prompt has 1 token, a state needs at least 2"):
        llm.save_state([3])
    with pytest.raises(InvalidRequest, match="the prompt is empty"):
        llm.save_state([])
    assert not llm.has_unfinished()


def test_a_state_in_memory_is_bound_to_its_model(checkpoint, llm):
    state = llm.save_state(TEXT)
    other = LLM.load(checkpoint.spec, checkpoint.tokenizer, checkpoint.files, replace(OPTIONS, dtype="bfloat16"))
    try:
        with pytest.raises(InvalidRequest, match="the state was saved with dtype float32, this model is loaded with"):
            ask(other, "hello", state)
    finally:
        other.close()
    assert SPECIAL[0] == "<s>"


def test_vectors_do_not_go_on_from_a_state(llm):
    state = llm.save_state(TEXT)
    message = {"request_id": "e", "web_id": "", "attempt": 0, "model": "", "prompt": {"inputs": [{"text": "a"}]},
               "params": {}, "priority": 0, "deadline": 0.0, "pooling": None}  # fmt: skip
    with pytest.raises(InvalidRequest, match="a vector can't go on from a saved state"):
        llm.prepare(message, state)
