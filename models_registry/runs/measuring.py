"""Measure the checkpoints of training runs as durable jobs: the held-out loss, and samples of the same prompts.

The child (``blazr_site.step_child``) loads a checkpoint once, and its result is stored in the step's row.
``checkpoint_jobs`` has what all jobs share: one runs at a time, and ends with the process that follows it. The next
watcher measures what isn't measured yet.
"""

from __future__ import annotations

from django.conf import settings
from django.db import DatabaseError
from django.db.models import F
from django.utils import timezone

from inference.errors import BlazrError, QueueFull
from inference.models.readable_rows import readable_rows
from models_registry.checkpoint_jobs import CheckpointJobs, Report, follow, source_of
from models_registry.job_process import JobProcess
from models_registry.models import Checkpoint, RunStep, StepMeasurement, TrainingRun
from models_registry.selectors import overrides_in_force
from models_registry.services import checkpoint_files_verify

CHILD = "blazr_site.step_child"
MAX_FAILURES = 2
"""Failed measurements of a step, after which it isn't tried again until somebody resumes the run."""


class StepMeasurements(CheckpointJobs[StepMeasurement]):
    """Jobs whose result is in the step's row."""

    model = StepMeasurement
    noun = "measurement of a step"
    verb = "measured a step"

    def work(self, row: StepMeasurement, report: Report) -> None:
        """Measure in a child, which is ended when its time is over; failures are counted, the server's end is none."""
        step = row.step
        try:
            result = self._measured(row, step.run, report)
        except BlazrError as error:
            RunStep.objects.filter(pk=step.pk, read=step.read).update(
                num_failures=F("num_failures") + 1, problem=error.message
            )
            raise
        RunStep.objects.filter(pk=step.pk, read=step.read).update(
            loss=result["loss"],
            num_tokens=result["num_tokens"],
            samples=result["samples"],
            problem=result["problem"],
            measured_at=timezone.now(),
        )
        self.finish(row)

    def _measured(self, row: StepMeasurement, run: TrainingRun, report: Report) -> dict:  # type: ignore[type-arg]
        source = source_of(row)
        checkpoint_files_verify(source)
        request = {
            "path": source.path,
            "overrides": overrides_in_force(source),
            "prompts": run.prompts,
            "max_tokens": run.max_tokens,
            "temperature": run.temperature,
            "seed": run.seed,
            "text": run.text,
            "loss_tokens": run.loss_tokens,
            "device": settings.BLAZR_DEVICE,
        }
        with JobProcess(CHILD, request) as child:
            result = follow(child, report, max_seconds=run.max_seconds)
        checkpoint_files_verify(source)  # the figures are of the files that were registered
        return result


STEP_MEASUREMENTS = StepMeasurements()


def next_step(run: TrainingRun | None = None) -> RunStep | None:
    """Return the first checkpoint of the watched runs, or of one, that is to be measured; None: all are."""
    steps = RunStep.objects.filter(
        run__state=TrainingRun.State.WATCHING,
        state=RunStep.State.REGISTERED,
        measured_at=None,
        num_failures__lt=MAX_FAILURES,
        checkpoint__state=Checkpoint.State.AVAILABLE,
    )
    if run is not None:
        steps = steps.filter(run=run)
    found = readable_rows(steps.select_related("checkpoint").defer("checkpoint__inspection"), 1)
    return found[0] if found else None


def measure_next(run: TrainingRun | None = None, *, wait: bool = False) -> StepMeasurement | None:
    """Start the measurement of the next checkpoint.

    Args:
        run: Of this run alone; None: of all.
        wait: Measure in this call; otherwise in a thread.

    Returns:
        None: There is nothing to measure, or another measurement runs, here or in another process.
    """
    step = next_step(run)
    if step is None or step.checkpoint is None:
        return None
    STEP_MEASUREMENTS.sweep()
    try:
        return STEP_MEASUREMENTS.create(step.checkpoint, None, wait=wait, step=step)
    except (QueueFull, DatabaseError):  # a checkpoint that was deleted meanwhile
        return None
