"""The picture is well-formed, has a row for each mixer, and shows hostile names as text."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from inference.llm.memory_span.picture import LABEL_WIDTH, STRIP_WIDTH, describe, draw, norms_by_position, shade, tokens
from inference.llm.memory_span.spans import HeadSpan, MixerSpan

SVG = "{http://www.w3.org/2000/svg}"
RECURRENT = HeadSpan(
    half_life=12.0, half_life_low=3.0, half_life_high=math.inf, state_norm=2.5, state_norms=(1.0, 3.0, 2.5)
)
ATTENTION = HeadSpan(distance=100.0, sink_share=0.25)
SPANS = [
    MixerSpan(0, "mamba2", (RECURRENT,) * 3),
    MixerSpan(1, "attention", (ATTENTION,) * 2, window=256),
    MixerSpan(2, "short_conv", (), window=3),
]


def test_a_row_for_each_mixer_and_a_cell_for_each_head() -> None:
    root = ElementTree.fromstring(draw(SPANS, model="nano", num_tokens=512))
    rows = root.findall(f"{SVG}g")[:3]
    assert [len(row.findall(f"{SVG}rect")) for row in rows] == [3, 2, 0]
    assert [row.find(f"{SVG}text").text for row in rows] == ["0 mamba2", "1 attention", "2 short_conv"]
    assert root.find(f"{SVG}title").text == "How far back nano reaches"
    titles = [title.text for title in rows[0].iter(f"{SVG}title")]
    assert titles[2] == "layer 0, head 2: half-life 12 (3 to never), state norm 2.5"


def test_norms_are_a_line_for_each_recurrent_mixer() -> None:
    root = ElementTree.fromstring(draw(SPANS, model="nano", num_tokens=512))
    (row,) = (group for group in root.findall(f"{SVG}g") if group.find(f"{SVG}polyline") is not None)
    assert row.find(f"{SVG}title").text == "layer 0, state norm after 512 tokens: 2.5, most 3"
    points = [tuple(map(float, pair.split(","))) for pair in row.find(f"{SVG}polyline").get("points").split()]
    assert [round(x) for x, _ in points] == [LABEL_WIDTH, 357, 543, LABEL_WIDTH + STRIP_WIDTH]
    (base, first, second, last), height = [y for _, y in points], points[0][1] - points[2][1]
    assert base - first == pytest.approx(height / 3, abs=0.1)
    assert second < last < first
    without = ElementTree.fromstring(draw(SPANS[1:], model="nano", num_tokens=512))
    assert not list(without.iter(f"{SVG}polyline"))


def test_norms_without_end_or_of_nothing_are_drawn_within_the_picture() -> None:
    for values in ((math.inf, 1.0), (math.nan, math.nan), (0.0, 0.0)):
        head = HeadSpan(half_life=1.0, half_life_low=1.0, half_life_high=1.0, state_norm=0.0, state_norms=values)
        root = ElementTree.fromstring(draw([MixerSpan(0, "mamba2", (head,))], model="nano", num_tokens=2))
        points = next(root.iter(f"{SVG}polyline")).get("points")
        assert "nan" not in points and "inf" not in points
        assert all(0 < float(pair.split(",")[1]) < 400 for pair in points.split())


def test_the_band_is_from_the_least_head_to_the_most() -> None:
    heads = [
        HeadSpan(half_life=1.0, half_life_low=1.0, half_life_high=1.0, state_norm=norms[-1], state_norms=norms)
        for norms in ((1.0, 5.0), (2.0, 4.0), (9.0, 0.0))
    ]
    assert norms_by_position(MixerSpan(0, "mamba2", tuple(heads))) == [(1.0, 2.0, 9.0), (0.0, 4.0, 5.0)]


def test_hostile_names_stay_text() -> None:
    name = '"><script>alert(1)</script>\x00\x1b[2J&amp;'
    root = ElementTree.fromstring(draw(SPANS, model=name, num_tokens=16))
    assert root.find(f"{SVG}title").text.startswith('How far back "><script>alert(1)</script>')
    assert not list(root.iter(f"{SVG}script"))


def test_the_further_the_darker() -> None:
    shades = [shade(value, 512) for value in (0.0, 1.0, 8.0, 100.0, 511.0, 512.0, math.inf)]
    assert shades == sorted(shades)
    assert shades[0] < 0.1 and shades[-1] == 1.0


def test_figures_are_words() -> None:
    assert describe(ATTENTION) == "mean attended distance 100, 25% on the sink"
    assert [tokens(value) for value in (0.5, 3.14159, 1234.5, math.inf)] == ["0.5", "3.1", "1,234", "never"]
