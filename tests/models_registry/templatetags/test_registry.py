"""Numbers, moments and values as the pages show them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from models_registry.templatetags import registry


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.25, "250 ms"), (2.34, "2.3 s"), (42, "42 s"), (75, "1 min 15 s"), (5400, "1.5 h")]
)
def test_durations(seconds: float, text: str) -> None:
    assert registry.duration(seconds) == text


def test_moments_are_elements_with_the_exact_time() -> None:
    at = datetime(2026, 11, 27, 13, 2, 5, tzinfo=UTC)
    element = '<time datetime="2026-11-27T13:02:05+00:00">2026-11-27 13:02 UTC</time>'
    assert registry.moment(at) == registry.moment(at.timestamp()) == element
    assert registry.moment(None) == "–"
    assert registry.parsed("2026-11-27T13:02:05+00:00") == at


def test_numbers_of_attributes_keep_their_digits() -> None:
    assert registry.unlocalised(3_221_225_472) == "3221225472"
    assert registry.unlocalised(0.25) == "0.25"


def test_other_filters() -> None:
    assert registry.grouped(131072) == "131,072"
    assert registry.at_most(9, 4) == 4
    assert registry.words("a b") == ["a", "b"]
    assert (registry.json_text("a"), registry.json_text([1])) == ("a", "[1]")
    assert registry.scientific(0.0123) == "1.23e-02"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0 Wh"), (0.0123, "12.3 mWh"), (0.9994, "999 mWh"), (1, "1 Wh"), (12.34, "12.3 Wh"),
     (999.4, "999 Wh"), (4500, "4.5 kWh"), (5e6, "5 MWh")],
)  # fmt: skip
def test_energy(value: float | None, text: str) -> None:
    assert registry.watt_hours(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0.00"), (0.3, "0.30"), (1234.5, "1,234.50"), (0.06, "0.060"), (0.00123, "0.0012"),
     (1e-12, "0.000000000")],
)  # fmt: skip
def test_amounts_have_two_digits_that_say_something(value: float | None, text: str) -> None:
    assert registry.money(value) == text
