"""Run batch lines without a server, on a model of this process; uses no database and no files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from inference.batches.line_requests import InputLine, LineRequest, line_request, refusal_line
from inference.batches.outcomes import ended_line
from inference.errors import BlazrError
from inference.values.messages import GenerateMessage, GenerationEvent
from inference.values.output_builder import OutputBuilder
from inference.values.plan import GenerationPlan

DEADLINE_S = 10 * 365 * 86_400.0


class Engine(Protocol):
    """The part of ``inference.llm.llm.LLM`` that is used here."""

    def prepare(self, message: GenerateMessage, /) -> Any:
        """Tokenise and validate a request."""
        ...

    def add(self, prepared: Any, /) -> None: ...

    def abort(self, request_id: str, /) -> bool: ...

    def step(self) -> list[GenerationEvent]: ...


@dataclass(frozen=True, slots=True)
class LocalResult:
    """The result of a line.

    Attributes:
        payload: The line of the output or error file.
    """

    line: InputLine
    payload: str
    is_error: bool
    completion_tokens: int = 0


@dataclass(eq=False, slots=True)
class _Running:
    line: InputLine
    request: LineRequest
    builder: OutputBuilder
    open_parts: set[str]
    error: BlazrError | None = None


def run_lines(
    engine: Engine,
    lines: Iterable[InputLine],
    *,
    resolve: Callable[[GenerationPlan], GenerationPlan],
    window: int,
) -> Iterator[LocalResult]:
    """Run lines, up to ``window`` at once, and yield each result when the line ends.

    Args:
        engine: Used by this thread only.
        resolve: Resolves a plan for the model; raises an error if the model doesn't support the plan.
        window: The most lines in the engine.

    Raises:
        EngineDead: The engine can't continue.
    """
    waiting = iter(lines)
    running: dict[str, tuple[_Running, int]] = {}
    is_empty = False
    held = 0
    while held or not is_empty:
        while held < window and not is_empty:
            line = next(waiting, None)
            if line is None:
                is_empty = True
                break
            try:
                started = _start(engine, line, resolve)
            except BlazrError as error:
                yield _refused(line, error)
                continue
            held += 1
            for number in range(len(started.request.plan.prompts)):
                running[_name(line, number)] = (started, number)
        if not held:
            continue
        for event in engine.step():
            found = running.get(event["request_id"])
            if found is None:
                continue
            ended = _take(engine, running, *found, event)
            if ended is not None:
                held -= 1
                yield ended


def _name(line: InputLine, number: int) -> str:
    return f"{_line_id(line)}-{number}"


def _line_id(line: InputLine) -> str:
    return f"batch_req_{line.number:012x}"


def _start(engine: Engine, line: InputLine, resolve: Callable[[GenerationPlan], GenerationPlan]) -> _Running:
    request = line_request(line.url, line.body, key=line.custom_id)
    try:
        return _add(engine, line, request.resolved(resolve))
    except BlazrError as error:
        raise request.translate_error(error) from None


def _add(engine: Engine, line: InputLine, request: LineRequest) -> _Running:
    plan = request.plan
    prepared = [
        engine.prepare(
            plan.message(
                number,
                request_id=_name(line, number),
                web_id="",
                checkpoint_id="",
                deadline=time.time() + DEADLINE_S,
            )
        )
        for number in range(len(plan.prompts))
    ]
    names = [_name(line, number) for number in range(len(plan.prompts))]
    for number, item in enumerate(prepared):
        try:
            engine.add(item)
        except BlazrError:
            for name in names[:number]:
                engine.abort(name)
            raise
    return _Running(line, request, OutputBuilder(plan), set(names))


def _take(
    engine: Engine,
    running: dict[str, tuple[_Running, int]],
    item: _Running,
    number: int,
    event: GenerationEvent,
) -> LocalResult | None:
    """Take one event; returns the result after the line's last event."""
    request_id = event["request_id"]
    if event["type"] == "error":
        item.error = item.error or BlazrError.from_dict(event.get("error", {}))
    else:
        item.builder.add(number, event)
    if event["type"] not in ("done", "error"):
        return None
    item.open_parts.discard(request_id)
    running.pop(request_id, None)
    if item.error is not None:
        for name in item.open_parts:
            running.pop(name, None)
            engine.abort(name)
        return _refused(item.line, item.request.translate_error(item.error))
    if item.open_parts:
        return None
    name = _line_id(item.line)
    payload, is_error = ended_line(
        item.request, item.builder, line_id=name, custom_id=item.line.custom_id, request_id=name
    )
    return LocalResult(item.line, payload, is_error=is_error, completion_tokens=item.builder.completion_tokens)


def _refused(line: InputLine, error: BlazrError) -> LocalResult:
    name = _line_id(line)
    return LocalResult(
        line, refusal_line(line_id=name, custom_id=line.custom_id, request_id=name, error=error), is_error=True
    )
