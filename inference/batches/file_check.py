"""Check a batch's file before anything is queued: what would refuse it, which lines would fail, what it asks for.

The same functions that validate a queued batch and start its lines read the file here. One file is checked at a time in
a process, with pauses, as Python's lock is shared with the event loop.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import IO, TYPE_CHECKING, Any
from uuid import UUID

from inference.batches.line_requests import ENDPOINT_KINDS, InputLine, LineError, line_request, read_lines
from inference.batches.unrun_lines import NO_CHECKPOINT, NOT_ALLOWED, unservable_error
from inference.batches.validation import MAX_ERRORS, MAX_LINES, checkpoint_id_of, file_errors
from inference.errors import BlazrError, QueueFull
from inference.host.held_place import held_place
from inference.serving.served_models import plan_for_model, served_model_read
from inference.values.limits import estimate_prompt_tokens, estimate_tokens

if TYPE_CHECKING:
    from inference.values.principal import Principal
    from inference.values.served_model import ServedModel

MAX_MODELS = 20
MAX_MODEL_CHARS = 200
MAX_WAITING = 4
"""Checks of a process that wait for the one that runs: each has its file on the disk."""
TICK_S = 0.5
WORK_S, PAUSE_S = 0.004, 0.001
"""Seconds of work after which a check pauses, and of its pause."""

_check_lock = threading.Lock()
_places = threading.BoundedSemaphore(MAX_WAITING + 1)


class CheckStopped(Exception):
    """Nobody waits for the report any more."""


@contextmanager
def check_place() -> Iterator[None]:
    """Hold one of the places for checks of this process; take it before the file is stored.

    Raises:
        QueueFull: All are taken.
    """
    refusal = QueueFull(
        f"{MAX_WAITING + 1} files are being checked, or wait for that. Try again in some seconds.", retry_after_s=5
    )
    with held_place(_places, refusal):
        yield


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


def check_file(file: IO[bytes], principal: Principal, stopped: threading.Event) -> FileReport:
    """Read a file as a batch of ``principal`` would; waits for other checks of this process.

    Args:
        file: JSON lines; read twice from the start.
        stopped: Set when nobody waits for the report any more.

    Raises:
        CheckStopped: ``stopped`` was set.
    """
    while not _check_lock.acquire(timeout=TICK_S):
        if stopped.is_set():
            raise CheckStopped
    try:
        check = _Check(principal, stopped)
        check.run(file)
        return check.report
    finally:
        _check_lock.release()


class _Check:
    def __init__(self, principal: Principal, stopped: threading.Event) -> None:
        self.report = FileReport()
        self._stopped = stopped
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
                if self._stopped.wait(PAUSE_S):
                    raise CheckStopped
                self._paused_at = time.monotonic()

    def _count_request(self, line: InputLine) -> None:
        """Count a request, and read its body as the runner of lines does."""
        name = line.model
        if len(name) > MAX_MODEL_CHARS:  # no model's; 50,000 of them may be as long as their lines
            name = f"{name[:MAX_MODEL_CHARS]}…"
        self.report.num_lines += 1
        self.report.models[name] += 1
        try:
            if name not in self._models:
                self._models[name] = checkpoint_id_of(name, self._principal.models)
            if self._models[name] in (NO_CHECKPOINT, NOT_ALLOWED):
                raise unservable_error(self._models[name], line.body.get("model"))
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
