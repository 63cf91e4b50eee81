"""What quantised forms of one checkpoint lose, by their bytes: ``python -m bench.loss_curve DIRECTORY``.

Ours are int8, int4 and the mixed forms of ``blazr quantise``; llama.cpp's are those of its own quantiser, out of its
own converter. All are measured in one way: the mean divergence of the predictions from the checkpoint's bfloat16 over
Python's help pages. Mixed forms are planned and corrected on other pages than those that they are measured on. Bytes
are the weights', without vocabulary and metadata. Writes a picture beside the table.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from bench.environments import Environments
from blazr_site.commands.arguments import QUANTISE_CORRECTION, QUANTISE_TOKENS
from blazr_site.commands.quality import text_tokens
from inference.llm.options import LLMOptions
from inference.llm.quality import Quality, measure_quality
from inference.llm.quantising.quantise import Limit, quantise_checkpoint
from inference.llm.quantising.side_files import side_files
from inference.modelling.gguf.container import read_gguf
from inference.modelling.quantisation import Quant
from models_registry.detection.inspection import Inspection, inspect_checkpoint

WINDOW = 512
MIB = 1 << 20
FORMS = "q2_k,q3_k_m,iq4_nl,q4_0,q4_k_m,q5_k_m,q6_k,q8_0"
COLOURS = {"blazr": "#b4410e", "llama.cpp": "#1f4e79"}
WIDTH, HEIGHT, MARGIN = 760, 420, 60


@dataclass(frozen=True, slots=True)
class Point:
    """One form.

    Attributes:
        whose: ``blazr`` or ``llama.cpp``.
        mib: Of the weights.
    """

    whose: str
    form: str
    mib: float
    quality: Quality


class Curve:
    """Measures forms of one checkpoint.

    Args:
        num_tokens: Of the text that is measured; plans are made on what follows.
    """

    def __init__(self, directory: Path, num_tokens: int) -> None:
        self._original = inspect_checkpoint(directory)
        tokens, self._text = text_tokens(self._original, None, num_tokens + QUANTISE_TOKENS + QUANTISE_CORRECTION)
        self._tokens, behind = tokens[:num_tokens], tokens[num_tokens:]
        self._planning, self._correcting = behind[:QUANTISE_TOKENS], behind[QUANTISE_TOKENS:]
        self._options = LLMOptions(dtype="bfloat16")

    def _measure(self, inspection: Inspection, quants: Sequence[Quant]) -> list[Quality]:
        original = self._original
        found = measure_quality(
            inspection.spec, inspection.weight_paths, self._tokens, quants, options=self._options, window=WINDOW,
            reference=(original.spec, original.weight_paths),
        )  # fmt: skip
        return found[-len(quants) :]

    def whole(self, quants: Sequence[Quant]) -> Iterator[Point]:
        """The forms of ``--quant``."""
        for quality in self._measure(self._original, quants):
            yield Point("blazr", quality.quant, quality.weights_bytes / MIB, quality)

    def mixed(self, sizes: Sequence[float]) -> Iterator[Point]:
        """``blazr quantise`` within sizes in MiB."""
        original = self._original
        for mib in sizes:
            with tempfile.TemporaryDirectory() as target:
                quantised = quantise_checkpoint(
                    original.spec, original.weight_paths, side_files(original), Path(target) / "quantised",
                    self._planning, Limit(int(mib * MIB)), text=self._text, window=WINDOW, calibration=self._correcting,
                    with_curve=False,
                )  # fmt: skip
                (quality,) = self._measure(inspect_checkpoint(Path(target) / "quantised"), ["auto"])
            bits = quantised.bits_per_weight
            yield Point("blazr", f"mixed, {bits:.1f} bits", quantised.size_bytes / MIB, quality)

    def gguf(self, environments: Environments, forms: Sequence[str]) -> Iterator[Point]:
        """llama.cpp's forms."""
        for form in forms:
            file = environments.gguf(self._original.directory, form)
            (quality,) = self._measure(inspect_checkpoint(file), ["auto"])
            size = sum(tensor.end - tensor.begin for tensor in read_gguf(file).tensors.values())
            yield Point("llama.cpp", form.upper(), size / MIB, quality)


def write_picture(points: Sequence[Point], title: str, file: Path) -> None:
    """Divergence, in powers of ten, over MiB."""
    most = max(point.mib for point in points) * 1.1
    decades = [math.log10(point.quality.mean_kl) for point in points]
    lowest, highest = math.floor(min(decades)), math.ceil(max(decades))

    def place(mib: float, decade: float) -> tuple[float, float]:
        across = MARGIN + mib / most * (WIDTH - 2 * MARGIN)
        return across, HEIGHT - MARGIN - (decade - lowest) / (highest - lowest) * (HEIGHT - 2 * MARGIN)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{MARGIN}" y="28" font-size="13" font-weight="bold">{escape(title)}</text>',
        f'<text x="{WIDTH - MARGIN}" y="{HEIGHT - 16}" font-size="11" text-anchor="end">MiB</text>',
    ]
    for power in range(lowest, highest + 1):
        _, y = place(0, power)
        parts += [
            f'<line x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>',
            f'<text x="{MARGIN - 6}" y="{y + 4:.1f}" font-size="11" text-anchor="end">1e{power}</text>',
        ]
    for mib in range(0, int(most) + 1, 25 if most < 400 else 250):
        x, y = place(mib, lowest)
        parts.append(f'<text x="{x:.1f}" y="{y + 16:.1f}" font-size="11" text-anchor="middle">{mib}</text>')
    for point, decade in zip(points, decades, strict=True):
        x, y = place(point.mib, decade)
        colour, above = COLOURS[point.whose], -8 if point.whose == "blazr" else 16
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>',
            f'<text x="{x:.1f}" y="{y + above:.1f}" font-size="10" fill="{colour}" text-anchor="middle">'
            f"{escape(point.form)}</text>",
        ]
    for number, (whose, colour) in enumerate(COLOURS.items()):
        x = WIDTH - MARGIN - 90 * (number + 1)
        parts.append(f'<text x="{x}" y="28" font-size="12" fill="{colour}">{whose}</text>')
    file.write_text("\n".join([*parts, "</svg>\n"]))


def main() -> None:
    """Measure, print a table, write a picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--forms", default=FORMS, help="of llama.cpp; empty: none, for models that it doesn't convert")
    mixed = "of the mixed forms, e.g. 60 80 101"
    parser.add_argument("--sizes", type=float, nargs="*", default=[], metavar="MIB", help=mixed)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--picture", type=Path, help="an SVG file")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "blazr-bench")
    given = parser.parse_args()
    curve = Curve(given.directory.resolve(), given.tokens)
    points = []

    def add(found: Iterator[Point]) -> None:
        for point in found:
            points.append(point)
            quality = point.quality
            print(
                f"| {point.whose} {point.form} | {point.mib:.1f} | {quality.mean_kl:.2e} | "
                f"{quality.top1_agreement:.1%} | {quality.perplexity:.4g} |",
                flush=True,
            )

    print("| form | MiB | KL (nats) | same first choice | perplexity |\n|---|---|---|---|---|")
    add(curve.whole(["int8", "int4"]))
    add(curve.gguf(Environments(given.cache, print), [form for form in given.forms.split(",") if form]))
    add(curve.mixed(given.sizes))
    if given.picture:
        write_picture(
            points, f"{given.directory.name}: divergence from bfloat16 over the size of the weights", given.picture
        )


if __name__ == "__main__":
    main()
