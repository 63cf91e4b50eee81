"""Bars of every implementation for each model and task as one SVG file, written by hand: no plotting library needed."""

from __future__ import annotations

from html import escape
from pathlib import Path

from bench.figures import Figures, Interval
from bench.implementations import IMPLEMENTATIONS
from bench.report import is_compared

_COLOURS = {
    "blazr": ("#b4410e", "#e07a3f", "#f2b48c"),
    "llama-cpp": ("#1f4e79", "#4d84b5", "#9dc0de"),
    "openvino": ("#37653a", "#6b9e6e", "#acd0ae"),
    "mistralrs": ("#6b4a86", "#a284bb", "#cdbbdb"),
    "transformers": ("#555555", "#999999", "#cccccc"),
}
_LEFT, _WIDTH, _BAR, _GAP, _HEAD = 190, 420, 15, 10, 22
_COLUMNS = 2


def write_plot(figures: Figures, file: Path) -> None:
    """One panel for each model and figure that peers have, too: bar is the median, line from smallest to greatest."""
    panels = []
    for model, rows in figures.samples.items():
        tasks = dict.fromkeys(figure for row in rows.values() for figure in row)
        for task in tasks:
            if not is_compared(task):
                continue
            unit, scale = unit_of(task)
            bars = []
            for item in IMPLEMENTATIONS:
                values = rows.get(item.name, {}).get(task)
                if values:
                    shade = {16: 0, 8: 1, 4: 2}[item.bits]
                    interval = Interval.of([scale * value for value in values.values()])
                    bars.append((item.name, _COLOURS[item.peer][shade], interval))
            panels.append((f"{model}, {task.removesuffix(' s').removesuffix(' bytes')}: {unit}", bars))
    column_heights = [0.0] * _COLUMNS
    parts = []
    for title, bars in panels:
        column = column_heights.index(min(column_heights))
        x, y = column * (_LEFT + _WIDTH + 80), column_heights[column]
        parts += _panel(title, bars, x, y)
        column_heights[column] += _HEAD + len(bars) * (_BAR + 3) + _GAP
    width, height = _COLUMNS * (_LEFT + _WIDTH + 80), max(column_heights, default=0.0) + _GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:.0f}" font-family="sans-serif">'
    file.write_text("\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>\n"]))


def unit_of(figure: str) -> tuple[str, float]:
    """What a figure is shown in, and by what its values are multiplied for that."""
    if figure.endswith(" bytes"):
        return "MiB", 2**-20
    if figure == "load s":
        return "s", 1.0
    return ("ms", 1000.0) if figure.endswith(" s") else ("tokens/s", 1.0)


def _panel(title: str, bars: list[tuple[str, str, Interval]], x: float, y: float) -> list[str]:
    longest = max(interval.high for _, _, interval in bars)
    parts = [f'<text x="{x + 8}" y="{y + 16}" font-size="13" font-weight="bold">{escape(title)}</text>']
    for number, (name, colour, interval) in enumerate(bars):
        top = y + _HEAD + number * (_BAR + 3)
        start, scale = x + _LEFT, _WIDTH / longest
        middle = top + _BAR / 2
        low, high = start + interval.low * scale, start + interval.high * scale
        parts += [
            f'<text x="{start - 6}" y="{middle + 4}" font-size="11" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{start}" y="{top}" width="{interval.median * scale:.1f}" height="{_BAR}" fill="{colour}"/>',
            f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}" stroke="black" stroke-width="1"/>',
            f'<text x="{high + 5:.1f}" y="{middle + 4}" font-size="11">{interval.median:,.4g}</text>',
        ]
    return parts
