"""``LLM.save_state`` and ``LLM.events(state=...)``: the same text as a cold run, through a file and without."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest

from inference.engine.saved_state import SavedState
from inference.errors import InvalidRequest
from inference.llm.llm import LLM
from inference.values.sampling_params import SamplingParams
from inference.values.speculative_options import SpeculativeOptions
from inference.worker.saved_states import SavedStates
from tests.inference.llm.harness import OPTIONS, SPECIAL, message

PARAMS = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
TEXT = "the quick brown fox jumps over the lazy dog. " * 4


@pytest.fixture(scope="module")
def cold(checkpoint):
    loaded = LLM.load(checkpoint.spec, checkpoint.tokenizer, checkpoint.files, replace(OPTIONS, prefix_cache=False))
    yield loaded
    loaded.close()


def ask(llm, prompt, state=None, params=PARAMS, **options):
    events = list(llm.events(prompt, params, state=state, **options))
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
    found = list(llm.events("hello", params, state=state))
    wanted = list(cold.events([*state.token_ids, *llm.tokenizer.encode("hello", add_special_tokens=False)], params))
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
    with pytest.raises(InvalidRequest, match="nothing follows the state, so there is nothing to save"):
        llm.save_state("", state=first)


def test_messages_follow_the_messages_of_a_state(llm, cold, tmp_path):
    system, question = ({"role": "system", "content": "the quick brown fox"}, {"role": "user", "content": "hello"})
    path = str(tmp_path / "a.state")  # a text is a path, too
    llm.write_state(llm.save_state([system]), path)
    state = llm.read_state(path)
    tokens, usage = ask(llm, [question], state)
    assert tokens == ask(cold, [system, question])[0] and usage["cached_tokens"] >= len(state.token_ids) - 1
    answered = llm.save_state([question, {"role": "assistant", "content": "wörld"}], state=state)
    assert [item["role"] for item in answered.conversation["messages"]] == ["system", "user", "assistant"]
    assert ask(llm, [question], answered)[0] == ask(cold, [*answered.conversation["messages"], question])[0]
    assert ask(llm, "hello", answered)[1]["cached_tokens"] >= len(answered.token_ids) - 1, "a text may follow, too"


def test_messages_that_can_not_follow(llm, monkeypatch):
    question = {"role": "user", "content": "hello"}
    with pytest.raises(InvalidRequest, match="saved after a text, which messages can't follow"):
        ask(llm, [question], llm.save_state(TEXT))
    state = llm.save_state([question])
    other = replace(state, conversation={"messages": [{"role": "user", "content": "another beginning"}]})
    with pytest.raises(InvalidRequest, match=r"doesn't begin with the .* tokens of the saved state"):
        ask(llm, [question], other)
    monkeypatch.setattr("inference.llm.text_request.MAX_CONVERSATION_BYTES", 40)
    with pytest.raises(InvalidRequest, match="the messages have 48 bytes of JSON, a state keeps at most 40"):
        llm.save_state([question])


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


def forged(llm, state, token_ids=None, fill=None):
    """A state of a file whose writer chose its tokens and bytes."""
    blocks = state.state.blocks if fill is None else np.full_like(state.state.blocks, fill)
    token_ids = token_ids or state.token_ids
    return replace(state, token_ids=token_ids, state=SavedState(token_ids[:-1], blocks, state.state.slot))


@pytest.mark.parametrize("token_id", [-1, 400, 1 << 62])
def test_tokens_that_the_model_does_not_have(llm, token_id):
    state = llm.save_state(TEXT)
    bad = forged(llm, state, (*state.token_ids[:-2], token_id, state.token_ids[-1]))
    for prompt in ("hello", [3]):
        with pytest.raises(InvalidRequest, match=f"state has {token_id} at position"):
            ask(llm, prompt, bad)


def test_a_state_of_nans_fails_its_own_request(llm, cold):
    bad = forged(llm, llm.save_state(TEXT), fill=255)
    events = list(llm.events("hello", PARAMS, state=bad))
    assert events[-1]["type"] == "error", events[-1]
    error = events[-1]["error"]
    assert (error["class"], error["param"]) == ("InvalidRequest", "state"), "whoever wrote the file chose its numbers"
    assert "no usable probabilities after this state; save the state again" in error["message"]
    assert ask(llm, TEXT)[0] == ask(cold, TEXT)[0]


def test_speculation_goes_on_from_a_state(checkpoint, cold, tmp_path):
    options = replace(OPTIONS, speculative=SpeculativeOptions.parse("ngram"))
    drafting = LLM.load(checkpoint.spec, checkpoint.tokenizer, checkpoint.files, options)
    try:
        state = drafting.save_state(TEXT)
        assert ask(drafting, " fox jumps", state)[0] == ask(cold, " fox jumps", state)[0]
    finally:
        drafting.close()


def test_a_state_beside_a_cache_on_disk(checkpoint, cold, tmp_path):
    """What follows the state is found on disk after a restart, and only by requests with the state."""
    state, found = cold.save_state(TEXT), []
    for _ in range(2):
        loaded = LLM.load(checkpoint.spec, checkpoint.tokenizer, checkpoint.files, replace(OPTIONS, cache_dir=tmp_path))
        try:
            found.append((ask(loaded, "hello wörld", state), ask(loaded, [*state.token_ids, 7])[1]["cached_tokens"]))
        finally:
            loaded.close()
    assert found[0][0][0] == found[1][0][0] == ask(cold, "hello wörld", state)[0]
    assert found[1][0][1]["cached_tokens"] >= len(state.token_ids) - 1
    assert found[0][1] == 0


def test_a_later_attempt_goes_on_behind_what_was_delivered(llm, cold):
    state = llm.save_state(TEXT)
    whole = ask(cold, "hello", state)[0]
    rest, _ = ask(llm, "hello", state, delivered=[whole[:4]])
    assert rest == whole[4:]


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
        llm.prepare_after(state, message)


def test_a_state_is_in_memory_as_long_as_requests_go_on_from_it(llm, settings, tmp_path):
    settings.BLAZR_FILES_DIR = tmp_path
    llm.write_state(llm.save_state(TEXT), tmp_path / "a")
    states = SavedStates()
    requests = [
        states.prepare(llm, message(text, prompt={"text": text}, **PARAMS.to_dict()) | {"state": "a"}) for text in "bc"
    ]
    assert requests[0].state is requests[1].state, "requests share the bytes"
    num_bytes = requests[0].state.num_bytes
    for request in requests:
        llm.add(request)
    llm.step()
    del requests, request
    gc.collect()
    assert states._bytes_in_use() == num_bytes, "running requests hold them"
    llm.abort("b")
    while llm.has_unfinished():
        llm.step()
    gc.collect()
    assert states._bytes_in_use() == 0, "ended ones don't"
    states.stop()


def test_echo_has_what_follows_the_state_only(llm):
    state = llm.save_state(TEXT)
    ids = llm.tokenizer.encode(" hello", add_special_tokens=False)
    params = replace(PARAMS, max_tokens=1)
    texts = []
    for prompt in (" hello", ids):
        events = list(llm.events(prompt, params, state=state, echo=True))
        texts.append(events[0]["prompt_text"])
    assert texts == [" hello", " hello"]
