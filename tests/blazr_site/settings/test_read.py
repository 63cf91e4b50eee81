"""Readers of settings: values of all kinds from each source, and how wrong ones are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from blazr_site.settings import read

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def known_variables():
    """Variables that a test declares are forgotten again."""
    before = dict(read.KNOWN)
    yield
    read.KNOWN.clear()
    read.KNOWN.update(before)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [("1048576", 1048576), ("8GiB", 8 << 30), ("8g", 8 << 30), ("500MB", 500_000_000), ("1.5 KiB", 1536)],
)
def test_sizes_with_units(monkeypatch, value, wanted):
    monkeypatch.setenv("BLAZR_X", value)
    assert read.size_bytes("BLAZR_X", None) == wanted


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (lambda: read.size_bytes("BLAZR_X", 0), "lots"),
        (lambda: read.size_bytes("BLAZR_X", 0), "-1"),
        (lambda: read.size_bytes("BLAZR_X", 0), "9" * 5000),
        (lambda: read.size_bytes("BLAZR_X", 0, low=1 << 20), "1KiB"),
        (lambda: read.integer("BLAZR_X", 0, low=0, high=9), "10"),
        (lambda: read.integer("BLAZR_X", 0, low=0, high=9), "1.5"),
        (lambda: read.flag("BLAZR_X", False), "maybe"),
        (lambda: read.text("BLAZR_X", choices=("a", "b")), "c"),
    ],
)
def test_bad_value_is_refused_by_name(monkeypatch, read, value):
    monkeypatch.setenv("BLAZR_X", value)
    with pytest.raises(ImproperlyConfigured, match="BLAZR_X is"):
        read()


def test_empty_variable_counts_as_unset(monkeypatch):
    monkeypatch.setenv("BLAZR_X", "")
    assert read.integer("BLAZR_X", 7, low=0, high=9) == 7
    assert read.flag("BLAZR_X", True) is True


def test_the_default_of_a_size_is_exact(monkeypatch):
    monkeypatch.setenv("BLAZR_X", str((1 << 60) + 1))
    assert read.size_bytes("BLAZR_X", None) == (1 << 60) + 1


def test_named_numbers(monkeypatch):
    parsers = {"a": lambda value: read.parse_integer(value, 1, 9), "b": read.parse_size}
    assert read.pairs("BLAZR_X", parsers, kind="a=N,b=N") == {}
    monkeypatch.setenv("BLAZR_X", "a=3, b=1KiB")
    assert read.pairs("BLAZR_X", parsers, kind="a=N,b=N") == {"a": 3, "b": 1024}
    for wrong, reason in (("a=10", "a=N with N a whole number from 1 to 9"), ("c=1", "of the form a=NUMBER,b=NUMBER")):
        monkeypatch.setenv("BLAZR_X", wrong)
        with pytest.raises(ImproperlyConfigured, match=reason):
            read.pairs("BLAZR_X", parsers, kind="a=N,b=N")


def test_misspelt_variable_is_reported_with_the_nearest(monkeypatch):
    monkeypatch.setenv("BLAZR_MAX_NUM_SEQ", "4")
    assert read.warnings() == [
        ("The environment variable BLAZR_MAX_NUM_SEQ is unknown and has no effect.", "Did you mean BLAZR_MAX_NUM_SEQS?")
    ]


def test_retired_variable_is_reported_with_what_to_do(monkeypatch):
    monkeypatch.setenv("BLAZR_BATCH_WINDOW", "4")
    monkeypatch.setenv("BLAZR_KEY_RPM", "60")
    (fixed, advice), (read_still, limits) = read.warnings()
    assert (fixed, advice) == (
        "The environment variable BLAZR_BATCH_WINDOW is retired and has no effect.", "Remove it: the value is fixed.",
    )  # fmt: skip
    assert "BLAZR_KEY_RPM is retired and works in this version only" in read_still
    assert limits.startswith("Set BLAZR_KEY_LIMITS")
