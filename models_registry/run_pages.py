"""Serve the pages of training runs: the list, and a run with its curve, checkpoints and samples."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inference.models.readable_rows import readable_rows
from inference.values.memory_span import MAX_TOKENS
from models_registry.aliases import alias_names
from models_registry.api.run_views import run_state
from models_registry.models import ModelAlias, RunStep, TrainingRun
from models_registry.runs import services
from models_registry.runs.allowed import allowed_directories, is_allowed
from models_registry.runs.loss_curve import draw_losses
from models_registry.span_measurements import MAX_SECONDS
from models_registry.views import StaffPage

MAX_SHOWN_SAMPLES = 60
"""Checkpoints whose samples stand side by side: of more, as many evenly, with the first and the last."""

LIMITS = {
    "prompts": services.MAX_PROMPTS,
    "max_tokens": services.MAX_SAMPLE_TOKENS,
    "loss_tokens": MAX_TOKENS,
    "max_seconds": MAX_SECONDS,
}
"""The most that the options of a run may say."""


class RunsPage(StaffPage):
    """All training runs."""

    template_name = "registry/runs.html"
    section = "runs"
    permission_required = "models_registry.view_checkpoint"

    def page_context(self, **kwargs: Any) -> dict[str, Any]:
        """Return the runs, and the directories that may be watched."""
        rows = []
        for run in services.run_list():
            # Without the samples and the models: the list is drawn anew every five seconds.
            steps = readable_rows(run.steps.defer("samples"))
            losses = [step for step in steps if step.loss is not None]
            rows.append(
                {
                    "run": run,
                    "num_registered": sum(step.revision is not None for step in steps),
                    "newest": steps[-1] if steps else None,
                    "last_loss": losses[-1] if losses else None,
                }
            )
        return {
            "rows": rows,
            "allowed": [str(place) for place in allowed_directories()],
            "defaults": services.DEFAULTS,
            "limits": LIMITS,
        }


class RunPage(StaffPage):
    """One training run."""

    template_name = "registry/run.html"
    section = "runs"
    permission_required = "models_registry.view_checkpoint"

    def page_context(self, **kwargs: Any) -> dict[str, Any]:
        """Return the run, its drawing, and which aliases mean its checkpoints."""
        run_id: uuid.UUID = kwargs["run_id"]
        run = services.run_get(run_id)
        state = run_state(run)  # before the rest: what changes meanwhile is drawn again
        steps = services.run_steps(run)
        aliases = _aliases_by_checkpoint(steps)
        return {
            "run": run,
            "detail": {"id": str(run.pk), **state},
            "is_allowed": is_allowed(Path(run.directory)),
            "curve": draw_losses(steps),
            "steps": [{"row": step, "aliases": aliases.get(step.checkpoint_id, [])} for step in reversed(steps)],
            "num_measured": sum(step.measured_at is not None for step in steps),
            "prompts": samples_by_prompt(run, steps),
            "alias_names": alias_names(),
            "limits": LIMITS,
        }


def samples_by_prompt(run: TrainingRun, steps: Sequence[RunStep]) -> list[dict[str, Any]]:
    """Return the prompts with what each checkpoint made of them, in the order of training.

    Prompts that were changed since some checkpoints were measured are there, too, behind those of the run.
    """
    shown = evenly([step for step in steps if step.shown_samples], MAX_SHOWN_SAMPLES)
    prompts = dict.fromkeys(run.prompts)
    prompts |= dict.fromkeys(sample["prompt"] for step in shown for sample in step.shown_samples)
    found = []
    for prompt in prompts:
        samples = [
            {"step": step, **sample} for step in shown for sample in step.shown_samples if sample["prompt"] == prompt
        ]
        if samples:
            found.append({"prompt": prompt, "samples": samples})
    return found


def evenly(steps: Sequence[RunStep], most: int) -> list[RunStep]:
    """Return at most so many of the steps, evenly over all, with the first and the last."""
    if len(steps) <= most:
        return list(steps)
    return [steps[round(number * (len(steps) - 1) / (most - 1))] for number in range(most)]


def _aliases_by_checkpoint(steps: Sequence[RunStep]) -> dict[Any, list[str]]:
    keys = [step.checkpoint_id for step in steps if step.checkpoint_id is not None]
    found: dict[Any, list[str]] = {}
    rows = ModelAlias.objects.filter(current__checkpoint__in=keys, current__adapter_name="")
    for name, key in rows.values_list("name", "current__checkpoint"):
        found.setdefault(key, []).append(name)
    return found
