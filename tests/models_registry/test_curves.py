"""The curve of a quantised checkpoint, as it is drawn; files of strangers draw nothing odd."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from models_registry import services
from models_registry.curves import HEIGHT, MAX_POINTS, PLAN_FILE, WIDTH, read_curve

POINTS = [
    {"size_bytes": 300 << 20, "mean_kl": 0.002, "predicted_kl": 0.1, "form": "int8"},
    {"size_bytes": 100 << 20, "mean_kl": 0.4, "predicted_kl": 0.1, "form": "int4"},
    {"size_bytes": 200 << 20, "mean_kl": 0.03, "predicted_kl": 0.1, "form": ""},
]
MEASURED = {"mean_kl": 0.03, "text": "a <b>text</b>", "num_tokens": 500}


def written(directory: Path, **content: Any) -> Path:
    (directory / PLAN_FILE).write_text(json.dumps({"curve": POINTS, "measured": MEASURED} | content))
    return directory


def test_smaller_is_left_and_worse_is_up(tmp_path: Path) -> None:
    curve = read_curve(written(tmp_path))
    assert curve is not None
    assert [point.form for point in curve.points] == ["int4", "", "int8"]
    assert [point.is_chosen for point in curve.points] == [False, True, False]
    assert [point.x for point in curve.points] == [curve.left, (curve.left + curve.right) / 2, curve.right]
    assert [point.y for point in curve.points] == sorted(point.y for point in curve.points)
    assert all(0 < point.x < WIDTH and 0 < point.y < HEIGHT for point in curve.points)
    assert [tick.label for tick in curve.rows] == ["1e-3", "1e-2", "1e-1", "1e0"]
    assert [tick.label for tick in curve.columns] == ["100", "150", "200", "250", "300"]
    assert curve.text == "500 predictions of a <b>text</b>"


@pytest.mark.parametrize(
    "curve",
    [
        None, {}, "x", [], POINTS[:1], [POINTS[0], 3, [], {}], [POINTS[0], POINTS[1] | {"mean_kl": float("nan")}],
        [POINTS[0], POINTS[1] | {"size_bytes": True}], [POINTS[0], POINTS[1] | {"size_bytes": 1 << 60}],
        [POINTS[0], POINTS[1] | {"form": []}], [POINTS[0], POINTS[1] | {"mean_kl": -1.0}],
    ],
)  # fmt: skip
def test_what_is_no_curve_is_not_drawn(curve: Any, tmp_path: Path) -> None:
    assert read_curve(written(tmp_path, curve=curve)) is None


def test_long_and_equal_lists(tmp_path: Path) -> None:
    curve = read_curve(written(tmp_path, curve=POINTS[:1] * 1000, measured=[]))
    assert curve is not None
    assert len(curve.points) == MAX_POINTS
    assert curve.text == "an unknown text"


def test_a_number_of_predictions_is_a_number(tmp_path: Path) -> None:
    curve = read_curve(written(tmp_path, measured=MEASURED | {"num_tokens": True}))
    assert curve is not None
    assert curve.text == MEASURED["text"]


@pytest.mark.parametrize("content", ["", "[", "[]", "[" * 10_000])
def test_broken_files(content: str, tmp_path: Path) -> None:
    (tmp_path / PLAN_FILE).write_text(content)
    assert read_curve(tmp_path) is None


@pytest.mark.django_db
def test_the_page_shows_it_beside_a_table(browser: Client, hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    assert "Quantised by measurement" not in browser.get(f"/models/{row.pk}/").content.decode()
    written(Path(row.directory))
    text = browser.get(f"/models/{row.pk}/").content.decode()
    for piece in (
        '<svg class="curve large"', "mixed (this model)", "3.00e-02", "200.0 MiB", "of a &lt;b&gt;text", "all int4",
    ):  # fmt: skip
        assert piece in text, piece
    assert " style=" not in text
