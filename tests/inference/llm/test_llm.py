"""LLM over a real, tiny, random network and a real tokenizer: text, events, resumption, faults."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch

from inference.engine.loop import EngineLoop
from inference.errors import (
    BlazrError,
    Conflict,
    InvalidRequest,
    InvalidTokenIds,
    PromptTooLong,
)
from inference.llm.llm import LLM
from inference.llm.text_output import TextOutput
from inference.modelling.backends.native import library as native_library
from inference.values.messages import GenerationEvent
from inference.values.sampling_params import SamplingParams
from tests.inference.llm.harness import (
    MAX_LEN,
    Checkpoint,
    deltas,
    embedded,
    ids_of,
    message,
    one,
    params,
    run,
    text_of,
)


def test_a_request_starts_streams_and_ends_with_usage(llm: LLM) -> None:
    events = one(llm)
    assert [event["type"] for event in events] == ["start", *["delta"] * 24, "done"]
    assert text_of(events) == llm.tokenizer.decode(ids_of(events))
    assert deltas(events)[-1]["finish_reason"] == "length"
    assert not any("finish_reason" in event for event in deltas(events)[:-1])
    usage = events[-1]["usage"]
    assert usage["prompt_tokens"] == events[0]["prompt_tokens"] == len(llm.tokenizer.encode("the quick 🙂"))
    assert usage["completion_tokens"] == 24
    assert 0 <= usage["queue_s"] <= usage["ttft_s"] <= usage["duration_s"]
    json.dumps(events)


def test_text_does_not_depend_on_company(llm: LLM) -> None:
    alone = text_of(one(llm))
    others = [message(f"o{number}", prompt={"token_ids": [5 + number] * 9}, seed=number) for number in range(11)]
    assert text_of(run(llm, *others, message())["r"]) == alone


def test_choices_are_drawn_with_consecutive_seeds(llm: LLM) -> None:
    events = one(llm, n=3, seed=40)
    texts = [text_of(events, choice) for choice in range(3)]
    assert texts == [text_of(one(llm, seed=40 + number)) for number in range(3)]
    assert len(set(texts)) == 3
    assert events[-1]["usage"]["completion_tokens"] == 72


def test_highest_seed_wraps(llm: LLM) -> None:
    assert text_of(one(llm, n=2, seed=2**63 - 1), 1) == text_of(one(llm, seed=-(2**63)))


def test_short_ways_say_what_the_long_ones_say(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy requests beside others, with tokens that are no whole characters, control tokens and stop strings."""

    def messages() -> list[Any]:
        plain = [message(f"p{n}", temperature=0.0, max_tokens=60, prompt={"token_ids": [5 + n] * 4}) for n in range(5)]
        others = [
            message("drawn", max_tokens=9),
            message("choices", temperature=0.0, n=2, max_tokens=30),
            message("scored", temperature=0.0, logprobs=2, max_tokens=8),
            message("stopped", temperature=0.0, stop=["e", "zz"], max_tokens=40),
            message("visible", temperature=0.0, skip_special_tokens=False, ignore_eos=False, max_tokens=40),
            message("second", temperature=0.0, attempt=1, delivered=[[7, 8, 9]], max_tokens=40),
        ]
        return plain + others

    def said() -> Any:
        events = run(llm, *messages())
        for found in events.values():
            usage = found[-1]["usage"]
            del usage["queue_s"], usage["ttft_s"], usage["duration_s"], usage["cached_tokens"]
            del usage["cache_miss_reason"], usage["slot_s"]
        return events

    said()  # what the prefix cache knows decides when the second of two choices begins
    short = said()
    engine = llm._running_engine()
    argmax_of = engine._runner.argmax_of
    used = []
    monkeypatch.setattr(engine._runner, "argmax_of", lambda *given: used.append(given) or argmax_of(*given))
    assert said() == short
    assert bool(used) and all(argmax_of(*given) is not None for given in used[:1]) == native_library.is_available()
    monkeypatch.setattr(engine._runner, "argmax_of", lambda *given: None)
    monkeypatch.setattr(TextOutput, "_continue", lambda *given: None)
    assert said() == short


def test_only_tokens_of_the_vocabulary_are_drawn(llm: LLM, checkpoint: Checkpoint) -> None:
    events = one(llm, temperature=2.0, max_tokens=100)
    assert max(ids_of(events)) < checkpoint.num_tokens


def test_too_long_prompt_says_both_numbers(llm: LLM) -> None:
    with pytest.raises(PromptTooLong, match=r"maximum context length is 128 tokens.*5210 in the prompt") as caught:
        llm.prepare(message(prompt={"token_ids": [5] * 5210}))
    assert caught.value.code == "context_length_exceeded"


def test_what_the_engine_refuses_leaves_nothing_behind(llm: LLM) -> None:
    with pytest.raises(InvalidTokenIds):
        llm.add(llm.prepare(message(logit_bias={"400": 1.0}, n=3)))
    assert llm._outputs == {} and llm._choices == {}
    assert text_of(one(llm))


def test_one_id_runs_once(llm: LLM) -> None:
    llm.add(llm.prepare(message()))
    with pytest.raises(Conflict):
        llm.add(llm.prepare(message()))
    assert llm.abort("r")
    while llm.has_unfinished():
        llm.step()


def test_abort_ends_with_one_terminal_event_and_frees_the_engine(llm: LLM) -> None:
    for steps in range(4):
        llm.add(llm.prepare(message(n=2, prompt_logprobs=0 if steps % 2 else None)))
        events = [event for _ in range(steps) for event in llm.step()]
        assert llm.abort("r")
        assert not llm.abort("r")
        assert llm.stats()["num_blocks_used"] == 0
        while llm.has_unfinished():
            events += llm.step()
        assert [event["index"] for event in events] == list(range(len(events)))
        assert [event["type"] for event in events].count("done") == 1
        assert {deltas(events, choice)[-1]["finish_reason"] for choice in range(2)} == {"abort"}
    # The same id again at once: a late word of the old attempt must not reach the new one.
    llm.add(llm.prepare(message()))
    llm.step()
    llm.abort("r")
    llm.add(llm.prepare(message(attempt=1)))
    events = []
    while llm.has_unfinished():
        events += [event for event in llm.step() if event["attempt"] == 1]
    assert text_of(events) == text_of(one(llm))
    assert deltas(events)[-1]["finish_reason"] == "length"


def test_poisoned_row_fails_its_request(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """F32: logits that are no numbers end one request with an error; its other choice ends too."""
    alone = text_of(one(llm))
    engine = llm._running_engine()
    original = engine._runner.logits_of

    def poisoned(hidden: torch.Tensor, rows: list[int]) -> torch.Tensor:
        logits = original(hidden, rows).clone()
        if len(rows) == 3:
            logits[0] = float("nan")
        return logits

    monkeypatch.setattr(engine._runner, "logits_of", poisoned)
    events = run(llm, message("bad", n=2), message("good"))
    assert events["bad"][-1]["type"] == "error"
    assert text_of(events["good"]) == alone


def test_serving_imports_no_compiler() -> None:
    """In a fresh process: torch.compile's parts would take a second of the first request, and 130 MiB."""
    script = """
import sys
from inference.demo.paths import PREBUILT_DIRECTORY
from inference.llm.llm import LLM, LLMOptions
from inference.values.sampling_params import SamplingParams
from models_registry.detection.inspection import inspect_checkpoint
found = inspect_checkpoint(PREBUILT_DIRECTORY)
llm = LLM.load(found.spec, found.tokenizer, found.weight_paths, LLMOptions(max_num_seqs=2, max_model_len=256))
drawn = SamplingParams(max_tokens=8, temperature=0.8, top_p=0.9, top_k=40, min_p=0.01, repetition_penalty=1.1, seed=1)
for params in (SamplingParams(max_tokens=8, temperature=0.0, logprobs=3), drawn):
    list(llm.events("The list", params))
llm.close()
print(sorted({"torch._dynamo", "torch._inductor", "sympy", "triton", "transformers"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


def test_generate_takes_text_ids_and_messages(llm: LLM) -> None:
    own = SamplingParams(**params())
    events = list(llm.events("the quick 🙂", own))
    assert text_of(events) == text_of(one(llm))
    ids = llm.tokenizer.encode("the quick 🙂")
    assert text_of(list(llm.events(ids, own))) == text_of(events)
    chat = list(llm.events([{"role": "user", "content": "hi"}], own, echo=True))
    assert chat[0]["prompt_text"].startswith("<s><|im_start|>user\nhi")
    with pytest.raises(InvalidRequest, match="best_of is not an option"):
        list(llm.events("x", own, best_of=1))


def test_generate_that_is_left_early_frees_the_engine(llm: LLM) -> None:
    events = llm.events("the", SamplingParams(**params()))
    next(events)
    next(events)
    events.close()
    assert llm.stats()["num_blocks_used"] == 0
    assert text_of(one(llm))


def test_in_the_engine_loop(llm: LLM) -> None:
    expected = text_of(one(llm))
    events: dict[str, list[GenerationEvent]] = {}
    refused: list[tuple[str, BlazrError]] = []
    done = threading.Event()

    def on_events(new: list[GenerationEvent]) -> None:
        for event in new:
            events.setdefault(event["request_id"], []).append(event)
        if sum(found[-1]["type"] == "done" for found in events.values()) == 12:
            done.set()

    loop: EngineLoop[Any, GenerationEvent] = EngineLoop(
        llm, on_events, on_refused=lambda item, error: refused.append((item.request_id, error)), on_dead=print
    )
    loop.start()

    def client(name: str) -> None:
        loop.submit(llm.prepare(message(name)))

    threads = [threading.Thread(target=client, args=(f"r{number}",)) for number in range(12)]
    for thread in threads:
        thread.start()
    loop.submit(llm.prepare(message("refused", logit_bias={"400": 1})))
    assert done.wait(60)
    assert loop.stop(drain=True, timeout_s=60)
    assert [text_of(found) for found in events.values()] == [expected] * 12
    assert [(name, type(error)) for name, error in refused] == [("refused", InvalidTokenIds)]


def test_inputs_that_are_too_long_are_refused_or_cut(llm: LLM):
    ids = [5 + n % 50 for n in range(MAX_LEN + 9)]
    with pytest.raises(PromptTooLong, match=f"your input 1 resulted in {MAX_LEN + 9} tokens") as caught:
        embedded(llm, [{"text": "a"}, {"token_ids": ids}])
    assert caught.value.param == "input"
    with pytest.raises(InvalidRequest, match="input 0: the prompt is empty"):
        embedded(llm, [{"token_ids": []}])
    with pytest.raises(InvalidRequest, match="pooling is 'max'"):
        embedded(llm, [{"text": "a"}], pooling="max")
    (cut,), events = embedded(llm, [{"token_ids": ids, "truncate": True}])
    assert events[0]["prompt_tokens"] == MAX_LEN
    (same,), _ = embedded(llm, [{"token_ids": ids[:MAX_LEN]}])
    assert cut.tolist() == pytest.approx(same.tolist(), rel=1e-4, abs=1e-5)
    _, events = embedded(llm, [{"text": "fox " * 5000, "truncate": True}])
    assert events[0]["prompt_tokens"] == MAX_LEN
