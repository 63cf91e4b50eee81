"""What quantised forms of one checkpoint lose, by their bytes: ``python -m bench.loss_curve DIRECTORY``.

Ours are int8, int4 and the mixed forms of ``blazr quantise``; llama.cpp's are those of its own quantiser, out of its
own converter. All are measured in one way: the mean divergence of the predictions from the checkpoint's bfloat16 over
Python's help pages. Mixed forms are planned and corrected on other pages than those that they are measured on. Bytes
are the weights', without vocabulary and metadata. Writes a picture beside the table.

Each form takes minutes, so ``--points FILE`` keeps what was measured, a line of JSON for each; a later run measures
only what is missing there.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from html import escape
from pathlib import Path

from bench.environments import Environments
from blazr_site.commands.arguments import QUANTISE_CORRECTION, QUANTISE_TOKENS
from blazr_site.commands.quality import text_tokens
from inference.llm.options import LLMOptions
from inference.llm.quality import Quality, measure_quality
from inference.llm.quantising.quantise import Limit, quantise_checkpoint
from inference.llm.quantising.side_files import side_files
from inference.llm.quantising.writing import PLAN_FILE
from inference.modelling.gguf.container import read_gguf
from inference.modelling.quantisation import Quant
from models_registry.detection.inspection import Inspection, inspect_checkpoint

WINDOW = 512
MIB = 1 << 20
FORMS = "q2_k,q3_k_m,iq4_nl,q4_0,q4_k_m,q5_k_m,q6_k,q8_0"
COLOURS = {"blazr": "#b4410e", "llama.cpp": "#1f4e79"}
WIDTH, HEIGHT, MARGIN = 760, 420, 60
LETTER_WIDTH = 6


@dataclass(frozen=True, slots=True)
class Point:
    """One form.

    Attributes:
        whose: ``blazr`` or ``llama.cpp``.
        form: Its name; of a mixed form, the size that it was planned for.
        mib: Of the weights.
        mean_kl: In nats.
        top1_agreement: Share of predictions with the same first choice.
    """

    whose: str
    form: str
    mib: float
    mean_kl: float
    top1_agreement: float
    perplexity: float


class Curve:
    """Measures forms of one checkpoint.

    Args:
        num_tokens: Of the text that is measured; plans are made on what follows.
        num_planning: Tokens that plans are made on.
        measurements: File for what the first plan measures of each matrix; the next ones read it.
    """

    def __init__(self, directory: Path, num_tokens: int, num_planning: int, measurements: Path) -> None:
        self._original = inspect_checkpoint(directory)
        tokens, self._text = text_tokens(self._original, None, num_tokens + num_planning + QUANTISE_CORRECTION)
        self._tokens, behind = tokens[:num_tokens], tokens[num_tokens:]
        self._planning, self._correcting = behind[:num_planning], behind[num_planning:]
        self._options = LLMOptions(dtype="bfloat16")
        self._measurements = measurements

    def _measure(self, inspection: Inspection, quant: Quant) -> Quality:
        original = self._original
        found = measure_quality(
            inspection.spec, inspection.weight_paths, self._tokens, [quant], options=self._options, window=WINDOW,
            reference=(original.spec, original.weight_paths),
        )  # fmt: skip
        return found[-1]

    def whole(self, quant: Quant) -> Point:
        """A form of ``--quant``."""
        quality = self._measure(self._original, quant)
        return _point("blazr", quant, quality.weights_bytes, quality)

    def mixed(self, mib: float) -> Point:
        """``blazr quantise`` within a size in MiB."""
        original = self._original
        with tempfile.TemporaryDirectory() as target:
            quantised = quantise_checkpoint(
                original.spec, original.weight_paths, side_files(original), Path(target) / "quantised",
                self._planning, Limit(int(mib * MIB)), text=self._text, window=WINDOW, calibration=self._correcting,
                with_curve=False, measurements=self._measurements if self._measurements.exists() else None,
            )  # fmt: skip
            shutil.copyfile(Path(target) / "quantised" / PLAN_FILE, self._measurements)
            quality = self._measure(inspect_checkpoint(Path(target) / "quantised"), "auto")
        return _point("blazr", mixed_name(mib), quantised.size_bytes, quality)

    def gguf(self, environments: Environments, form: str) -> Point:
        """One of llama.cpp's forms."""
        file = environments.gguf(self._original.directory, form)
        quality = self._measure(inspect_checkpoint(file), "auto")
        size = sum(tensor.end - tensor.begin for tensor in read_gguf(file).tensors.values())
        return _point("llama.cpp", form.upper(), size, quality)


def _point(whose: str, form: str, size_bytes: int, quality: Quality) -> Point:
    return Point(whose, form, size_bytes / MIB, quality.mean_kl, quality.top1_agreement, quality.perplexity)


def mixed_name(mib: float) -> str:
    """What a mixed form within a size is called."""
    return f"mixed {mib:g}"


def read_points(file: Path | None) -> list[Point]:
    """What earlier runs have measured."""
    if file is None or not file.exists():
        return []
    return [Point(**json.loads(line)) for line in file.read_text().splitlines()]


def missing_points(
    points: Sequence[Point], requested: Sequence[tuple[str, str, Callable[[], Point]]], file: Path | None
) -> Iterator[Point]:
    """Measure what ``points`` lack, and add it to the file.

    Args:
        requested: Whose, the form's name, and what measures it.
    """
    known = {(point.whose, point.form) for point in points}
    for whose, form, measure in requested:
        if (whose, form) in known:
            continue
        point = measure()
        if file is not None:
            with file.open("a") as lines:
                lines.write(json.dumps(asdict(point)) + "\n")
        yield point


def write_picture(points: Sequence[Point], title: str, file: Path) -> None:
    """Divergence, in powers of ten, over MiB; ours have their names on the left of a point, others on the right."""
    sizes = [point.mib for point in points]
    margin = 0.15 * (max(sizes) - min(sizes) + 1)
    least, most = min(sizes) - margin, max(sizes) + margin
    decades = [math.log10(point.mean_kl) for point in points]
    lowest, highest = math.floor(min(decades)), math.ceil(max(decades))

    def place(mib: float, decade: float) -> tuple[float, float]:
        across = MARGIN + (mib - least) / (most - least) * (WIDTH - 2 * MARGIN)
        return across, HEIGHT - MARGIN - (decade - lowest) / (highest - lowest) * (HEIGHT - 2 * MARGIN)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{MARGIN}" y="28" font-size="13" font-weight="bold">{escape(title)}</text>',
        f'<text x="{WIDTH - MARGIN}" y="{HEIGHT - 16}" font-size="11" text-anchor="end">MiB</text>',
    ]
    for power in range(lowest, highest + 1):
        _, y = place(least, power)
        parts += [
            f'<line x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>',
            f'<text x="{MARGIN - 6}" y="{y + 4:.1f}" font-size="11" text-anchor="end">1e{power}</text>',
        ]
    step = 10 if most < 400 else 100
    for mib in range(math.ceil(least / step) * step, int(most) + 1, step):
        x, y = place(mib, lowest)
        parts.append(f'<text x="{x:.1f}" y="{y + 16:.1f}" font-size="11" text-anchor="middle">{mib}</text>')
    labels: list[tuple[float, float, float]] = []  # where they begin and end, and their heights
    for point, decade in sorted(zip(points, decades, strict=True), key=lambda both: -both[1]):  # from above
        x, y = place(point.mib, decade)
        colour, is_ours = COLOURS[point.whose], point.whose == "blazr"
        width = LETTER_WIDTH * len(point.form)
        left, label_y = x - 8 - width if is_ours else x + 8, y
        while any(left < end and left + width > begin and abs(label_y - at_y) < 9 for begin, end, at_y in labels):
            label_y += 9  # below the label that is there
        labels.append((left, left + width, label_y))
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>',
            f'<text x="{x - 8 if is_ours else x + 8:.1f}" y="{label_y + 3.5:.1f}" font-size="10" fill="{colour}" '
            f'text-anchor="{"end" if is_ours else "start"}">{escape(point.form)}</text>',
        ]
    for number, (whose, colour) in enumerate(COLOURS.items()):
        x = MARGIN + 60 * number
        parts.append(f'<text x="{x}" y="46" font-size="12" fill="{colour}">{whose}</text>')
    file.write_text("\n".join([*parts, "</svg>\n"]))


def main() -> None:
    """Measure, print a table, write a picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument(
        "--forms",
        type=lambda text: text.split(","),
        default=FORMS.split(","),
        help="of llama.cpp; empty: none, for models that it doesn't convert",
    )
    mixed = "of the mixed forms, e.g. 60 80 101"
    parser.add_argument("--sizes", type=float, nargs="*", default=[], metavar="MIB", help=mixed)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--picture", type=Path, help="an SVG file")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "blazr-bench")
    points_help = "a file that keeps what was measured, and what it has already isn't measured again"
    parser.add_argument("--points", type=Path, help=points_help)
    planning = "tokens that plans are made on (%(default)s)"
    parser.add_argument("--planning", type=int, default=QUANTISE_TOKENS, metavar="N", help=planning)
    given = parser.parse_args()
    environments = Environments(given.cache, print)
    given.cache.mkdir(parents=True, exist_ok=True)
    directory = given.directory.resolve()
    measurements = given.cache / f"{directory.name}-measured-on-{given.planning}-behind-{given.tokens}.json"
    curve = Curve(directory, given.tokens, given.planning, measurements)
    ours: tuple[Quant, ...] = ("int8", "int4")
    requested = [
        *[("blazr", quant, partial(curve.whole, quant)) for quant in ours],
        *[("llama.cpp", form.upper(), partial(curve.gguf, environments, form)) for form in filter(None, given.forms)],
        *[("blazr", mixed_name(mib), partial(curve.mixed, mib)) for mib in given.sizes],
    ]
    print("| form | MiB | KL (nats) | same first choice | perplexity |\n|---|---|---|---|---|")
    points = read_points(given.points)
    for point in points:
        print_row(point)
    for point in missing_points(tuple(points), requested, given.points):
        print_row(point)
        points.append(point)
    if given.picture:
        title = f"{given.directory.name}: divergence from bfloat16 over the size of the weights"
        write_picture(points, title, given.picture)


def print_row(point: Point) -> None:
    """Print a row of the table."""
    print(
        f"| {point.whose} {point.form} | {point.mib:.1f} | {point.mean_kl:.2e} | {point.top1_agreement:.1%} | "
        f"{point.perplexity:.4g} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
