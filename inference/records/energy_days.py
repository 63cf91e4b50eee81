"""Store the energy that devices have used by day and model, and estimate each caller's part of it.

The estimate divides what a model's devices used on a day while the model had work, by the tokens that were computed for
each caller. No counter reports more than that: a step is computed for requests of several callers at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, NamedTuple

from django.db import transaction
from django.db.models import F, Max, Q, Sum
from django.utils import timezone

from inference.models import EnergyDay, UsageDay
from inference.values.states import DeviceEnergy

GENERATED_WEIGHT = 4
"""A generated token counts as so many computed tokens of a prompt. In docs/performance.md a prompt's token is computed
17 times as fast as a generated one of a single sequence, and 2 to 4 times as fast as those of 32 sequences at once."""
IDLE = ""
"""The model of what was used while no model had work."""
JOULES_PER_WH = 3600.0
MAX_JOULES = 1e15
"""More is no measurement but a damaged row."""
RECENT = timedelta(days=7)
_BATCH = 500


class EnergyKey(NamedTuple):
    """What energy is summed by."""

    day: date
    device: str
    source: str
    model: str


def energy_add(sums: Mapping[EnergyKey, float]) -> None:
    """Add joules to their days, all or nothing."""
    ordered = sorted(sums)  # so that two writers don't deadlock
    with transaction.atomic():
        EnergyDay.objects.bulk_create((EnergyDay(**key._asdict()) for key in ordered), ignore_conflicts=True)
        for key in ordered:
            EnergyDay.objects.filter(**key._asdict()).update(joules=F("joules") + sums[key])


def energy_by_device(since: date | None = None) -> list[DeviceEnergy]:
    """Return what each device has used over all days, of those devices that were measured on that day or later.

    Args:
        since: The day; None: a week ago.
    """
    recent = EnergyDay.objects.filter(day__gte=since or timezone.now().date() - RECENT).values("device")
    rows = (
        _sound(EnergyDay.objects.filter(device__in=recent))
        .order_by()
        .values("device", "source")
        .annotate(total=Sum("joules"), work=Sum("joules", filter=~Q(model=IDLE)))
    )
    return [
        DeviceEnergy(row["device"], row["source"], row["total"], row["work"] or 0.0)
        for row in sorted(rows, key=lambda row: (row["device"], row["source"]))
    ]


@dataclass(frozen=True, slots=True)
class MeasuredEnergy:
    """What was counted in a span of days.

    Attributes:
        joules: By all devices.
        work_joules: Of it, while models had work.
        divided_joules: Of that, what the estimates of all callers sum up to. The rest belongs to no request yet.
    """

    joules: float
    work_joules: float
    divided_joules: float


def energy_measured(first: date, last: date) -> MeasuredEnergy | None:
    """Return what was counted from ``first`` to ``last``, both included; None: nothing was."""
    days = _sound(EnergyDay.objects.filter(day__gte=first, day__lte=last))
    sums = days.order_by().aggregate(total=Sum("joules"), work=Sum("joules", filter=~Q(model=IDLE)))
    if sums["total"] is None:
        return None
    divided = _sound(UsageDay.objects.filter(day__gte=first, day__lte=last)).aggregate(total=Sum("joules"))["total"]
    return MeasuredEnergy(sums["total"], sums["work"] or 0.0, divided or 0.0)


def last_energy_day() -> date | None:
    """Return the last day on which anything was counted."""
    found = EnergyDay.objects.aggregate(last=Max("day"))["last"]
    return found if isinstance(found, date) else None


def energy_divide(day: date, *, adapters: Collection[str] = (), checkpoints: Collection[str] = ()) -> None:
    """Write each caller's part of a day's energy to its rows of usage; rows that others change now follow later.

    Args:
        adapters: Full names of adapters. One that was deleted is known by the part that its rows have already.
        checkpoints: Names of checkpoints that have a colon, and so look like an adapter's.
    """
    rows = _sound(EnergyDay.objects.filter(day=day)).exclude(model=IDLE).order_by()
    joules = {str(model): float(total) for model, total in rows.values_list("model").annotate(total=Sum("joules"))}
    if not joules:
        return
    columns = ("pk", "model", "joules", "prompt_tokens", "cached_tokens", "completion_tokens")
    weights: dict[str, dict[int, int]] = {}
    parts: dict[int, float | None] = {}
    for pk, model, part, *tokens in UsageDay.objects.filter(day=day).order_by("pk").values_list(*columns):
        is_adapter = model not in checkpoints and (model in adapters or part is not None)
        name = measured_model(str(model), joules, is_adapter=is_adapter)
        if name is not None:
            weights.setdefault(name, {})[pk] = computed_tokens(*tokens)
        elif part is not None:
            parts[pk] = None
    for name, own in weights.items():
        parts |= divided(joules[name], own)
    keys = sorted(parts)
    for begin in range(0, len(keys), _BATCH):
        _write(keys[begin : begin + _BATCH], parts)


def _write(keys: Sequence[int], parts: Mapping[int, float | None]) -> None:
    with transaction.atomic():
        # The writer of usage holds several rows at once, in an order of its own: waiting for them could deadlock.
        free = UsageDay.objects.filter(pk__in=keys).select_for_update(skip_locked=True).only("pk", "joules")
        changed = [row for row in free if row.joules != parts[row.pk]]
        for row in changed:
            row.joules = parts[row.pk]
        UsageDay.objects.bulk_update(changed, ["joules"], batch_size=_BATCH)


def computed_tokens(prompt: Any, cached: Any, completion: Any) -> int:
    """Return the tokens that were computed, generated ones by their weight; 0 for a damaged row."""
    if not all(isinstance(value, int) and value >= 0 for value in (prompt, cached, completion)):
        return 0
    return max(0, int(prompt) - int(cached)) + GENERATED_WEIGHT * int(completion)


def divided(joules: float, weights: Mapping[int, int]) -> dict[int, float]:
    """Return each one's part of ``joules``, by weight; nothing if all weights are 0."""
    total = sum(weights.values())
    return {key: joules * (weight / total) for key, weight in weights.items()} if total else {}


def measured_model(name: str, measured: Collection[str], *, is_adapter: bool) -> str | None:
    """Return the model whose energy the requests of ``name`` use: itself, or the base of an adapter ``BASE:NAME``.

    Args:
        is_adapter: Whether the name is an adapter's. A checkpoint may be called so too, as ``llama:7b``.

    Returns:
        None: Nothing was measured of it.
    """
    if name in measured:
        return name
    base = name.rpartition(":")[0] if is_adapter else ""
    return base if base and base in measured else None


def _sound(rows: Any) -> Any:
    return rows.filter(joules__gte=0, joules__lt=MAX_JOULES)
