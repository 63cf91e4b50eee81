"""Programs without a server: batches, chats, vectors and streams in the caller's thread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from inference.errors import InvalidChatTemplate, InvalidRequest, InvalidTokenIds, PromptTooLong, UnknownModel
from inference.llm import LLM, SamplingParams
from inference.llm import offline as module
from tests.inference.llm.adapter_writing import write_adapter
from tests.inference.llm.harness import OPTIONS, Checkpoint, embedded, one, params, text_of

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
TEXTS = ["the quick", "brown fox", "lazy dog 🙂"]


def is_idle(llm: LLM) -> bool:
    stats = llm.stats()
    return not (llm._inboxes or llm._events or llm._outputs or stats["num_running"] or stats["num_blocks_used"])


def test_a_batch_has_the_outputs_of_its_prompts_alone(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OPEN", 2)
    together = llm.generate(TEXTS, GREEDY)
    assert [output.prompt for output in together] == TEXTS
    for text, output in zip(TEXTS, together, strict=True):
        (alone,) = llm.generate(text, GREEDY)
        assert alone.outputs == output.outputs
        assert output.text == text_of(one(llm, prompt={"text": text}, temperature=0.0, max_tokens=12))
        assert output.prompt_token_ids == llm.tokenizer.encode(text)
        assert output.outputs[0].finish_reason == "length"
        assert output.usage["completion_tokens"] == len(output.outputs[0].token_ids) == 12
    assert is_idle(llm)


def test_prompts_are_texts_token_ids_or_dictionaries(llm: LLM) -> None:
    ids = llm.tokenizer.encode("the quick")
    (text,) = llm.generate("the quick", GREEDY)
    given = [ids, {"prompt_token_ids": ids}, {"prompt": "the quick"}]
    assert [output.text for output in llm.generate(given, GREEDY)] == [text.text] * 3
    (output,) = llm.generate(ids, GREEDY)
    assert (output.prompt, output.prompt_token_ids, output.text) == (None, ids, text.text)
    assert llm.generate([]) == []
    with pytest.raises(InvalidRequest, match="prompt or prompt_token_ids"):
        llm.generate([{"text": "a"}])
    with pytest.raises(InvalidRequest, match="multi_modal_data is not a member of a prompt"):
        llm.generate([{"prompt": "a", "multi_modal_data": {"image": "b"}}])
    assert llm.generate({"prompt": "the quick", "multi_modal_data": None}, GREEDY)[0].text == text.text


def test_token_ids_may_be_arrays(llm: LLM) -> None:
    ids = llm.tokenizer.encode("the quick")
    wanted = llm.generate(ids, GREEDY)[0].text
    array = np.array(ids)
    for given in (array, torch.tensor(ids), list(array), [array], [torch.tensor(ids)], np.array([ids])):
        (output,) = llm.generate(given, GREEDY)
        assert (output.text, output.prompt_token_ids) == (wanted, ids)
    assert llm.generate([{"prompt_token_ids": array}, array], GREEDY)[1].text == wanted
    assert "".join(delta.text for delta in llm.stream(array, GREEDY)) == wanted
    assert text_of(list(llm.events(array, GREEDY))) == wanted
    assert llm.save_state(array).token_ids == tuple(ids)
    with pytest.raises(InvalidTokenIds):
        llm.generate([np.array([0.5, 1.5])], GREEDY)
    for wrong in (np.array([0.5, 1.5]), ["the", None], b"the"):
        with pytest.raises(InvalidRequest, match="a prompt is a text, token ids or a dictionary, not"):
            llm.generate(wrong, GREEDY)
    assert is_idle(llm)


def test_each_prompt_has_parameters_of_its_own(llm: LLM) -> None:
    drawn = SamplingParams(**params(n=2, logprobs=1, max_tokens=3, prompt_logprobs=1))
    first, second = llm.generate(["the", "fox"], [GREEDY, drawn])
    assert len(first.outputs) == 1 and not first.outputs[0].logprobs and first.prompt_logprobs is None
    assert [choice.index for choice in second.outputs] == [0, 1]
    assert [len(choice.logprobs) for choice in second.outputs] == [3, 3]
    assert second.prompt_logprobs is not None and second.prompt_logprobs[0] is None
    with pytest.raises(InvalidRequest, match="1 sampling parameters for 2 prompts"):
        llm.generate(["a", "b"], [GREEDY])


def test_seeds_repeat_a_draw_and_no_seed_makes_a_new_one(llm: LLM) -> None:
    again, same, other = llm.generate(["the"] * 3, [SamplingParams(**params(seed=seed)) for seed in (1, 1, 2)])
    assert again.text == same.text != other.text
    texts = {output.text for output in llm.generate(["the"] * 3, SamplingParams(max_tokens=24, ignore_eos=True))}
    assert len(texts) == 3


def test_a_prompt_that_is_refused_ends_the_others(llm: LLM) -> None:
    with pytest.raises(PromptTooLong, match=r"^prompt 1: "):
        llm.generate(["the", "fox " * 500], GREEDY)
    assert is_idle(llm)
    with pytest.raises(PromptTooLong, match=r"^This model"):
        llm.generate("fox " * 500, GREEDY)
    with pytest.raises(InvalidRequest, match="best_of is not an option of a prompt"):
        llm.generate("x", GREEDY, best_of=1)


def test_a_failed_request_raises(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError

    monkeypatch.setattr("inference.llm.text_output.TextOutput.accept", broken)
    with pytest.raises(Exception, match="prompt 0: the output could not be turned into text"):
        llm.generate(["the", "fox"], GREEDY)
    with pytest.raises(Exception, match="the output could not be turned into text"):
        list(llm.stream("the", GREEDY))
    assert is_idle(llm)


def test_chat_renders_the_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    (output,) = llm.chat(messages, GREEDY)
    assert output.prompt is not None and output.prompt.startswith("<s><|im_start|>user\nhi")
    assert [item.text for item in llm.chat([messages, messages], GREEDY)] == [output.text] * 2
    continued = [*messages, {"role": "assistant", "content": "the quick"}]
    (more,) = llm.chat(continued, GREEDY, continue_final_message=True, add_generation_prompt=False)
    assert more.prompt is not None and more.prompt.endswith("the quick")
    for bad in ([], [{"content": "x"}]):
        with pytest.raises(InvalidRequest, match=r"messages|no dictionary with a role"):
            llm.chat([bad])
    with pytest.raises((InvalidChatTemplate, InvalidRequest)):
        llm.chat([{"role": "user"}], GREEDY, no_such_option=1)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"tool_choice": "required"}, r"tool_choice is 'required'; it must be one of none, auto\."),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice is 'any'; it must be one of none, auto, required, look"),
        ({"tools": [TOOL], "tool_choice": {"function": {"name": "hear"}}}, "tool_choice is 'hear'"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "a tool_choice that is no word, isn't like"),
        ({"tools": [{"name": "look"}]}, "a tool, or a tool_choice"),
        ({"tools": ["look"]}, "a tool, or a tool_choice"),
    ],
)
def test_tools_that_cannot_be_followed_are_refused(llm: LLM, options: dict[str, Any], problem: str) -> None:
    messages = [{"role": "user", "content": "hi"}]
    with pytest.raises(InvalidRequest, match=problem):
        llm.chat(messages, GREEDY, **options)
    with pytest.raises(InvalidRequest, match=problem):
        next(llm.stream(messages, GREEDY, **options))
    assert is_idle(llm)


def test_tools_go_through_the_template() -> None:
    required = SamplingParams(temperature=0.0, max_tokens=80)
    messages = [{"role": "user", "content": "hi"}]
    with LLM.from_pretrained("demo", device="cpu", max_num_seqs=2) as demo:
        (output,) = demo.chat(messages, required, tools=[TOOL], tool_choice="required")
        assert output.prompt is not None and '"look"' in output.prompt
        (choice,) = output.outputs
        assert (choice.tool_calls[0].name, choice.text) == ("look", "")
        deltas = [*demo.stream(messages, required, tools=[TOOL], tool_choice="required")]
        assert [call.name for delta in deltas for call in delta.tool_calls][:1] == ["look"]


def test_streams_and_batches_may_be_open_together(llm: LLM) -> None:
    first, second = llm.stream("the quick", GREEDY), llm.stream([{"role": "user", "content": "hi"}], GREEDY)
    parts = [next(first), next(second)]
    (whole,) = llm.generate("the quick", GREEDY)
    rest = list(first)
    assert "".join(delta.text for delta in [parts[0], *rest]) == whole.text
    assert [delta.finish_reason for delta in rest[-2:]] == ["length", None]
    assert rest[-1].usage is not None and rest[-1].usage["completion_tokens"] == 12
    (chatted,) = llm.chat([{"role": "user", "content": "hi"}], GREEDY)
    assert "".join(delta.text for delta in [parts[1], *second]) == chatted.text
    assert is_idle(llm)


def test_a_stream_that_is_left_frees_the_engine(llm: LLM) -> None:
    for delta in llm.stream("the", GREEDY):
        assert delta.token_ids
        break
    del delta
    assert is_idle(llm)


def test_vectors_come_in_order_and_have_length_one(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INPUTS_PER_MESSAGE", 2)
    vectors = llm.embed(TEXTS)
    assert vectors.shape == (3, 32) and vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-5)
    raw = llm.embed(TEXTS, normalize=False, dimensions=8)
    wanted, _ = embedded(llm, [{"text": text} for text in TEXTS])
    np.testing.assert_allclose(raw, np.stack(wanted)[:, :8], rtol=1e-4, atol=1e-5)
    assert llm.embed("the").shape == (1, 32)
    assert llm.embed("fox " * 500, truncate=True).shape == (1, 32)
    with pytest.raises(PromptTooLong):
        llm.embed("fox " * 500)
    with pytest.raises(InvalidRequest, match="no prompts"):
        llm.embed([])


def test_outputs_go_on_from_a_state(llm: LLM) -> None:
    state = llm.save_state("the quick brown fox jumps")
    (whole,) = llm.generate("the quick brown fox jumps over", GREEDY)
    (after,) = llm.generate([llm.tokenizer.encode(" over", add_special_tokens=False)], GREEDY, state=state)
    if whole.prompt_token_ids == after.prompt_token_ids:
        assert after.text == whole.text
    assert after.prompt_token_ids[: len(state.token_ids)] == list(state.token_ids)


def test_each_prompt_may_name_an_adapter(checkpoint: Checkpoint, tmp_path: Path) -> None:
    paths = {name: write_adapter(tmp_path / name, number) for number, name in enumerate(("one", "two"))}
    with LLM.load(
        checkpoint.spec, checkpoint.tokenizer, checkpoint.files, OPTIONS, adapters={"one": paths["one"]}
    ) as llm:
        assert llm.load_adapter("two", str(paths["two"])).rank == 4
        names = ["one", None, "two"]
        outputs = llm.generate(["the quick"] * 3, GREEDY, adapter=names)
        texts = {name: output.text for name, output in zip(names, outputs, strict=True)}
        assert len(set(texts.values())) == 3
        for name in names:
            assert llm.generate("the quick", GREEDY, adapter=name)[0].text == texts[name]
            assert "".join(delta.text for delta in llm.stream("the quick", GREEDY, adapter=name)) == texts[name]
        messages = [{"role": "user", "content": "the quick"}]
        first, second = llm.chat([messages] * 2, GREEDY, adapter=["one", None])
        assert first.text == "".join(delta.text for delta in llm.stream(messages, GREEDY, adapter="one"))
        assert first.text != second.text == llm.chat(messages, GREEDY)[0].text
        assert not np.allclose(llm.embed(TEXTS, adapter="one"), llm.embed(TEXTS), atol=1e-3)
        with pytest.raises(InvalidRequest, match="2 adapters for 1 prompts"):
            llm.generate("the", GREEDY, adapter=["one", "two"])
        llm.unload_adapter("two")
        with pytest.raises(UnknownModel, match="no adapter 'two'; it has one"):
            llm.generate(["the", "fox"], GREEDY, adapter=["one", "two"])
        assert is_idle(llm)
        with pytest.raises(UnknownModel):
            llm.unload_adapter("two")


def test_a_with_block_closes_the_model(checkpoint: Checkpoint) -> None:
    with LLM.from_pretrained(checkpoint.directory, device="cpu", max_model_len=64, num_threads=1) as loaded:
        assert loaded.max_model_len == 64
    with pytest.raises(Exception, match="closed"):
        loaded.generate("a", GREEDY)
