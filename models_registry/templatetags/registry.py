"""Format numbers and JSON values for the pages."""

from __future__ import annotations

import json
from typing import Any

from django import template

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
    """Return a coordinate of a drawing, with a point whatever the language is."""
    return f"{number:g}"


@register.filter
def scientific(number: float) -> str:
    """Return a small number in three digits: 0.0123 -> "1.23e-02"."""
    return f"{number:.2e}"


@register.filter
def four_digits(number: float) -> str:
    """Return a loss as people compare them: 2.34567 -> "2.3457", 123456.0 -> "1.235e+05"."""
    return f"{number:.4f}" if abs(number) < 1000 else f"{number:.3e}"


@register.filter
def json_text(value: Any) -> str:
    """Return a fact's value as text: strings without quotes, other values as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
