"""Start, change, stop and forget the watching of training runs; ``watching`` looks at their directories."""

from __future__ import annotations

import hashlib
import math
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.db import IntegrityError, transaction

from inference.errors import Conflict, InvalidRequest, NotFound
from inference.models.readable_rows import readable_rows
from inference.values.memory_span import MAX_TOKENS as MAX_LOSS_TOKENS
from models_registry.aliases import alias_delete
from models_registry.default_text import DEFAULT_TEXT
from models_registry.models import Checkpoint, ModelAlias, RunStep, TrainingRun
from models_registry.names import check_name, suggest_name
from models_registry.runs.allowed import check_allowed
from models_registry.runs.steps import list_steps
from models_registry.services import checkpoint_delete, free_name
from models_registry.span_measurements import MAX_SECONDS, check_text

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser

State = TrainingRun.State

MAX_RUNS = 100
MAX_PROMPTS = 8
MAX_PROMPT_CHARS = 4000
MAX_SAMPLE_TOKENS = 512
MIN_LOSS_TOKENS = 2
MAX_TEMPERATURE = 2.0
MAX_SEED = (1 << 63) - 1
MAX_DIRECTORY_CHARS = 4000
DEFAULTS: Mapping[str, Any] = {
    "prompts": ["Once upon a time", "The capital of France is", "1, 2, 3, 4,"],
    "max_tokens": 48,
    "temperature": 0.7,
    "seed": 0,
    "text": DEFAULT_TEXT,
    "loss_tokens": 1024,
    "max_seconds": 600,
}
"""How checkpoints are measured where nobody says otherwise."""
_RUN_COLUMNS = ("name", "state", "reason", *DEFAULTS)
_STEP_COLUMNS = ("name", "state", "reason", "checkpoint_id", "revision", "loss", "problem", "measured_at")
"""What changes of a run and a checkpoint; the samples change with ``measured_at``."""


def run_get(run_id: uuid.UUID) -> TrainingRun:
    """Return a run.

    Raises:
        NotFound: There is no such run.
    """
    rows = readable_rows(TrainingRun.objects.filter(pk=run_id), 1)
    if not rows:
        raise NotFound(f"there is no training run {run_id}.", param="run")
    return rows[0]


def run_list() -> list[TrainingRun]:
    """Return all runs, newest first."""
    return readable_rows(TrainingRun.objects.all())


def run_steps(run: TrainingRun) -> list[RunStep]:
    """Return the checkpoints of a run in the order of training."""
    return readable_rows(run.steps.select_related("checkpoint").defer("checkpoint__inspection"))


def run_version(run: TrainingRun) -> str:
    """Return what changes when a run or one of its checkpoints does, without a read of the samples."""
    steps = readable_rows(run.steps.defer("samples"))
    shown = [
        [getattr(run, name) for name in _RUN_COLUMNS],
        *([getattr(s, name) for name in _STEP_COLUMNS] for s in steps),
    ]
    return hashlib.sha256(repr(shown).encode()).hexdigest()


def run_create(
    *,
    directory: str | Path,
    name: str = "",
    owner: AbstractBaseUser | None = None,
    by_operator: bool = False,
    **options: Any,
) -> TrainingRun:
    """Start to watch a directory; nothing is read of it but its listing.

    Args:
        directory: Where the trainer writes; it may be empty yet.
        name: The alias of its checkpoints; empty: the directory's name, numbered if that is taken.
        owner: Who starts it.
        by_operator: Whether the command line asks, which may name any directory, as ``blazr serve --model`` may.
        options: Of ``DEFAULTS``.

    Raises:
        InvalidRequest: The directory, the name or an option is wrong.
        PermissionRefused: The settings don't allow the directory.
        Conflict: It is watched already, or the name is a checkpoint's or another run's.
    """
    place = _checked_directory(directory, by_operator=by_operator)
    values = {**DEFAULTS, **check_options(options)}
    known = TrainingRun.objects.filter(directory=str(place)).first()
    if known is not None:
        raise Conflict(f"{place} is watched already, as {known.name!r}.", param="directory")
    if TrainingRun.objects.count() >= MAX_RUNS:
        raise Conflict(f"{MAX_RUNS} runs are watched, the most that are kept; forget one.")
    if name:
        check_name(name, param="name")
        if Checkpoint.objects.filter(served_model_name=name).exists():
            raise Conflict(f"{name!r} is the name of a checkpoint; choose another one for the run.", param="name")
        if ModelAlias.objects.filter(name=name, demands_passport=True).exists():
            raise Conflict(
                f"the alias {name!r} demands a passport; a run's alias means each checkpoint that it completes. Choose "
                "another name for the run.",
                param="name",
            )
    else:
        name = free_name(suggest_name(place.name))
    try:
        with transaction.atomic():
            return TrainingRun.objects.create(
                name=name, directory=str(place), owner_id=getattr(owner, "pk", None), **values
            )
    except IntegrityError:
        raise Conflict(f"the name {name!r} is another run's; choose a different one.", param="name") from None


def run_update(run: TrainingRun, **options: Any) -> None:
    """Change how the checkpoints are measured from now on; measured ones keep their figures.

    Raises:
        InvalidRequest: An option is wrong.
    """
    values = check_options(options)
    for option, value in values.items():
        setattr(run, option, value)
    if values:
        run.save(update_fields=[*values])


def run_stop(run: TrainingRun, username: str = "") -> None:
    """Look at the directory no more; its checkpoints stay as they are."""
    run.state, run.reason = State.STOPPED, f"stopped by {username}" if username else "stopped"
    run.save(update_fields=["state", "reason"])


def run_resume(run: TrainingRun, *, by_operator: bool = False) -> None:
    """Look at the directory again, and measure what could not be measured before.

    Raises:
        InvalidRequest: The directory isn't there.
        PermissionRefused: The settings don't allow it.
    """
    _checked_directory(run.directory, by_operator=by_operator)
    run.state, run.reason = State.WATCHING, ""
    run.save(update_fields=["state", "reason"])
    run.steps.filter(measured_at=None).update(num_failures=0, problem="")


def run_models(run: TrainingRun) -> list[Checkpoint]:
    """Return the run's checkpoints that no other alias means and no other checkpoint borrows from."""
    used = ModelAlias.objects.exclude(name=run.name).exclude(current=None).values_list("current__checkpoint", flat=True)
    keys = run.steps.exclude(checkpoint=None).values_list("checkpoint", flat=True)
    rows = Checkpoint.objects.filter(pk__in=list(keys), borrowers=None).exclude(pk__in=[key for key in used if key])
    return readable_rows(rows.defer("inspection", "file_stamps"))


def run_delete(run: TrainingRun, *, with_models: bool = False) -> None:
    """Forget a run with its figures and samples; the trainer's files stay in any case.

    Args:
        with_models: Delete its alias and those of its checkpoints from the registry that nothing else uses.
    """
    models = run_models(run) if with_models else []
    with transaction.atomic():
        run.delete()
        if with_models:
            alias_delete(name=run.name)
            for checkpoint in models:
                with suppress(Conflict):  # an alias means it since, or another checkpoint has its tokenizer
                    checkpoint_delete(checkpoint=checkpoint)


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that aren't None.

    Raises:
        InvalidRequest: One is unknown or out of its limits.
    """
    values = {name: value for name, value in options.items() if value is not None}
    for name in values:
        if name not in DEFAULTS:
            raise InvalidRequest(f"{name[:40]} is not an option of a run.", param=name[:40])
    if "prompts" in values:
        values["prompts"] = _checked_prompts(values["prompts"])
    if "text" in values:
        check_text(values["text"])
    for name, least, most in (
        ("max_tokens", 1, MAX_SAMPLE_TOKENS),
        ("loss_tokens", MIN_LOSS_TOKENS, MAX_LOSS_TOKENS),
        ("max_seconds", 1, MAX_SECONDS),
        ("seed", 0, MAX_SEED),
        ("temperature", 0.0, MAX_TEMPERATURE),
    ):
        value = values.get(name, least)
        if not (math.isfinite(value) and least <= value <= most):
            raise InvalidRequest(f"{name} is {value}; it must be {least:g} to {most}.", param=name)
    return values


def _checked_prompts(prompts: Sequence[str]) -> list[str]:
    if not 1 <= len(prompts) <= MAX_PROMPTS:
        raise InvalidRequest(f"there are {len(prompts)} prompts; give 1 to {MAX_PROMPTS}.", param="prompts")
    for prompt in prompts:
        check_text(prompt, name="prompts")
        if len(prompt) > MAX_PROMPT_CHARS:
            raise InvalidRequest(
                f"a prompt has {len(prompt)} characters; at most {MAX_PROMPT_CHARS} are taken.", param="prompts"
            )
    return list(prompts)


def _checked_directory(directory: str | Path, *, by_operator: bool) -> Path:
    if "\0" in str(directory) or len(str(directory)) > MAX_DIRECTORY_CHARS:
        raise InvalidRequest("directory is no path of a directory.", param="directory")
    try:
        place = Path(directory).expanduser().resolve()
        if not by_operator:
            check_allowed(place)
        list_steps(place)
    except (OSError, RuntimeError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidRequest(
            f"{str(directory)[:300]!r} can't be watched: {reason}; name the directory that the trainer writes to.",
            param="directory",
        ) from None
    return place
