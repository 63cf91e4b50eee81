"""The price of a kilowatt-hour: none at first, one row, and what is refused."""

from __future__ import annotations

import pytest

from inference.errors import InvalidRequest
from inference.models import EnergyPrice
from inference.records.energy_price import cost, energy_price, energy_price_choose
from tests.inference.rows import damage

pytestmark = pytest.mark.django_db


def test_nothing_has_a_price_until_somebody_sets_one() -> None:
    assert energy_price().per_kwh is None and not EnergyPrice.objects.exists()
    assert str(energy_price()) == "no price"
    energy_price_choose(per_kwh=" 0,32 ", currency="EUR", author_name="edwin")
    found = energy_price()
    assert (found.per_kwh, found.currency, found.author_name, str(found)) == (0.32, "EUR", "edwin", "0.32 EUR per kWh")
    assert cost(3.6e6, found) == pytest.approx(0.32)
    assert cost(None, found) is None
    energy_price_choose(per_kwh="", currency="EUR", author_name="x" * 200)
    found = energy_price()
    assert (found.per_kwh, found.currency, len(found.author_name)) == (None, "", 150)
    assert cost(3.6e6, found) is None and EnergyPrice.objects.count() == 1


@pytest.mark.parametrize(
    ("per_kwh", "currency", "param"),
    [
        ("free", "EUR", "per_kwh"), ("-1", "EUR", "per_kwh"), ("nan", "EUR", "per_kwh"), ("inf", "EUR", "per_kwh"),
        ("1e9", "EUR", "per_kwh"), ("1" * 300, "EUR", "per_kwh"), ("0.3", "", "currency"),
        ("0.3", "x" * 9, "currency"), ("0.3", "E\x00R", "currency"),
    ],
)  # fmt: skip
def test_other_prices_are_refused(per_kwh: str, currency: str, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        energy_price_choose(per_kwh=per_kwh, currency=currency, author_name="edwin")
    assert caught.value.param == param and not EnergyPrice.objects.exists()


def test_a_damaged_price_is_none() -> None:
    energy_price_choose(per_kwh="0.3", currency="EUR", author_name="edwin")
    EnergyPrice.objects.update(per_kwh=-4.0)
    assert energy_price().per_kwh is None
    damage(EnergyPrice.objects.get(), "per_kwh")
    assert energy_price().per_kwh is None
    EnergyPrice.objects.update(per_kwh=4.0)
    damage(EnergyPrice.objects.get(), "updated_at", "2026-13-45 00:00:00")
    assert energy_price().per_kwh is None
