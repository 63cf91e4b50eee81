"""Look at the directories of training runs, and register what is complete there.

A look changes rows only, so a watcher may be killed at any moment: the next one goes on from the rows. Several may look
at the same time; a checkpoint is registered in one transaction with its step's row, which only one of them changes.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from django.db import transaction
from django.utils import timezone

from inference.errors import BlazrError, Conflict, InvalidRequest, Unavailable
from inference.models.readable_rows import readable_rows
from models_registry.aliases import alias_promote
from models_registry.detection.child import inspect_in_child
from models_registry.models import MAX_NAME_CHARS, AliasRevision, Checkpoint, RunStep, TrainingRun
from models_registry.runs.steps import Look, StepFiles, list_steps, look_at, read_digest
from models_registry.selectors import overrides_in_force
from models_registry.services import checkpoint_register, free_name

if TYPE_CHECKING:
    from django.db.models import QuerySet

State, StepState = TrainingRun.State, RunStep.State

STILL_FOR = timedelta(seconds=2)
"""Time between two equal looks at a complete checkpoint."""
NEXT_LOOK = "the next look decides."
"""End of a reason that the next look may take away."""
NOT_REGISTERED = "not registered: "
"""Start of a reason that the registration gave, not the files; the next look tries again."""
LOOK_EVERY_S = 3.0
"""Seconds between looks at a directory."""


def run_look(run: TrainingRun) -> list[RunStep]:
    """Look at a run's directory once; returns the checkpoints that were registered.

    A directory that can't be listed makes the run ``missing``, with a reason that says what to do, until it can.
    """
    directory = Path(run.directory)
    try:
        found = list_steps(directory)
    except OSError as error:
        _record_state(
            run,
            State.MISSING,
            f"{directory} can't be read ({(error.strerror or str(error)).lower()}); restore it and watching goes on "
            "by itself, or stop it. Registered checkpoints need their files to be served.",
        )
        return []
    except InvalidRequest as error:
        _record_state(run, State.MISSING, error.message)
        return []
    if not _record_state(run, State.WATCHING, ""):
        return []  # somebody has stopped it
    rows = {row.name: row for row in readable_rows(run.steps.all())}
    gone = rows.keys() - {step.name for step in found}
    run.steps.filter(name__in=gone, checkpoint=None).delete()  # nothing was registered of them
    registered = []
    for step in found:
        row = rows.get(step.name)
        if row is None:
            _record_first_look(run, step, look_at(step, directory))
            continue
        is_open = row.state == StepState.INCOMPLETE or read_digest(step) != row.read
        if is_open and _look_again(run, step, row, look_at(step, directory)):
            registered.append(RunStep.objects.get(pk=row.pk))
    return registered


def _record_state(run: TrainingRun, state: str, reason: str) -> bool:
    """Store what a look found of the directory; False: the run was stopped or forgotten meanwhile."""
    run.looked_at = timezone.now()
    changed = (
        TrainingRun.objects.filter(pk=run.pk)
        .exclude(state=State.STOPPED)
        .update(state=state, reason=reason, looked_at=run.looked_at)
    )
    if changed:
        run.state, run.reason = state, reason
    return bool(changed)


def _record_first_look(run: TrainingRun, step: StepFiles, look: Look) -> None:
    RunStep.objects.get_or_create(
        run=run,
        name=step.name,
        defaults={
            "number": step.number,
            "everything": look.everything,
            "seen_at": timezone.now(),
            "reason": look.problem or f"it was seen once; {NEXT_LOOK}",
        },
    )


def _look_again(run: TrainingRun, step: StepFiles, row: RunStep, look: Look) -> bool:
    """Compare a look with the one before; returns whether the checkpoint was registered."""
    now = timezone.now()
    if look.everything != row.everything or now < row.seen_at:  # the clock was set back
        reason = look.problem or f"its files are being written; {NEXT_LOOK}"
        _same(row).update(everything=look.everything, seen_at=now, reason=reason)
        return False
    if look.problem:
        if look.problem != row.reason:
            _same(row).update(reason=look.problem)
        return False
    if now - row.seen_at < STILL_FOR:
        return False
    try:
        return _register(run, step, row, look)
    except (Unavailable, Conflict) as error:  # too many checks of templates, a name that was taken: the next look
        _same(row).update(reason=NOT_REGISTERED + error.message)
        return False
    except BlazrError as error:
        _same(row).update(state=StepState.REFUSED, reason=error.message, read=look.read)
        return False


def _same(row: RunStep) -> QuerySet[RunStep]:
    """The row, unless another watcher has changed it since it was read."""
    return RunStep.objects.filter(pk=row.pk, everything=row.everything, seen_at=row.seen_at, read=row.read)


def _register(run: TrainingRun, step: StepFiles, row: RunStep, look: Look) -> bool:
    """Register a complete checkpoint as the next revision of the run's alias.

    Returns:
        False: Its files changed meanwhile, or another watcher was faster.

    Raises:
        BlazrError: The inspection refuses it.
    """
    known = Checkpoint.objects.filter(path=str(step.path)).first()
    overrides = overrides_in_force(known) if known else _overrides_of_the_last(run)
    inspection = inspect_in_child(step.path, overrides)
    if look_at(step, Path(run.directory)) != look:
        return False
    name = None if known else free_name(f"{run.name[: MAX_NAME_CHARS - len(step.label) - 1]}-{step.label}")
    with transaction.atomic():
        changed = _same(row).update(
            state=StepState.REGISTERED, reason="", read=look.read, loss=None, num_tokens=0, samples=[],
            measured_at=None, num_failures=0, problem="",
        )  # fmt: skip
        if not changed:
            return False
        checkpoint = checkpoint_register(
            path=step.path,
            served_model_name=name,
            origin=f"{step.label.replace('-', ' ')} of the run {run.name}",
            overrides=overrides,
            inspect=lambda *_, **__: inspection,  # inspected outside of the transaction, because it is slow
        )
        RunStep.objects.filter(pk=row.pk).update(checkpoint=checkpoint, revision=_revision(run, checkpoint))
    return True


def _overrides_of_the_last(run: TrainingRun) -> dict[str, object]:
    """Return the facts that a person has set on the run's last checkpoint: they hold for its next ones."""
    last = run.steps.exclude(checkpoint=None).order_by("-revision").select_related("checkpoint").first()
    return {} if last is None or last.checkpoint is None else overrides_in_force(last.checkpoint)


def _revision(run: TrainingRun, checkpoint: Checkpoint) -> int:
    """Return the revision of a checkpoint, a new one unless it has one: its files were written again."""
    known = AliasRevision.objects.filter(alias__name=run.name, checkpoint=checkpoint).first()
    return (known or alias_promote(name=run.name, checkpoint=checkpoint, author_name="watch")).number
