"""Lines that run on an engine in this process: each gives one result, as soon as it ends, so many at once."""

from __future__ import annotations

from typing import Any

import orjson

from inference.batches.line_requests import InputLine
from inference.batches.local import run_lines
from inference.errors import GenerationFailed, InvalidRequest


class Engine:
    """Reverses prompts, one request a step, the last added first; refuses "bad" and fails at "fail"."""

    def __init__(self) -> None:
        self.held: list[Any] = []
        self.most = 0
        self.aborted: list[str] = []

    def prepare(self, message: Any) -> Any:
        if message["prompt"]["text"] == "bad":
            raise InvalidRequest("not this one.", param="prompt")
        return message

    def add(self, prepared: Any) -> None:
        self.held.append(prepared)
        self.most = max(self.most, len(self.held))

    def abort(self, request_id: str) -> bool:
        self.aborted.append(request_id)
        self.held = [message for message in self.held if message["request_id"] != request_id]
        return True

    step_tokens = 1

    def step(self) -> list[Any]:
        message = self.held.pop()
        head = {"request_id": message["request_id"], "attempt": 0}
        text = message["prompt"]["text"]
        if text == "fail":
            return [{**head, "index": 0, "type": "error", "error": GenerationFailed("no.").to_dict()}]
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "cached_tokens": 0}
        return [
            {**head, "index": 0, "type": "start", "prompt_tokens": 1},
            {**head, "index": 1, "type": "delta", "choice": 0, "text": text[::-1], "token_ids": [1],
             "finish_reason": "stop"},
            {**head, "index": 2, "type": "done", "usage": usage},
        ]  # fmt: skip


def line(number: int, prompt: Any) -> InputLine:
    return InputLine(number, f"c{number}", "/v1/completions", {"model": "m", "prompt": prompt})


def results(engine: Engine, *lines: InputLine, window: int = 2) -> dict[str, tuple[bool, dict[str, Any]]]:
    found = run_lines(engine, lines, resolve=lambda plan: plan, window=window)  # type: ignore[arg-type]
    return {item.line.custom_id: (item.is_error, orjson.loads(item.payload)["response"]["body"]) for item in found}


def test_every_line_has_one_result_and_no_more_run_than_the_window_holds():
    engine = Engine()
    found = results(engine, *(line(number, f"ab{number}") for number in range(7)), window=3)
    assert {name: body["choices"][0]["text"] for name, (_, body) in found.items()} == {
        f"c{number}": f"{number}ba" for number in range(7)
    }
    assert engine.most == 3


def test_refusals_and_failures_are_results_too():
    found = results(Engine(), line(1, "bad"), line(2, "fail"), line(3, "ok"))
    assert {name: is_error for name, (is_error, _) in found.items()} == {"c1": True, "c2": True, "c3": False}
    assert found["c1"][1]["error"]["param"] == "prompt"
    assert found["c2"][1]["error"]["code"] == "generation_failed"


def test_a_failed_prompt_ends_the_other_prompts_of_its_line():
    engine = Engine()
    found = results(engine, line(1, ["a", "b", "fail"]))
    assert found["c1"][0]
    assert len(engine.aborted) == 2 and engine.held == []


def test_several_prompts_of_a_line_are_one_result():
    assert [choice["text"] for choice in results(Engine(), line(1, ["ab", "cd"]))["c1"][1]["choices"]] == ["ba", "dc"]
