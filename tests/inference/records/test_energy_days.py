"""Energy by day: stored sums, and each caller's part of them."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.models import EnergyDay, UsageDay
from inference.records.energy_days import (
    GENERATED_WEIGHT,
    MAX_JOULES,
    EnergyKey,
    computed_tokens,
    divided,
    energy_add,
    energy_by_device,
    energy_divide,
    energy_measured,
    last_energy_day,
    measured_model,
)
from inference.values.states import DeviceEnergy

DAY = date(2026, 1, 2)


def key(model: str = "", device: str = "box/package-0", day: date = DAY) -> EnergyKey:
    return EnergyKey(day, device, "rapl", model)


def used(
    tenant: str, model: str = "tiny", *, prompt: int = 0, cached: int = 0, output: int = 0, day: date = DAY
) -> UsageDay:
    return UsageDay.objects.create(
        day=day,
        tenant=tenant,
        model=model,
        requests=1,
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=output,
    )


def parts(day: date = DAY) -> dict[tuple[str, str], float | None]:
    rows = UsageDay.objects.filter(day=day).values_list("tenant", "model", "joules")
    return {(tenant, model): joules for tenant, model, joules in rows}


def test_joules_are_added_to_their_day(db) -> None:
    assert last_energy_day() is None and energy_by_device() == [] and energy_measured(DAY, DAY) is None
    energy_add({key("tiny"): 5.0, key(): 2.0})
    energy_add({key("tiny"): 1.0, key("tiny", "box/package-1"): 4.0, key(day=DAY + timedelta(days=1)): 3.0})
    assert EnergyDay.objects.count() == 4
    assert energy_by_device() == [], "of devices that are long gone"
    assert energy_by_device(DAY) == [
        DeviceEnergy("box/package-0", "rapl", 11.0, 6.0),
        DeviceEnergy("box/package-1", "rapl", 4.0, 4.0),
    ]
    found = energy_measured(DAY, DAY)
    assert found is not None and (found.joules, found.work_joules, found.divided_joules) == (12.0, 10.0, 0.0)
    assert last_energy_day() == DAY + timedelta(days=1)


def test_a_days_work_is_divided_by_computed_tokens(db) -> None:
    used("a", prompt=100, cached=60)
    used("b", output=40)
    used("b", "tiny:sql", prompt=40)
    used("a", "other", prompt=1000)
    used("a", day=DAY + timedelta(days=1), prompt=7)
    energy_add({key("tiny"): 150.0, key("tiny", "box/package-1"): 90.0, key(): 1000.0})
    energy_divide(DAY, adapters={"tiny:sql"})
    one = 240.0 / (40 + GENERATED_WEIGHT * 40 + 40)
    assert parts() == {
        ("a", "tiny"): 40 * one,
        ("b", "tiny"): GENERATED_WEIGHT * 40 * one,
        ("b", "tiny:sql"): 40 * one,
        ("a", "other"): None,
    }
    assert parts(DAY + timedelta(days=1)) == {("a", "tiny"): None}
    found = energy_measured(DAY, DAY)
    assert found is not None and found.divided_joules == pytest.approx(found.work_joules) == pytest.approx(240)


def test_later_usage_and_energy_change_the_parts(db) -> None:
    used("a", prompt=10)
    energy_add({key("tiny"): 30.0})
    energy_divide(DAY)
    assert parts() == {("a", "tiny"): 30.0}
    used("b", prompt=20)
    energy_add({key("tiny"): 30.0})
    energy_divide(DAY)
    assert parts() == {("a", "tiny"): 20.0, ("b", "tiny"): 40.0}


def test_work_without_requests_belongs_to_nobody(db) -> None:
    used("a", "other", prompt=10)
    used("b", prompt=5, cached=5)
    energy_add({key("tiny"): 30.0})
    energy_divide(DAY)
    assert parts() == {("a", "other"): None, ("b", "tiny"): None}
    found = energy_measured(DAY, DAY)
    assert found is not None and found.work_joules - found.divided_joules == 30.0


def test_damaged_rows_count_nothing(db) -> None:
    used("a", prompt=10)
    broken = used("b", prompt=10)
    energy_add({key("tiny"): 30.0, key("huge"): 1.0})
    EnergyDay.objects.filter(model="huge").update(joules=10 * MAX_JOULES)
    UsageDay.objects.filter(pk=broken.pk).update(joules=-5.0)
    energy_divide(DAY)
    assert parts() == {("a", "tiny"): 15.0, ("b", "tiny"): 15.0}
    assert computed_tokens("x", 0, 1) == 0 and computed_tokens(5, 9, 0) == 0 and computed_tokens(5, -1, 0) == 0


def test_adapters_use_their_bases_energy() -> None:
    measured = {"tiny": 1.0, "a:b": 1.0}
    for name, model in (("tiny", "tiny"), ("tiny:sql", "tiny"), ("a:b", "a:b"), ("a:b:c", "a:b"), ("other", None),
                        ("a:c", None), (":x", None), ("", None)):  # fmt: skip
        assert measured_model(name, measured, is_adapter=True) == model
    assert measured_model("tiny:7b", measured, is_adapter=False) is None, "a checkpoint's own name, as those of Ollama"
    assert measured_model("a:b", measured, is_adapter=False) == "a:b"


def test_a_checkpoint_with_the_name_of_a_former_adapter_gives_the_parts_back(db) -> None:
    """They stayed beside those of the base's other callers, so that energy was counted twice."""
    used("a", prompt=10)
    used("a", "tiny:7b", prompt=10)
    energy_add({key("tiny"): 30.0})
    energy_divide(DAY, adapters={"tiny:7b"})
    assert parts() == {("a", "tiny"): 15.0, ("a", "tiny:7b"): 15.0}
    energy_divide(DAY, checkpoints={"tiny:7b"})
    assert parts() == {("a", "tiny"): 30.0, ("a", "tiny:7b"): None}


def test_what_was_deleted_is_divided_as_before(db) -> None:
    """The rows of a checkpoint ``tiny:7b`` got a part of what ``tiny`` had used as soon as it was deleted."""
    for model in ("tiny", "tiny:sql", "tiny:7b"):
        used("a", model, prompt=10)
    energy_add({key("tiny"): 30.0})
    for names in ({"adapters": {"tiny:sql"}, "checkpoints": {"tiny:7b"}}, {}):
        energy_divide(DAY, **names)
        assert parts() == {("a", "tiny"): 15.0, ("a", "tiny:sql"): 15.0, ("a", "tiny:7b"): None}


@given(joules=st.floats(0, 1e12), weights=st.dictionaries(st.integers(), st.integers(0, 2**50), max_size=40))
def test_the_parts_of_all_callers_are_the_whole(joules: float, weights: dict[int, int]) -> None:
    found = divided(joules, weights)
    assert sum(found.values()) == pytest.approx(joules if any(weights.values()) else 0.0)
    assert all(0 <= part <= joules * (1 + 1e-9) for part in found.values())


@pytest.mark.parametrize("seed", range(3))
def test_the_rows_of_all_keys_are_the_working_joules_of_the_day(db, seed: int) -> None:
    """Several devices, models with adapters and tenants at once."""
    import random

    draw = random.Random(seed)
    models = ["a", "b", "c"]
    energy_add({key(model, f"box/{device}"): draw.uniform(0, 1e5) for model in ["", *models] for device in range(3)})
    for tenant in range(20):
        for model in (*models, "a:x", "b:y"):
            used(f"key:{tenant}", model, prompt=draw.randrange(1, 9**9), output=draw.randrange(9**6))
    energy_divide(DAY, adapters={"a:x", "b:y"})
    found = energy_measured(DAY, DAY)
    assert found is not None
    assert sum(joules or 0.0 for joules in parts().values()) == pytest.approx(found.work_joules)
