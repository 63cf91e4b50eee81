"""The curve of losses: what was measured is kept, and the picture has every form."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from bench.loss_curve import Point, missing_points, read_points, write_picture

POINTS = [
    Point("blazr", "int4", 84.9, 2.1e-1, 0.77, 24.8),
    Point("llama.cpp", "Q4_K_M", 98.9, 6.8e-2, 0.86, 21.8),
    Point("blazr", "mixed 98.9", 98.6, 2.2e-2, 0.89, 20.9),
]


def test_a_later_run_measures_what_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "points.jsonl"
    requested = [(point.whose, point.form, lambda point=point: point) for point in POINTS]
    assert list(missing_points(read_points(file), requested[:2], file)) == POINTS[:2]
    assert read_points(file) == POINTS[:2]
    assert list(missing_points(read_points(file), requested, file)) == POINTS[2:]
    assert read_points(file) == POINTS
    assert read_points(None) == []


def test_a_lower_loss_stands_lower_and_a_larger_form_further_right(tmp_path: Path) -> None:
    write_picture(POINTS, "a model & its forms", tmp_path / "curve.svg")
    root = ElementTree.parse(tmp_path / "curve.svg").getroot()
    name = "{http://www.w3.org/2000/svg}"
    circles = [(float(circle.get("cx")), float(circle.get("cy"))) for circle in root.iter(f"{name}circle")]
    assert len(circles) == len(POINTS)
    int4, q4_k_m, mixed = circles
    assert int4[0] < mixed[0] < q4_k_m[0] and int4[1] < q4_k_m[1] < mixed[1]
    assert {"Q4_K_M", "int4", "mixed 98.9", "a model & its forms"} <= {text.text for text in root.iter(f"{name}text")}


def test_labels_of_near_points_stand_below_each_other(tmp_path: Path) -> None:
    near = [Point("llama.cpp", form, mib, 2.3e-1, 0.75, 24.7) for form, mib in (("IQ4_NL", 86.1), ("Q3_K_M", 86.8))]
    write_picture([*POINTS, *near], "forms", tmp_path / "curve.svg")
    name = "{http://www.w3.org/2000/svg}"
    labels = {text.text: float(text.get("y")) for text in ElementTree.parse(tmp_path / "curve.svg").iter(f"{name}text")}
    assert labels["Q3_K_M"] - labels["IQ4_NL"] >= 9
