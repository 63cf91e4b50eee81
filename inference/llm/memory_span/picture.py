"""Draw spans as SVG: how far back heads reach, and below it the norms of their states over the text.

The first panel has a row for each mixer and a cell for each head, the darker the further back it reaches. The second
has a row for each recurrent mixer: the median of its heads' norms as a line, from the least to the most as an area.
Colours follow the reader's light or dark scheme. The numbers stand in titles, which browsers show on hover and screen
readers read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from inference.llm.memory_span.spans import HeadSpan, MixerSpan

ROW, CELL_GAP, LABEL_WIDTH, STRIP_WIDTH, RIGHT = 22, 1, 170, 560, 150
TOP, BOTTOM = 64, 46
NORM_TOP, NORM_ROW, NORM_BOTTOM = 52, 44, 30
STEPS = 8
"""Shades between a reach of one token and of the whole text or more."""
STYLE = """
  .page { fill: #ffffff } .words, .small { fill: #1f2328 } .muted { fill: #59636e }
  text { font-family: system-ui, sans-serif; font-size: 13px; font-variant-numeric: tabular-nums }
  .small { font-size: 11px } .title { font-size: 15px; font-weight: 600 }
  .band { fill: #0969da; fill-opacity: .22 } .line { fill: none; stroke: #0969da; stroke-width: 1.5 }
  .base { stroke: #59636e; stroke-opacity: .5 } .middle { text-anchor: middle } .end { text-anchor: end }
  .recurrent { fill: #0969da } .attention { fill: #bc4c00 } .convolution { fill: #59636e }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117 } .words, .small { fill: #e6edf3 } .muted { fill: #9198a1 }
    .band { fill: #4493f8 } .line { stroke: #4493f8 } .base { stroke: #9198a1 }
    .recurrent { fill: #4493f8 } .attention { fill: #f0883e } .convolution { fill: #9198a1 }
  }
"""


def draw(spans: Sequence[MixerSpan], *, model: str, num_tokens: int) -> str:
    """Return an SVG document.

    Args:
        spans: At least one.
        model: Name for the headline; any text.
        num_tokens: Length of the text that was read.
    """
    with_norms = [span for span in spans if any(head.state_norms for head in span.heads)]
    width, reach_height = LABEL_WIDTH + STRIP_WIDTH + RIGHT, TOP + ROW * len(spans) + BOTTOM
    height = reach_height + (NORM_TOP + NORM_ROW * len(with_norms) + NORM_BOTTOM if with_norms else 0)
    title = f"How far back {model} reaches"
    subtitle = f"over a text of {num_tokens:,} tokens; a cell for each head"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'aria-labelledby="title desc">',
        f'<title id="title">{_text(title)}</title>',
        '<desc id="desc">Half-lives of recurrent heads and mean attended distances of attention heads in tokens, '
        "by layer; norms of the recurrent states over the text.</desc>",
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{width}" height="{height}"/>',
        f'<text class="words title" x="12" y="24">{_text(title)}</text>',
        f'<text class="muted" x="12" y="44">{_text(subtitle)}</text>',
        f'<text class="muted" x="{LABEL_WIDTH + STRIP_WIDTH + 12}" y="44">median, tokens</text>',
    ]
    for number, span in enumerate(spans):
        parts += _row(span, TOP + ROW * number, num_tokens)
    parts += _legend(reach_height - 22, num_tokens)
    if with_norms:
        parts += _norms(with_norms, reach_height, num_tokens)
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _row(span: MixerSpan, y: int, num_tokens: int) -> list[str]:
    kind = "convolution" if not span.heads else "attention" if span.heads[0].half_life is None else "recurrent"
    parts = ["<g>", f'<text class="words" x="12" y="{y + 15}">{span.layer} {_text(span.kind)}</text>']
    if not span.heads:
        parts.append(f'<text class="muted" x="{LABEL_WIDTH}" y="{y + 15}">reads {span.window} tokens</text>')
    width = STRIP_WIDTH / max(1, len(span.heads))
    gap = CELL_GAP if width > 4 else 0
    for number, head in enumerate(span.heads):
        parts.append(
            f'<rect class="{kind}" x="{LABEL_WIDTH + number * width:.1f}" y="{y + 2}" width="{width - gap:.1f}" '
            f'height="{ROW - 4}" fill-opacity="{shade(reach(head), num_tokens):.2f}">'
            f"<title>{_text(f'layer {span.layer}, head {number}: {describe(head)}')}</title></rect>"
        )
    if span.heads:
        middle = sorted(reach(head) for head in span.heads)[len(span.heads) // 2]
        parts.append(
            f'<text class="words" x="{LABEL_WIDTH + STRIP_WIDTH + 12}" y="{y + 15}">{_text(tokens(middle))}</text>'
        )
    return [*parts, "</g>"]


def _legend(y: int, num_tokens: int) -> list[str]:
    parts = []
    for column, (kind, words) in enumerate((("recurrent", "half-life"), ("attention", "mean attended distance"))):
        x = 12 + column * 360
        for step in range(STEPS):
            opacity = _opacity(step)
            parts.append(
                f'<rect class="{kind}" x="{x + step * 14}" y="{y - 10}" width="13" height="12" '
                f'fill-opacity="{opacity:.2f}"/>'
            )
        parts.append(f'<text class="small" x="{x + STEPS * 14 + 8}" y="{y}">{words}: 1 to {num_tokens:,} tokens</text>')
    return parts


def _norms(spans: Sequence[MixerSpan], y: int, num_tokens: int) -> list[str]:
    """The second panel."""
    bottom = y + NORM_TOP + NORM_ROW * len(spans)
    right = LABEL_WIDTH + STRIP_WIDTH
    parts = [
        f'<text class="words title" x="12" y="{y + 18}">Norm of the state over the text</text>',
        f'<text class="muted" x="12" y="{y + 38}">the heads\' median, between their least and most; '
        "each row from 0 to its own most</text>",
        f'<text class="muted" x="{right + 12}" y="{y + 38}">at the end, most</text>',
    ]
    for number, span in enumerate(spans):
        parts += _norm_row(span, y + NORM_TOP + NORM_ROW * number, num_tokens)
    parts += [
        f'<text class="small" x="{LABEL_WIDTH}" y="{bottom + 18}">0</text>',
        f'<text class="small middle" x="{(LABEL_WIDTH + right) / 2:g}" y="{bottom + 18}">tokens read</text>',
        f'<text class="small end" x="{right}" y="{bottom + 18}">{num_tokens:,}</text>',
    ]
    return parts


def _norm_row(span: MixerSpan, y: int, num_tokens: int) -> list[str]:
    columns = norms_by_position(span)
    finite = [value for column in columns for value in column if math.isfinite(value)]
    most = max(finite, default=0.0)
    base, top = y + NORM_ROW - 6, y + 4

    def across(number: int) -> str:
        share = (number + 1) / len(columns)
        return f"{LABEL_WIDTH + STRIP_WIDTH * share:.1f}"

    def up(value: float) -> str:
        share = min(1.0, value / most) if most and math.isfinite(value) else float(not math.isfinite(value))
        return f"{base - (base - top) * share:.1f}"

    places = [across(number) for number in range(len(columns))]
    lows, middles, highs = ([up(value) for value in values] for values in zip(*columns, strict=True))
    start = f"{LABEL_WIDTH},{base}"  # an empty state
    band = " ".join(
        [
            start,
            *map(",".join, zip(places, highs, strict=True)),
            *map(",".join, zip(places[::-1], lows[::-1], strict=True)),
        ]
    )
    line = " ".join([start, *map(",".join, zip(places, middles, strict=True))])
    last = f"{columns[-1][1]:.3g}, {most:.3g}"
    words = f"layer {span.layer}, state norm after {num_tokens:,} tokens: {columns[-1][1]:.3g}, most {most:.3g}"
    return [
        "<g>",
        f"<title>{_text(words)}</title>",
        f'<text class="words" x="12" y="{y + 26}">{span.layer} {_text(span.kind)}</text>',
        f'<line class="base" x1="{LABEL_WIDTH}" x2="{LABEL_WIDTH + STRIP_WIDTH}" y1="{base}" y2="{base}"/>',
        f'<polygon class="band" points="{band}"/>',
        f'<polyline class="line" points="{line}"/>',
        f'<text class="words" x="{LABEL_WIDTH + STRIP_WIDTH + 12}" y="{y + 26}">{last}</text>',
        "</g>",
    ]


def norms_by_position(span: MixerSpan) -> list[tuple[float, float, float]]:
    """Least, median and most of the heads' norms at each position."""
    heads = [head.state_norms for head in span.heads if head.state_norms]
    found = []
    for column in zip(*heads, strict=True):
        values = sorted(column)
        found.append((values[0], values[len(values) // 2], values[-1]))
    return found


def reach(head: HeadSpan) -> float:
    """Tokens that a head reaches back: its half-life, or its mean attended distance."""
    found = head.distance if head.half_life is None else head.half_life
    assert found is not None
    return found


def shade(value: float, num_tokens: int) -> float:
    """Opacity of a cell, in ``STEPS`` logarithmic steps from 1 token to the length of the text."""
    if value <= 1:
        return _opacity(0)
    share = 1.0 if value >= num_tokens else math.log(value) / math.log(num_tokens)
    return _opacity(min(STEPS - 1, int(share * STEPS)))


def _opacity(step: int) -> float:
    return 0.08 + 0.92 * step / (STEPS - 1)


def describe(head: HeadSpan) -> str:
    """Return a head's figures as a sentence."""
    if head.half_life is not None:
        assert head.half_life_low is not None and head.half_life_high is not None
        return (
            f"half-life {tokens(head.half_life)} ({tokens(head.half_life_low)} to {tokens(head.half_life_high)}), "
            f"state norm {head.state_norm:.3g}"
        )
    sink = "" if head.sink_share is None else f", {head.sink_share:.0%} on the sink"
    return f"mean attended distance {tokens(reach(head))}{sink}"


def tokens(value: float) -> str:
    """A number of tokens for people; what never decays is ``never``."""
    if math.isinf(value):
        return "never"
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}"


def _text(value: str) -> str:
    """Escaped, without the control characters that XML doesn't allow."""
    return escape("".join(char if char.isprintable() else "\ufffd" for char in value), {'"': "&quot;"})
