"""Events of a request: text, stop strings, log-probabilities, later attempts, faults."""

from __future__ import annotations

from typing import Any

import pytest

from inference.llm.llm import LLM
from inference.values.messages import GenerationEvent
from tests.inference.llm.harness import (
    deltas,
    ids_of,
    message,
    one,
    text_of,
)


def test_end_of_sequence_is_no_text_and_no_stop_reason(llm: LLM) -> None:
    events = one(llm, ignore_eos=False, logit_bias={"1": 100}, min_tokens=4, skip_special_tokens=False)
    last = deltas(events)[-1]
    assert ids_of(events)[-1] == 1
    assert len(ids_of(events)) == 5
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", None)
    assert "</s>" not in text_of(events)


def test_stop_token_is_named_and_hidden_unless_wanted(llm: LLM) -> None:
    ids = ids_of(one(llm))
    token_id = next(token_id for token_id in ids[3:] if token_id not in ids[:3])
    events = one(llm, stop_token_ids=[token_id])
    assert ids_of(events) == ids[: ids.index(token_id) + 1]
    assert text_of(events) == llm.tokenizer.decode(ids_of(events)[:-1])
    assert deltas(events)[-1]["stop_reason"] == token_id
    included = one(llm, stop_token_ids=[token_id], include_stop_str_in_output=True)
    assert text_of(included) == llm.tokenizer.decode(ids_of(events))


@pytest.mark.parametrize("include", [False, True])
def test_stop_string_ends_the_sequence_wherever_tokens_end(llm: LLM, include: bool) -> None:
    text = text_of(one(llm))
    for start in range(2, len(text) - 4, 3):
        stop = text[start : start + 3]
        events = one(llm, stop=[stop, "not in the text"], include_stop_str_in_output=include)
        assert text_of(events) == text[: text.index(stop) + (3 if include else 0)]
        last = deltas(events)[-1]
        assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop)
        assert events[-1]["usage"]["completion_tokens"] == len(ids_of(events))


def test_stop_string_of_one_choice_leaves_the_others(llm: LLM) -> None:
    events = one(llm, n=3, seed=40)
    stop = text_of(events, 1)[5:9]
    stopped = one(llm, n=3, seed=40, stop=[stop])
    for choice in range(3):
        whole = text_of(events, choice)
        assert text_of(stopped, choice) == whole.split(stop)[0]
        assert deltas(stopped, choice)[-1]["finish_reason"] == ("stop" if stop in whole else "length")


def test_logprobs(llm: LLM) -> None:
    events = one(llm, logprobs=4, n=2)
    for choice in range(2):
        entries = [entry for event in deltas(events, choice) for entry in event["logprobs"]]
        assert [entry["token_id"] for entry in entries] == ids_of(events, choice)
        data = b"".join(bytes(entry["bytes"]) for entry in entries)
        assert data.decode("utf-8", "replace").startswith(text_of(events, choice).rstrip("�"))
        for entry in entries:
            assert entry["logprob"] <= 0
            assert len(entry["top"]) == 4
            assert [item["logprob"] for item in entry["top"]] == sorted(
                (item["logprob"] for item in entry["top"]), reverse=True
            )
            assert entry["token"] == bytes(entry["bytes"]).decode("utf-8", "replace")
    assert "logprobs" not in deltas(one(llm))[0]


def test_echo_scores_the_prompt_before_anything_else(llm: LLM) -> None:
    events = one(
        llm,
        echo=True,
        prompt_logprobs=2,
        logprobs=0,
        max_tokens=0,
        return_prompt_token_ids=True,
        prompt={"text": "the fox"},
    )
    assert [event["type"] for event in events] == ["start", "delta", "done"]
    start = events[0]
    ids = llm.tokenizer.encode("the fox")
    assert start["prompt_text"] == "the fox"
    usage = events[2]["usage"]
    assert 0 < start["accepted_ago_s"] <= usage["duration_s"] - usage["queue_s"]
    assert start["prompt_token_ids"] == ids
    assert start["prompt_logprobs"][0] is None
    assert [entry["token_id"] for entry in start["prompt_logprobs"][1:]] == ids[1:]
    assert events[1]["text"] == "" and events[1]["finish_reason"] == "length"
    assert events[2]["usage"]["completion_tokens"] == 0


def test_prompt_logprobs_come_first_with_several_choices(llm: LLM) -> None:
    prompt = {"token_ids": list(range(4, 74))}  # three steps of prefill
    events = one(llm, prompt=prompt, n=3, prompt_logprobs=0, max_tokens=5, echo=True)
    assert events[0]["type"] == "start"
    assert len(events[0]["prompt_logprobs"]) == 70
    assert events[0]["prompt_text"] == llm.tokenizer.decode(range(4, 74))
    assert [len(ids_of(events, choice)) for choice in range(3)] == [5, 5, 5]


def test_logprob_of_prompt_equals_logprob_of_output(llm: LLM) -> None:
    events = one(llm, logprobs=0)
    prompt = llm.tokenizer.encode("the quick 🙂")
    scored = one(llm, prompt={"token_ids": prompt + ids_of(events)}, prompt_logprobs=0, max_tokens=0)
    entries = [entry for event in deltas(events) for entry in event["logprobs"]]
    again = scored[0]["prompt_logprobs"][len(prompt) :]
    for left, right in zip(entries, again, strict=True):
        assert left["logprob"] == pytest.approx(right["logprob"], abs=1e-4)


@pytest.mark.parametrize("stop", [(), (5, 9)])
def test_second_attempt_goes_on_without_gap_or_repetition(llm: LLM, stop: tuple[int, ...]) -> None:
    whole = text_of(one(llm, n=2))
    stops = [whole[slice(*stop)]] if stop else []
    first = one(llm, n=2, stop=stops, logprobs=1, echo=True, return_prompt_token_ids=True)
    body = first[1:-1]
    for cut in range(len(body) + 1):
        seen = body[:cut]
        delivered = [ids_of(seen, choice) for choice in range(2)]
        second = one(llm, n=2, stop=stops, logprobs=1, echo=True, attempt=1, delivered=delivered)
        for choice in range(2):
            assert text_of(seen, choice) + text_of(second, choice) == text_of(first, choice)
            assert delivered[choice] + ids_of(second, choice) == ids_of(first, choice)
            last, expected = deltas(second, choice)[-1], deltas(first, choice)[-1]
            assert last["finish_reason"] == expected["finish_reason"]
            assert last["stop_reason"] == expected["stop_reason"]
        assert second[-1]["usage"]["completion_tokens"] == first[-1]["usage"]["completion_tokens"]
        assert ("prompt_text" in second[0]) == (not any(delivered))


def test_second_attempt_behind_a_stop_token(llm: LLM) -> None:
    first = one(llm, ignore_eos=False, logit_bias={"1": 100}, min_tokens=3, skip_special_tokens=False)
    second = one(
        llm,
        ignore_eos=False,
        logit_bias={"1": 100},
        min_tokens=3,
        skip_special_tokens=False,
        attempt=2,
        delivered=[ids_of(first)],
    )
    assert text_of(second) == ""
    assert ids_of(second) == []
    assert deltas(second)[-1]["finish_reason"] == "stop"


def test_second_attempt_behind_a_stop_string_of_broken_bytes(llm: LLM) -> None:
    """Bytes at the end that begin a character become U+FFFD only when the text ends."""
    broken = {"prompt": {"token_ids": [5]}, "temperature": 0.0, "max_tokens": 1, "stop": ["\ufffd"]}
    begin = next(token_id for token_id in range(400) if llm.tokenizer.token_bytes(token_id) == b"\xf0")
    first = one(llm, **broken, logit_bias={str(begin): 100})
    assert ids_of(first) == [begin]
    second = one(llm, **broken, logit_bias={str(begin): 100}, attempt=1, delivered=[[begin]])
    for events in (first, second):
        assert text_of(events) == ""
        assert (deltas(events)[-1]["finish_reason"], deltas(events)[-1]["stop_reason"]) == ("stop", "\ufffd")


def test_fault_in_text_of_one_request_fails_that_one_only(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """F31: whatever is raised while an output is put into words, a Rust panic included."""
    alone = text_of(one(llm))

    class PanicException(BaseException):
        pass

    for fault in (ValueError, RecursionError, MemoryError, PanicException):
        messages = [message(f"o{number}", logprobs=0, n=2) for number in range(3)]
        prepared = [llm.prepare(item) for item in messages]
        original = type(prepared[1].output)._entry
        victim = prepared[1].output

        def entry(self: Any, item: Any, fault: Any = fault, victim: Any = victim, original: Any = original) -> Any:
            if self is victim and self._choices[1].num_tokens >= 3:
                raise fault("injected")
            return original(self, item)

        monkeypatch.setattr(type(victim), "_entry", entry)
        for item in prepared:
            llm.add(item)
        events: dict[str, list[GenerationEvent]] = {}
        while llm.has_unfinished():
            for event in llm.step():
                events.setdefault(event["request_id"], []).append(event)
        monkeypatch.undo()
        assert events["o1"][-1]["type"] == "error"
        assert events["o1"][-1]["error"]["class"] == "GenerationFailed"
        assert [event["index"] for event in events["o1"]] == list(range(len(events["o1"])))
        assert text_of(events["o0"]) == text_of(events["o2"]) == alone
        assert llm.stats()["num_blocks_used"] == 0
