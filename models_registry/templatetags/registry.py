"""Format numbers and JSON values for the pages."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from inference.host.units import format_bytes, format_count

register = template.Library()

register.filter("short_bytes", format_bytes)
register.filter("short_count", format_count)


@register.filter
def grouped(number: int) -> str:
    """Group digits: 131072 -> "131,072"."""
    return f"{number:,}"


@register.filter
def at_most(number: int, limit: int) -> int:
    return min(number, limit)


@register.filter
def unlocalised(number: float) -> str:
    """Return a number for an attribute: whole ones with all digits, others with a point whatever the language is."""
    return str(number) if isinstance(number, int) else f"{number:g}"


@register.filter
def scientific(number: float) -> str:
    """Return a small number in three digits: 0.0123 -> "1.23e-02"."""
    return f"{number:.2e}"


@register.filter
def four_digits(number: float) -> str:
    """Return a loss as people compare them: 2.34567 -> "2.3457", 123456.0 -> "1.235e+05"."""
    return f"{number:.4f}" if abs(number) < 1000 else f"{number:.3e}"


@register.filter
def significant(number: float | None) -> str:
    """Return a number in four digits: 0.0123456 -> "0.01235"; None, which no value has, -> "–"."""
    return "–" if number is None else f"{number:.4g}"


@register.filter
def json_text(value: Any) -> str:
    """Return a fact's value as text: strings without quotes, other values as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@register.filter
def duration(seconds: float) -> str:
    """Return a time span in one or two units: 0.25 -> "250 ms", 75 -> "1 min 15 s"."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60} s"
    return f"{seconds / 3600:.1f} h"


@register.filter
def seconds(value: float) -> str:
    """Return a latency in three digits: 0.0123 -> "12.3 ms", 75 -> "1 min 15 s"."""
    if not value:
        return "0"
    return f"{value * 1000:.3g} ms" if value < 0.9995 else duration(value)


@register.filter
def number(value: float) -> str:
    """Return a rate or a mean in three digits: 0.25 -> "0.25", 12345.0 -> "12.3k"."""
    return f"{value:.3g}" if value < 999.5 else format_count(value)


@register.filter
def watt_hours(value: float | None) -> str:
    """Return an energy in watt-hours in three digits: 0.0123 -> "12.3 mWh", 4500 -> "4.5 kWh", None -> "–"."""
    if value is None:
        return "–"
    if 0 < value < 0.9995:
        return f"{value * 1000:.3g} mWh"
    power = 0 if value < 999.5 else 1 if value < 999_500 else 2
    return f"{number(value / 1000**power)} {('Wh', 'kWh', 'MWh')[power]}"


@register.filter
def money(value: float | None) -> str:
    """Return an amount with two places, more if it is small: 1234.5 -> "1,234.50", 0.00123 -> "0.0012", None -> "–"."""
    if value is None:
        return "–"
    places = 2 if value >= 0.1 or value <= 0 else min(9, 1 - math.floor(math.log10(value)))
    return f"{value:,.{places}f}"


@register.filter
def moment(value: Any) -> SafeString:
    """Return a moment (a datetime, or seconds since 1970) as UTC, which scripts replace by the reader's own time."""
    if value is None:
        return SafeString("–")
    at = value if isinstance(value, datetime) else datetime.fromtimestamp(value, UTC)
    return format_html('<time datetime="{}">{} UTC</time>', at.isoformat(), at.strftime("%Y-%m-%d %H:%M"))


@register.filter
def parsed(text: str) -> datetime:
    """Return the moment of an ISO 8601 text, as serializers write it."""
    return datetime.fromisoformat(text)


@register.filter
def words(text: str) -> list[str]:
    """Split a text into its words, for loops in templates."""
    return text.split()
