"""A worker that dies at any fault point of jobs, lines, batches and files: nothing is lost, nothing is there twice.

The worker's threads take their turns by hand, against the real rows and the real file store; its engine is scripted. A
death is an exception that no code catches: the transaction is rolled back, and everything in memory is forgotten.
``tests.faults.test_job_faults`` kills real processes.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings as site_settings

from inference.batches import lines, upkeep
from inference.batches.batch_claims import batches_abandon
from inference.dialects.openai.requests import plan_from_body
from inference.host import fault_points
from inference.host.fault_points import POINTS, arm
from inference.jobs import runner as job_runner
from inference.jobs.runner import JobRunner
from inference.jobs.selectors import job_result
from inference.jobs.services import JobRequest, jobs_submit
from inference.jobs.sweep import jobs_sweep
from inference.models import (
    Batch,
    BatchLine,
    BatchResult,
    GenerationJob,
    JobChunk,
    StoredFile,
    UsageDay,
    UsageRecord,
    WebhookDelivery,
)
from inference.values.principal import LOCAL
from inference.values.states import ResidentModel
from tests.inference.batches.fakes import contents, end_waits, line, make_batch, make_runner
from tests.inference.rows import make_checkpoint

WEB_POINTS = {"jobs.store", "hint", "file.stored"}
"""Points of web processes: rows F05 and F06."""
SEVERAL = {"job.flush", "job.started", "job.finish", "job.finished", "lines.claimed", "lines.finish", "lines.finished"}
"""Points that the worker gets to again with the same work."""
NUM_JOBS, NUM_LINES, NUM_TOKENS = 3, 6, 5
MAX_TURNS = 400


class Death(BaseException):
    """The process is gone."""


def tokens_of(text: str) -> list[int]:
    """The right tokens of a prompt."""
    return [(sum(text.encode()) + 7 * number) % 97 for number in range(NUM_TOKENS)]


class Engine:
    """Computes one token of each request with each step, behind those that were delivered before."""

    runs_alone = False

    def __init__(self, checkpoint_id: str) -> None:
        self._checkpoint_id = checkpoint_id
        self._steps: dict[str, Any] = {}
        self._waiting: dict[str, Any] = {}
        self.num_started = 0

    def submit(
        self, message: Any, on_events: Callable[[list[Any]], None], on_alone: Callable[[str], None] | None = None
    ) -> None:
        self.num_started += 1
        self._waiting[message["request_id"]] = (message, on_events)
        if "alone_tokens" in message and on_alone is not None:
            on_alone(message["request_id"])
        else:
            self.start_alone(message["request_id"])

    def start_alone(self, request_id: str) -> None:
        message, on_events = self._waiting.pop(request_id)
        self._steps[message["request_id"]] = self._events(message, on_events)

    def step(self) -> None:
        for request_id, events in list(self._steps.items()):
            if next(events, None) is None:
                self._steps.pop(request_id, None)

    def _events(self, message: Any, on_events: Callable[[list[Any]], None]) -> Any:
        numbers = itertools.count()

        def send(kind: str, **members: Any) -> bool:
            head = {"request_id": message["request_id"], "attempt": message.get("attempt", 0), "index": next(numbers)}
            on_events([{**head, "type": kind, **members}])
            return True

        tokens = tokens_of(message["prompt"]["text"])
        (delivered,) = message.get("delivered") or [[]]
        assert delivered == tokens[: len(delivered)]
        yield send("start", prompt_tokens=3)
        for position in range(len(delivered), len(tokens)):
            is_last = position == len(tokens) - 1
            yield send(
                "delta", choice=0, text=f"{tokens[position]} ", token_ids=[tokens[position]],
                finish_reason="length" if is_last else None, stop_reason=None,
            )  # fmt: skip
        yield send("done", usage={"prompt_tokens": 3, "completion_tokens": len(tokens), "cached_tokens": 0})

    def cancel(self, request_id: str) -> bool:
        return self._steps.pop(request_id, None) is not None

    def describe(self) -> tuple[ResidentModel, ...]:
        return (ResidentModel(self._checkpoint_id, "ready", 1.0),)

    def load_cost_s(self) -> float:
        return 0.0


@pytest.fixture
def model(transactional_db, settings, tmp_path, monkeypatch):
    settings.BLAZR_FILES_DIR = tmp_path / "files"
    settings.BLAZR_WEBHOOKS = "public"
    end_waits(monkeypatch)
    for name in ("POLL_S", "FLUSH_S", "HEARTBEAT_S", "SWEEP_S", "MIN_AGE_ELSEWHERE_S"):
        monkeypatch.setattr(job_runner, name, 0.0)

    def die() -> None:
        raise Death

    monkeypatch.setitem(fault_points.ACTIONS, "kill", die)
    yield make_checkpoint()
    arm("")


def live(checkpoint_id: str, num_turns: int) -> None:
    """One worker until all work has ended; raises ``Death`` if it dies before."""
    engine = Engine(checkpoint_id)
    jobs, batches = JobRunner(engine, owner="w", window=4), make_runner(engine, window=4)
    jobs._begin()
    batches._begin()
    batches_abandon(owner="w")
    for _ in range(num_turns):
        jobs_sweep()
        lines.lines_sweep()
        upkeep.batches_turn(owner="w")
        jobs.turn()
        batches.turn()
        engine.step()
        open_jobs = GenerationJob.objects.filter(finished_at=None).exists()
        if not open_jobs and not Batch.objects.filter(ended_at=None).exists():
            return
    raise AssertionError("the work doesn't end")


def submit_work() -> Batch:
    bodies = [{"model": "tiny", "prompt": f"job {number}", "return_token_ids": True} for number in range(NUM_JOBS)]
    jobs_submit(requests=[JobRequest(plan_from_body("completion", body)) for body in bodies], principal=LOCAL)
    rows = [line(f"r{number}", f"line {number}", return_token_ids=True) for number in range(NUM_LINES)]
    return make_batch(rows, webhook={"url": "https://example.com/"})


def check_ledger(batch: Batch) -> None:
    jobs = list(GenerationJob.objects.order_by("pk"))
    assert [row.state for row in jobs] == ["succeeded"] * NUM_JOBS
    for number, row in enumerate(jobs):
        assert job_result(row)["choices"][0]["token_ids"] == tokens_of(f"job {number}")
        assert (row.lease_until, row.owner, row.completion_tokens) == (None, "", NUM_TOKENS)
    batch.refresh_from_db()
    assert (batch.state, batch.num_completed, batch.num_failed) == ("completed", NUM_LINES, 0)
    assert (batch.lease_until, batch.error_file_id) == (None, "")
    written = contents(batch.output_file_id)
    assert [item["custom_id"] for item in written] == [f"r{number}" for number in range(NUM_LINES)]
    for number, item in enumerate(written):
        assert item["response"]["body"]["choices"][0]["token_ids"] == tokens_of(f"line {number}")
    assert BatchLine.objects.exclude(state="completed", lease_until=None).count() == 0
    assert BatchResult.objects.count() == BatchLine.objects.count() == NUM_LINES
    charged = Counter(dict(UsageRecord.objects.values_list("request_id", "completion_tokens")))
    assert sorted(charged.values()) == [NUM_TOKENS] * NUM_JOBS + [NUM_TOKENS * NUM_LINES]
    assert sum(UsageDay.objects.values_list("completion_tokens", flat=True)) == sum(charged.values())
    assert sum(UsageDay.objects.values_list("requests", flat=True)) == NUM_JOBS + NUM_LINES
    assert WebhookDelivery.objects.count() == 1
    assert JobChunk.objects.count() == 0
    files = {path.name for path in site_settings.BLAZR_FILES_DIR.rglob("*") if path.is_file()} - {".lock"}
    assert files == set(StoredFile.objects.values_list("sha256", flat=True))
    assert StoredFile.objects.count() == 2  # the input and the output


BEFORE = {"jobs.requeue": "job.started:kill:1", "lines.requeue": "lines.started:kill:1"}
"""What has to happen first, so that there is something to queue again."""


@pytest.mark.fault(
    "F03",
    provoked="death of a worker at each of 19 named points of claim, start, flush, finish, sweep, validation, "
    "rendering and file, at the first time that it gets there, and at the second one where there are several",
    holds="every job and line ends once, with the right tokens and one charge; one output file; one webhook message; "
    "no lease, chunk or file without a row is left",
)
@pytest.mark.parametrize(
    ("point", "nth"),
    [(point, nth) for point in sorted(POINTS.keys() - WEB_POINTS) for nth in ((1, 2) if point in SEVERAL else (1,))],
)
def test_f03_death_at_a_point_loses_and_doubles_nothing(model, point, nth):
    batch = submit_work()
    arm(",".join(filter(None, (BEFORE.get(point), f"{point}:kill:{nth}"))))
    deaths = 0
    while True:
        try:
            live(str(model.pk), MAX_TURNS)
            break
        except Death:
            deaths += 1
    assert deaths == (2 if point in BEFORE else 1)
    check_ledger(batch)
