"""Tables of the command line: folded into a terminal's width, whole where a program reads them."""

from __future__ import annotations

import pytest

from blazr_site.commands.tables import output_console, table

CELLS = ("2026-11-22", "a name of several words that is long " * 4, "1,234,567")


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    rows = table("day", "name", "tokens", right=("tokens",))
    rows.add_row(*CELLS)
    output_console().print(rows)
    return capsys.readouterr().out


def test_nothing_is_folded_for_a_program(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    heading, row = printed(capsys).splitlines()
    assert heading.split() == ["day", "name", "tokens"]
    assert all(cell.strip() in row for cell in CELLS)
    assert row.rstrip().endswith("1,234,567")


def test_nothing_is_cut_where_there_is_little_room(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    text = printed(capsys)
    assert all(len(line) <= 40 for line in text.splitlines())
    assert "…" not in text
    assert "".join(text.split()).count("several") == 4
