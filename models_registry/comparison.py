"""Compare two checkpoints by what is known of them without reading their weights: config, sizes, layers, tensors,
and what was measured."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.errors import CorruptCheckpoint
from inference.host.units import format_bytes, format_count
from inference.models.readable_rows import readable_rows
from models_registry.curves import read_curve
from models_registry.detection.describe import describe
from models_registry.detection.inspection import Inspection
from models_registry.detection.json_file import read_object
from models_registry.models import Checkpoint, Passport, RunStep
from models_registry.passports import PASSPORTS

MAX_LINES = 400
"""Keys of a config that are compared."""
MAX_TENSORS_SHOWN = 200
MAX_VALUE_CHARS = 160


@dataclass(frozen=True, slots=True)
class Line:
    """One property of both; an empty text: that one doesn't have it.

    Attributes:
        remark: What the difference means, for numbers; empty: nothing to say.
    """

    name: str
    first: str
    second: str
    remark: str = ""

    @property
    def differs(self) -> bool:
        return self.first != self.second


@dataclass(frozen=True, slots=True)
class TensorLines:
    """How the tensors of two checkpoints differ, each list cut after ``MAX_TENSORS_SHOWN``.

    Attributes:
        num_same: With the same name, shape and dtype.
        changed: Of another shape or dtype.
        only_first, only_second: Names, with dtype and shape.
        num_changed, num_only_first, num_only_second: Of all.
    """

    num_same: int
    changed: list[Line]
    only_first: list[tuple[str, str]]
    only_second: list[tuple[str, str]]
    num_changed: int
    num_only_first: int
    num_only_second: int


def size_lines(first: Inspection, second: Inspection) -> list[Line]:
    """Return sizes side by side."""
    one, other = describe(first), describe(second)
    lines = [
        _number("Parameters", one, other, "num_parameters", format_count),
        _number("On disk", one, other, "size_bytes", format_bytes),
        Line("Stored as", _dtypes(one), _dtypes(other)),
        _number("Layers", one, other, "num_layers", str),
        _number("Hidden size", one, other, "hidden_size", str),
        _number("Vocabulary", one, other, "vocab_size", lambda value: f"{value:,}"),
        _number("Context", one, other, "max_position_embeddings", lambda value: f"{value:,} tokens"),
        _number("State per token", one, other, "state_bytes_per_token", format_bytes),
        _number("State per sequence", one, other, "state_bytes_per_sequence", format_bytes),
        Line("Family", one["model_type"], other["model_type"]),
        Line("Tokenizer", _tokenizer(one), _tokenizer(other)),
        Line(
            "Chat template", one["tokenizer"]["chat_template"] or "none", other["tokenizer"]["chat_template"] or "none"
        ),
    ]
    if lines[-1].first == lines[-1].second and first.tokenizer.chat_template != second.tokenizer.chat_template:
        lines[-1] = Line("Chat template", lines[-1].first, f"{lines[-1].second} (other text)")
    return lines


def layer_lines(first: Inspection, second: Inspection) -> list[Line]:
    """Return the kinds of the layers, neighbours of the same pair as one line."""
    kinds = [[layer.kind for layer in found.spec.layers] for found in (first, second)]
    length = max(map(len, kinds))
    one, other = ([*found, *[""] * (length - len(found))] for found in kinds)
    lines: list[Line] = []
    begin = 0
    for number in range(1, length + 1):
        if number < length and (one[number], other[number]) == (one[begin], other[begin]):
            continue
        name = str(begin) if number == begin + 1 else f"{begin} to {number - 1}"
        lines.append(Line(name, one[begin], other[begin]))
        begin = number
    return lines


def config_lines(first: Checkpoint, second: Checkpoint) -> list[Line]:
    """Return the members of both config.json by name; empty where neither has one (GGUF)."""
    return _joined(*(_flat(_config(row)) for row in (first, second)))


def fact_lines(first: Inspection, second: Inspection) -> list[Line]:
    """Return what the inspections found, by name."""
    return _joined(*({fact.name: _text(fact.value) for fact in found.facts} for found in (first, second)))


def tensor_lines(first: Inspection, second: Inspection) -> TensorLines:
    """Return the differences of the tensors' headers."""
    one, other = ({name: _form(info) for name, info in found.tensors.items()} for found in (first, second))
    shared = [name for name in one if name in other]
    changed = [Line(name, one[name], other[name]) for name in shared if one[name] != other[name]]
    only_first = [(name, form) for name, form in one.items() if name not in other]
    only_second = [(name, form) for name, form in other.items() if name not in one]
    return TensorLines(
        num_same=len(shared) - len(changed),
        changed=changed[:MAX_TENSORS_SHOWN],
        only_first=only_first[:MAX_TENSORS_SHOWN],
        only_second=only_second[:MAX_TENSORS_SHOWN],
        num_changed=len(changed),
        num_only_first=len(only_first),
        num_only_second=len(only_second),
    )


def measured_lines(first: Checkpoint, second: Checkpoint) -> list[Line]:
    """Return what rows and files say was measured: passports, divergence of a quantisation, held-out loss."""
    return _joined(*(_measured(row) for row in (first, second)))


def _measured(checkpoint: Checkpoint) -> dict[str, str]:
    found: dict[str, str] = {}
    rows = readable_rows(PASSPORTS.of(checkpoint).filter(state=Passport.State.DONE), 1)
    for entry in rows[0].shown_entries if rows else ():
        found[f"passport: {entry['name']}"] = str(entry["state"])
        figures = entry["figures"] if isinstance(entry["figures"], Mapping) else {}
        for name, value in figures.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                label, words = _figure(str(name), value)
                found[f"{entry['name']}: {label}"] = words
    curve = read_curve(Path(checkpoint.directory))
    chosen = next((point for point in curve.points if point.is_chosen), None) if curve else None
    if curve is not None and chosen is not None:
        found["quantisation: mean KL divergence, nats"] = f"{chosen.mean_kl:.3g} ({curve.text})"
    steps = RunStep.objects.filter(checkpoint=checkpoint).select_related("run").order_by("pk")
    for step in readable_rows(steps, 1):
        found["training: step"] = f"{step.run.name}, {step.label}"
        if step.loss is not None and math.isfinite(step.loss):
            found["training: held-out loss, nats per token"] = f"{step.loss:.4f}"
    return found


def _figure(name: str, value: float) -> tuple[str, str]:
    """Return a figure of a passport in words, its name and its value: sizes in their units, counts in full."""
    label = name.removesuffix("_bytes").replace("_", " ")
    if label != name.replace("_", " "):
        return label, format_bytes(value)
    return label, f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _config(checkpoint: Checkpoint) -> dict[str, Any]:
    try:
        return read_object(Path(checkpoint.directory) / "config.json")
    except CorruptCheckpoint:
        return {}


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested members as ``outer.inner``."""
    found: dict[str, str] = {}
    for name, member in value.items():
        if isinstance(member, Mapping) and member:
            found |= _flat(member, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = _text(member)
    return found


def _joined(first: Mapping[str, str], second: Mapping[str, str]) -> list[Line]:
    """Return the properties of both, those that differ first, each in the order of the first."""
    names = list(dict.fromkeys((*first, *second)))
    lines = [Line(name[:MAX_VALUE_CHARS], first.get(name, ""), second.get(name, "")) for name in names]
    return sorted(lines, key=lambda line: not line.differs)[:MAX_LINES]


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[: MAX_VALUE_CHARS - 1]}…"


def _form(info: Any) -> str:
    return f"{info.dtype} {' × '.join(map(str, info.shape)) or 'scalar'}"


def _number(label: str, one: Mapping[str, Any], other: Mapping[str, Any], name: str, words: Any) -> Line:
    before, after = one[name], other[name]
    remark = f"{100 * (after - before) / before:+.1f} %" if before and before != after else ""
    return Line(label, words(before), words(after), remark)


def _dtypes(description: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} × {number}" for name, number in description["stored_dtypes"].items())


def _tokenizer(description: Mapping[str, Any]) -> str:
    about = description["tokenizer"]
    return "none" if about["kind"] == "none" else str(about["name"] or about["file"])
