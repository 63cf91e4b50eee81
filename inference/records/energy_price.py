"""Read and set what a kilowatt-hour costs, and compute the cost of joules."""

from __future__ import annotations

import math
import re

from inference.errors import InvalidRequest, shown
from inference.models import EnergyPrice
from inference.models.readable_rows import readable_rows
from inference.records.energy_days import JOULES_PER_WH

ONLY_ROW = 1
MAX_PRICE = 1_000_000.0
MAX_CURRENCY_CHARS = 8
_THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+")
"""Either a thousand or one: nobody means three decimals of a price by it."""


def energy_price() -> EnergyPrice:
    """Return the price in force; one without an amount where nobody has set it, or where its row is damaged."""
    row = next(iter(readable_rows(EnergyPrice.objects.filter(pk=ONLY_ROW))), EnergyPrice(pk=ONLY_ROW))
    if not isinstance(row.per_kwh, float) or not 0 <= row.per_kwh <= MAX_PRICE:
        row.per_kwh = None
    return row


def energy_price_choose(*, per_kwh: str, currency: str, author_name: str) -> EnergyPrice:
    """Set the price of a kilowatt-hour, or that there is none.

    Args:
        per_kwh: The amount as it was typed, with a point or a comma; empty: no price.
        currency: How the currency is written behind amounts: ``EUR``, ``ct``.
        author_name: Who chose.

    Raises:
        InvalidRequest: One of them is none; the error names it.
    """
    amount = _amount(per_kwh.strip())
    unit = currency.strip()
    if amount is not None and not (0 < len(unit) <= MAX_CURRENCY_CHARS and unit.isprintable()):
        raise InvalidRequest(
            f"currency is {shown(unit)}; it must have 1 to {MAX_CURRENCY_CHARS} characters, such as EUR.",
            param="currency",
        )
    values = {"per_kwh": amount, "currency": "" if amount is None else unit, "author_name": author_name[:150]}
    row, _ = EnergyPrice.objects.update_or_create(pk=ONLY_ROW, defaults=values)
    return row


def cost(joules: float | None, price: EnergyPrice) -> float | None:
    """Return what so many joules cost; None: there is no price, or nothing was measured."""
    return None if joules is None or price.per_kwh is None else joules / (1000 * JOULES_PER_WH) * price.per_kwh


def _amount(text: str) -> float | None:
    if not text:
        return None
    try:
        if _THOUSANDS.fullmatch(text):
            raise ValueError(text)
        amount = float(text.replace(",", "."))
    except ValueError:
        amount = math.nan
    if not (len(text) <= 16 and 0 <= amount <= MAX_PRICE):
        raise InvalidRequest(
            f"per_kwh is {shown(text)}; it must be a number from 0 to {MAX_PRICE:,.0f} such as 0.30, or empty.",
            param="per_kwh",
        )
    return amount
