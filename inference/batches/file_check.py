"""Check a batch's file before anything is queued: what would refuse it, which lines would fail, what it asks for.

The same functions that validate a queued batch and start its lines read the file here. One file is checked at a time in
a process, with pauses, as Python's lock is shared with the event loop.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import IO, TYPE_CHECKING, Any
from uuid import UUID

from inference.batches.line_requests import ENDPOINT_KINDS, InputLine, LineError, line_request, read_lines
from inference.batches.unrun_lines import NO_CHECKPOINT, NOT_ALLOWED, unservable_error
from inference.batches.validation import MAX_ERRORS, MAX_LINES, checkpoint_id_of, file_errors
from inference.errors import BlazrError
from inference.serving.served_models import plan_for_model, served_model_read
from inference.values.limits import estimate_prompt_tokens, estimate_tokens

if TYPE_CHECKING:
    from inference.values.principal import Principal
    from inference.values.served_model import ServedModel

MAX_MODELS = 20
WORK_S, PAUSE_S = 0.004, 0.001
"""Seconds of work after which a check pauses, and of its pause."""

_check_lock = threading.Lock()


@dataclass(slots=True)
class FileReport:
    """What a check has found.

    Attributes:
        endpoint: Of the first readable line; empty: there is none.
        num_lines: Lines that are requests.
        refusal_counts, failure_counts: Problems by code: of those that refuse the file, and of lines that would fail.
        problems: The first problems, each with whether it refuses the file.
        models: Lines by model; an empty name for lines without one.
        prompt_tokens, output_tokens: Estimates without a tokenizer, four bytes to a token; outputs as their limits
            allow.
    """

    endpoint: str = ""
    num_lines: int = 0
    refusal_counts: Counter[str] = field(default_factory=Counter)
    failure_counts: Counter[str] = field(default_factory=Counter)
    problems: list[tuple[LineError, bool]] = field(default_factory=list)
    models: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    output_tokens: int = 0

    def add_problem(self, problem: LineError, *, refuses: bool) -> None:
        """Count a problem, and keep it if it is one of the first."""
        (self.refusal_counts if refuses else self.failure_counts)[problem.code] += 1
        if len(self.problems) < MAX_ERRORS:
            self.problems.append((problem, refuses))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON."""
        counts = [(self.refusal_counts, True), (self.failure_counts, False)]
        return {
            "endpoint": self.endpoint,
            "lines": self.num_lines,
            "models": [{"model": name, "lines": count} for name, count in self.models.most_common(MAX_MODELS)],
            "num_models": len(self.models),
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "refused": self.refusal_counts.total(),
            "failing": self.failure_counts.total(),
            "counts": [
                {"code": code, "count": count, "refuses": refuses}
                for found, refuses in counts
                for code, count in found.most_common()
            ],
            "problems": [{**problem.to_dict(), "refuses": refuses} for problem, refuses in self.problems],
        }


def check_file(file: IO[bytes], principal: Principal) -> FileReport:
    """Read a file as a batch of ``principal`` would; waits for other checks of this process.

    Args:
        file: JSON lines; read twice from the start.
    """
    with _check_lock:
        check = _Check(principal)
        check.run(file)
        return check.report


class _Check:
    def __init__(self, principal: Principal) -> None:
        self.report = FileReport()
        self._principal = principal
        self._models: dict[str, UUID] = {}
        self._served: dict[str, ServedModel] = {}
        self._paused_at = time.monotonic()

    def run(self, file: IO[bytes]) -> None:
        lines = islice(self._with_pauses(read_lines(file, *ENDPOINT_KINDS)), MAX_LINES)
        first = next((item for item in lines if isinstance(item, InputLine)), None)
        file.seek(0)
        self.report.endpoint = "" if first is None else first.url
        endpoints = tuple(ENDPOINT_KINDS) if first is None else (first.url,)
        for error in file_errors(self._with_pauses(self._counting(read_lines(file, *endpoints))), lambda: None):
            self.report.add_problem(error, refuses=True)

    def _counting(self, lines: Iterator[InputLine | LineError]) -> Iterator[InputLine | LineError]:
        for item in lines:
            if isinstance(item, InputLine):
                self._count_request(item)
            yield item

    def _with_pauses(self, lines: Iterator[InputLine | LineError]) -> Iterator[InputLine | LineError]:
        for item in lines:
            yield item
            if time.monotonic() - self._paused_at > WORK_S:
                time.sleep(PAUSE_S)
                self._paused_at = time.monotonic()

    def _count_request(self, line: InputLine) -> None:
        """Count a request, and read its body as the runner of lines does."""
        self.report.num_lines += 1
        self.report.models[line.model] += 1
        try:
            if line.model not in self._models:
                self._models[line.model] = checkpoint_id_of(line.model, self._principal.models)
            if self._models[line.model] in (NO_CHECKPOINT, NOT_ALLOWED):
                raise unservable_error(self._models[line.model], line.body.get("model"))
            request = line_request(line.url, line.body, key=str(line.number))
            plan = request.plan
            self._principal.check_options(priority=plan.priority, keep_alive_s=plan.keep_alive_s)
            if plan.model not in self._served:
                self._served[plan.model] = served_model_read(plan.model)
            plan = request.resolved(lambda found: plan_for_model(found, self._served[found.model])).plan
        except BlazrError as error:
            self.report.add_problem(LineError(error.code, error.message, line.number, error.param), refuses=False)
            return
        prompts = estimate_prompt_tokens(plan)
        self.report.prompt_tokens += prompts
        self.report.output_tokens += estimate_tokens(plan) - prompts
