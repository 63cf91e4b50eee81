"""plot.py: pictures of the documents are drawn from committed results, and the tables have their values."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.figures import Figures
from bench.plot import write_plot
from tests.checks.documents import ROOT

RESULTS = sorted((ROOT / "bench" / "results").glob("*.json"))


def relative(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize("file", RESULTS, ids=relative)
def test_the_committed_picture_is_drawn_from_the_results(file, tmp_path):
    write_plot(Figures.read(file), tmp_path / "drawn.svg")
    picture = ROOT / "docs" / "images" / f"{file.stem}.svg"
    command = f"python -m bench --report-only --json bench/results/{file.name} --plot docs/images/{file.stem}.svg"
    assert picture.read_text() == (tmp_path / "drawn.svg").read_text(), command


@pytest.mark.parametrize("file", RESULTS, ids=relative)
def test_the_page_has_every_value_of_the_results(file):
    page = (ROOT / "docs" / "performance.md").read_text()
    shown = page.split(f"images/{file.stem}.svg")[0].rpartition("\n## ")[2]
    words = set(shown.replace(";", " ").replace("|", " ").split())
    for model, rows in Figures.read(file).samples.items():
        for name, figures in rows.items():
            for figure, values in figures.items():
                for value in values.values():
                    assert {f"{value:,}", f"{value:,.0f}"} & words, (model, name, figure, value)


def test_results_of_each_picture_are_there():
    assert [file.stem for file in RESULTS] == ["amx", "http", "peers"]
