"""Lay out the layers of a model as a ribbon that fits into a line: a cell for each mixer, and the same in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from inference.modelling.spec import LayerSpec
from models_registry.layer_words import STRIPED, WORDS

CELL = 10
"""Width of a layer in the drawing; app.css draws a tenth of it as the gap (``stroke-dasharray``)."""
_WHOLE, _UPPER, _LOWER = (7.0, 14), (4.0, 8), (11.5, 5)
"""Middle and height of a cell in a drawing 14 high: a layer of one mixer, its token mixer, its channel mixer."""
_GAP_SHARE = 0.14
"""Of a striped cell's height, for each gap between its stripes; ``clip-path`` in app.css has the same."""
ATTENTION = (
    "attention",
    "mla",
    "convolved_attention",
    "relative_attention",
    "clipped_attention",
    "compressed_attention",
)
"""Token mixers whose state grows with the tokens; the others are recurrent."""
MIXES: Mapping[str, str] = {
    "recurrent": "recurrent layers only",
    "mixed": "recurrent and attention",
    "attention": "attention layers only",
}


@dataclass(frozen=True, slots=True)
class Band:
    """All cells of one kind and place.

    Attributes:
        kind: ``k-KIND`` is its class.
        height: Of the cells, or of each stripe of theirs.
        path: A line through each run of neighbours, which its stroke makes cells of; for a striped kind several.
    """

    kind: str
    height: float
    path: str


@dataclass(frozen=True, slots=True)
class LayerRibbon:
    """The layers of a model, first to last.

    Attributes:
        drawing: The bands as elements of SVG. Django's templates take longer than a list of many models may.
        words: How many layers there are of each kind.
        mix: One of ``MIXES``; empty: no layer mixes tokens.
    """

    num_layers: int
    bands: tuple[Band, ...]
    drawing: SafeString
    words: str
    mix: str

    @property
    def width(self) -> int:
        """The drawing's width in its own units."""
        return CELL * self.num_layers

    @property
    def line_width(self) -> int:
        """Its width in a list, in pixels."""
        return min(max(6 * self.num_layers, 24), 132)


def layer_ribbon(layers: Sequence[LayerSpec]) -> LayerRibbon:
    """Lay out the layers, neighbours of a kind as one line: a hundred layers of few kinds take a few hundred bytes."""
    places: dict[tuple[str, tuple[float, int]], list[int]] = {}
    for number, layer in enumerate(layers):
        for cell in _cells(layer):
            places.setdefault(cell, []).append(number)
    kinds = Counter(layer.kind or "none" for layer in layers)
    count = len(layers)
    listed = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
    bands = tuple(_band(kind, y, height, numbers) for (kind, (y, height)), numbers in places.items())
    return LayerRibbon(
        num_layers=count,
        bands=bands,
        drawing=format_html_join(
            "",
            '<path class="k-{}" stroke-width="{}" d="{}"></path>',
            ((band.kind, f"{band.height:g}", band.path) for band in bands),
        ),
        words=f"{count} layer{'' if count == 1 else 's'}: {listed}" if count else "no layers",
        mix=_mix(layers),
    )


def ribbon_legend(ribbons: Iterable[LayerRibbon]) -> list[tuple[str, str]]:
    """Return each kind in the ribbons with its words."""
    kinds = dict.fromkeys(band.kind for ribbon in ribbons for band in ribbon.bands)
    return [(kind, WORDS[kind]) for kind in WORDS if kind in kinds] + [
        (kind, kind.replace("_", " ")) for kind in kinds if kind not in WORDS
    ]


def _cells(layer: LayerSpec) -> list[tuple[str, tuple[float, int]]]:
    token, channel = layer.token_mixer, layer.channel_mixer
    if token is None or channel is None:
        return [(mixer.kind, _WHOLE) for mixer in (token, channel) if mixer is not None]
    return [(token.kind, _UPPER), (channel.kind, _LOWER)]


def _band(kind: str, y: float, height: int, numbers: Sequence[int]) -> Band:
    """Return the cells of a kind with their middle at ``y``; striped kinds can be told apart without their colours."""
    if kind not in STRIPED:
        return Band(kind, height, _path(numbers, y))
    count = 3 if height > _LOWER[1] else 2
    gap = _GAP_SHARE * height
    stripe = round((height - (count - 1) * gap) / count, 2)
    top = y - height / 2 + stripe / 2
    lines = (_path(numbers, round(top + number * (stripe + gap), 2)) for number in range(count))
    return Band(kind, stripe, "".join(lines))


def _path(numbers: Sequence[int], y: float) -> str:
    """Return a line through the middle of each run of numbers."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    return "".join(f"M{CELL * begin} {y:g}h{CELL * (end - begin)}" for begin, end in runs)


def _mix(layers: Sequence[LayerSpec]) -> str:
    kinds = {mixer.kind in ATTENTION for layer in layers for mixer in layer.token_mixers}
    if not kinds:
        return ""
    return "mixed" if len(kinds) == 2 else "attention" if True in kinds else "recurrent"
