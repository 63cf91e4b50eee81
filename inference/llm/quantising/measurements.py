"""What each part of a checkpoint loses in each form: measured, derived, and read again from an earlier run's file.

To measure every matrix takes most of the time of a quantisation, and is the same for each size that is planned.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.errors import InvalidRequest
from inference.llm.quantising.measuring import Divergence
from inference.llm.quantising.parts import KINDS, Part
from inference.modelling.quantisation import FormName

MEASURED_FORMS: tuple[FormName, FormName] = ("int2", "int4")
"""A coarse and a fine form, which are measured. The divergence of the others follows from their squared errors, see
``derive_divergences``: forms of more bits change a single matrix less than a few hundred predictions show."""
MAX_FILE_BYTES = 64 << 20
_SAME_PERPLEXITY = 1e-4
"""Largest relative difference of the perplexities of the same weights on the same text: threads add in other orders."""


@dataclass(frozen=True, slots=True)
class PartForms:
    """The divergence of a part in each form.

    Attributes:
        part: The part.
        divergences: Mean KL divergence in nats by form, if this part alone has it.
        measured: Forms whose divergence was measured and not derived from the squared error.
    """

    part: Part
    divergences: Mapping[FormName, float]
    measured: Sequence[FormName]


def derive_divergences(
    measured: Mapping[FormName, float], errors: Mapping[FormName, float]
) -> Mapping[FormName, float]:
    """Return the divergence of a part in every form, from two that were measured.

    The divergence of a small change is proportional to its squared error, that of a large one isn't. So between the
    measured forms the power of the error is taken that goes through both, and beyond them the error's ratio to the
    finer one.

    Args:
        measured: Divergences of ``MEASURED_FORMS``.
        errors: Squared errors of all forms.
    """
    coarse, fine = MEASURED_FORMS
    found: dict[FormName, float] = {}
    for form, error in errors.items():
        ratio = error / errors[fine] if errors[fine] else 0.0
        if form in measured:
            found[form] = measured[form]
        elif ratio > 1 and error < errors[coarse] and min(measured.values()) > 0:
            power = math.log(ratio) / math.log(errors[coarse] / errors[fine])
            found[form] = measured[fine] * (measured[coarse] / measured[fine]) ** power
        else:
            found[form] = measured[fine] * ratio
    return found


@dataclass(frozen=True, slots=True)
class Measurements:
    """What an earlier run measured.

    Attributes:
        file: Its ``quantisation.json``.
        parts: Each part of the checkpoint.
        stored_perplexity: Of the checkpoint as it was, on the text.
        num_tokens: Predictions that were compared.
    """

    file: Path
    parts: Sequence[PartForms]
    stored_perplexity: float
    num_tokens: int

    def check(self, stored: Divergence) -> None:
        """Refuse those of other weights, or of another text: their perplexity differs.

        Args:
            stored: How the checkpoint as it is predicts the text.

        Raises:
            InvalidRequest: They are.
        """
        is_same = math.isclose(self.stored_perplexity, stored.perplexity, rel_tol=_SAME_PERPLEXITY)
        if self.num_tokens != stored.num_tokens or not is_same:
            raise _unusable(
                self.file,
                f"it was measured on other weights or another text: perplexity {self.stored_perplexity:.6g} over "
                f"{self.num_tokens} predictions, here {stored.perplexity:.6g} over {stored.num_tokens}",
            )


def read_measurements(file: Path, parts: Sequence[Part]) -> Measurements:
    """Read the ``quantisation.json`` of an earlier run over the same checkpoint.

    Args:
        file: The file.
        parts: The parts of the checkpoint.

    Raises:
        InvalidRequest: The file can't be read, or isn't of this model.
    """
    content = _content(file)
    try:
        stored_perplexity = float(content["measured"]["stored_perplexity"])
        num_tokens = int(content["measured"]["num_tokens"])
        by_name = {str(part["name"]): part for part in content["parts"]}
        found = [_part_forms(part, by_name[part.name]) for part in parts if part.name in by_name]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _unusable(file, f"it lacks what a quantisation writes ({error!r:.80})") from None
    if len(found) != len(parts) or len(by_name) != len(parts):
        other = sorted({part.name for part in parts} ^ by_name.keys())[0]
        raise _unusable(file, f"it is of another model: {other[:120]} is in one of the two only")
    return Measurements(file, found, stored_perplexity, num_tokens)


def _content(file: Path) -> Any:
    try:
        if (size := file.stat().st_size) > MAX_FILE_BYTES:
            raise _unusable(file, f"it has {size} bytes, at most {MAX_FILE_BYTES} are read")
        return json.loads(file.read_text())
    except OSError as error:
        raise _unusable(file, error.strerror or str(error)) from None
    except (ValueError, RecursionError):
        raise _unusable(file, "it isn't JSON") from None


def _part_forms(part: Part, written: Mapping[str, Any]) -> PartForms:
    divergences = {form: float(written["divergences"][form]) for form in KINDS}
    if written["num_weights"] != part.num_weights or not all(0 <= value < math.inf for value in divergences.values()):
        raise ValueError(f"{part.name[:120]} has other weights")
    return PartForms(part, divergences, [form for form in KINDS if form in written["measured"]])


def _unusable(file: Path, problem: str) -> InvalidRequest:
    return InvalidRequest(
        f"{file} holds no measurements of this checkpoint: {problem}. Name the quantisation.json of an earlier run "
        "over the same checkpoint and text, or leave out --measurements.",
        param="measurements",
    )
