"""Numbers for people."""

from __future__ import annotations

import pytest

from inference.host.units import format_bytes, format_count


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 * 2**30, "3.0 GiB"), (5 * 2**40, "5.0 TiB")]
)
def test_format_bytes(value: int, text: str) -> None:
    assert format_bytes(value) == text


@pytest.mark.parametrize(("value", "text"), [(12, "12"), (1500, "1.5 k"), (123157248, "123.2 M"), (7e9, "7.0 B")])
def test_format_count(value: float, text: str) -> None:
    assert format_count(value) == text
