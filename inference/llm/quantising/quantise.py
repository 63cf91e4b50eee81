"""Quantise a checkpoint by measurement: measure every matrix, plan within a limit, measure the plan, write it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from inference.engine.device import on_device
from inference.engine.model_runner import TORCH_DTYPES
from inference.errors import InvalidRequest
from inference.host.units import format_bytes
from inference.llm.checkpoint_writing import SHARD_BYTES, SourceFiles, check_target
from inference.llm.quality import WindowRunner
from inference.llm.quantising.correcting import Correction, correcting_bytes
from inference.llm.quantising.measurements import (
    MEASURED_FORMS,
    Measurements,
    PartForms,
    derive_divergences,
    read_measurements,
)
from inference.llm.quantising.measuring import Divergence, Measurement, measuring_bytes
from inference.llm.quantising.parts import KINDS, Part, find_parts, fixed_bytes
from inference.llm.quantising.planning import STORED, Choice, Plan, Planner
from inference.llm.quantising.source import SourceTensors
from inference.llm.quantising.writing import write_checkpoint
from inference.llm.sizes import free_memory_bytes
from inference.modelling.backends.backend import choose_backend
from inference.modelling.layers.coded import Codes
from inference.modelling.quantisation import OWN_FORMS, FormName
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.parts import Dtype
from inference.modelling.weights.loader import load_network

Progress = Callable[[float, str], None]

CURVE_POINTS = 6
_SEARCH_STEPS = 7
_LOADED, _MEASURED, _PLANNED = 0.05, 0.65, 0.95
"""Shares of the work that are done after each phase."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Limits of a plan: a size, a divergence, or both.

    Attributes:
        size_bytes: Maximum bytes of the weights' file.
        max_kl: Highest mean KL divergence on the text, in nats.
    """

    size_bytes: int | None = None
    max_kl: float | None = None


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One measured plan.

    Attributes:
        size_bytes: Of the weights' file.
        mean_kl: Measured, in nats.
        predicted_kl: Sum of the divergences of its parts.
        form: Of all parts, where they have the same one; empty: mixed forms.
    """

    size_bytes: int
    mean_kl: float
    predicted_kl: float
    form: str = ""


@dataclass(frozen=True, slots=True)
class Quantised:
    """The result.

    Attributes:
        plan: The forms.
        divergence: Of the whole plan, measured.
        plain: Of the whole plan without correction.
        stored: Of the checkpoint as it was.
        curve: Measured plans, the smallest first.
        size_bytes: Of the written weights.
        bits_per_weight: Of the whole file.
    """

    plan: Plan
    divergence: Divergence
    plain: Divergence
    stored: Divergence
    curve: Sequence[CurvePoint]
    size_bytes: int
    bits_per_weight: float


def _no_report(share: float, detail: str) -> None:
    """Ignore the progress."""


def quantise_checkpoint(
    spec: ModelSpec,
    weight_files: Sequence[Path],
    source: SourceFiles,
    target: Path,
    token_ids: Sequence[int],
    limit: Limit,
    *,
    text: str,
    window: int,
    calibration: Sequence[int] = (),
    device: str = "cpu",
    dtype: Dtype = "float32",
    shard_bytes: int = SHARD_BYTES,
    with_curve: bool = True,
    measurements: Path | None = None,
    progress: Progress = _no_report,
) -> Quantised:
    """Write ``target`` with mixed forms that keep a limit.

    Args:
        spec: Specification of the checkpoint.
        weight_files: Its safetensors files, or the parts of its GGUF file.
        source: Its headers, and the files that are copied.
        target: New, or an empty directory.
        token_ids: The text to measure on; at least two tokens.
        limit: Limits of the plan.
        text: Description of the text, for the figures.
        window: Tokens that are predicted from one empty state.
        calibration: Another text, over which errors of rounding make up for each other; empty: they don't.
        device: Device that measures, in ``dtype``.
        shard_bytes: Most bytes of the tensors in one file.
        with_curve: Measure plans of other sizes too, which takes most of the time.
        measurements: ``quantisation.json`` of an earlier run over checkpoint and text; None: measure each matrix.
        progress: Called with the share done and a description of the present work.

    Raises:
        InvalidRequest: The limit can't be kept, the target can't be written, or the measurements are of other weights.
        CheckpointError: The checkpoint can't be quantised.
    """
    tensors = SourceTensors(spec, weight_files, source)
    parts, fixed, earlier = _checked_parts(spec, tensors, limit, target, measurements)
    windows = windows_of(token_ids, window)
    _check_memory(spec, len(token_ids), len(calibration), dtype, device)
    progress(0.0, "loading")
    with on_device(torch.device(device)), torch.inference_mode():
        runner = _loaded(spec, weight_files, window, dtype, device)
        measurement = Measurement(runner, choose_backend(device, TORCH_DTYPES[dtype]), windows)
        measured = _measured_parts(measurement, parts, earlier, progress)
        correction = Correction(runner, windows_of(calibration, window)) if calibration else None
        trials = _Trials(Planner(_choices(measured), fixed), measurement, parts, limit, correction, progress)
        found, codes = trials.result(spec.num_parameters(), with_curve)
        check_target(target, found.plan.size_bytes)
        size = write_checkpoint(
            target, source, tensors, spec, trials.named_forms(found.plan),
            partial(_values_of, dict(runner.network.named_parameters())), codes=codes,
            measured=_figures(found, text), plan=_plan_file(measured, found, text, limit), shard_bytes=shard_bytes,
        )  # fmt: skip
    progress(1.0, "")
    return replace(found, size_bytes=size)


def _loaded(spec: ModelSpec, weight_files: Sequence[Path], window: int, dtype: Dtype, device: str) -> WindowRunner:
    network = load_network(spec, weight_files, dtype=TORCH_DTYPES[dtype], device=device)
    return WindowRunner(network, window, dtype, device)


def _values_of(parameters: Mapping[str, torch.nn.Parameter], name: str) -> torch.Tensor:
    return parameters[name].data


def split_text(token_ids: Sequence[int], num_measured: int) -> tuple[Sequence[int], Sequence[int]]:
    """Return the tokens to measure on, and those to correct on; of a short text, two thirds are corrected on."""
    measured = min(num_measured, max(len(token_ids) // 3, 2))
    return token_ids[:measured], token_ids[measured:] if len(token_ids) - measured > 1 else ()


def windows_of(token_ids: Sequence[int], window: int) -> list[Sequence[int]]:
    """Cut a text into windows of at least two tokens.

    Raises:
        InvalidRequest: The text has fewer.
    """
    windows = [token_ids[at : at + window] for at in range(0, len(token_ids), window)]
    windows = [one for one in windows if len(one) > 1]
    if not windows:
        raise InvalidRequest(
            f"the text has {len(token_ids)} tokens, at least 2 are needed to predict one; read a longer --text.",
            param="text",
        )
    return windows


def _checked_parts(
    spec: ModelSpec, tensors: SourceTensors, limit: Limit, target: Path, measurements: Path | None
) -> tuple[Sequence[Part], int, Measurements | None]:
    """Return the parts, the bytes of what isn't rounded, and what an earlier run measured.

    Raises:
        InvalidRequest: No plan keeps the limit, the smallest one can't be written to the target, or the measurements
            are of another model.
    """
    fixed = fixed_bytes(parts := find_parts(spec, tensors.tensors), tensors.tensors)
    smallest = fixed + sum(min(part.sizes[KINDS[0]], part.stored_bytes) for part in parts)
    if limit.size_bytes is not None and limit.size_bytes < smallest:
        raise InvalidRequest(
            f"the weights can't be made smaller than {format_bytes(smallest)} ({smallest} bytes, every matrix in "
            f"{KINDS[0]}); {limit.size_bytes} bytes were asked for.",
            param="bytes",
        )
    check_target(target, smallest)
    return parts, fixed, None if measurements is None else read_measurements(measurements, parts)


def _check_memory(spec: ModelSpec, num_tokens: int, num_corrected: int, dtype: Dtype, device: str) -> None:
    needed_bytes = measuring_bytes(spec, num_tokens, TORCH_DTYPES[dtype])
    needed_bytes += correcting_bytes(spec, num_corrected, TORCH_DTYPES[dtype]) if num_corrected else 0
    free_bytes = free_memory_bytes(device)
    if needed_bytes > free_bytes:
        raise InvalidRequest(
            f"measuring on {num_tokens} tokens takes {format_bytes(needed_bytes)}, {device} has "
            f"{format_bytes(free_bytes)} free; allow fewer --tokens, or measure with --dtype bfloat16.",
            param="tokens",
        )


def _measured_parts(
    measurement: Measurement, parts: Sequence[Part], earlier: Measurements | None, report: Progress
) -> Sequence[PartForms]:
    """Find the divergence of every part in every form."""
    if earlier is not None:
        earlier.check(measurement.stored())
        return earlier.parts
    # What is computed for a part: the layers from its own on.
    costs = [measurement.num_layers - max(part.layer, 0) + 1 for part in parts]
    done, total, began = 0, sum(costs) * len(MEASURED_FORMS), time.monotonic()
    found = []
    for part, cost in zip(parts, costs, strict=True):
        measured: dict[FormName, float] = {}
        for form in MEASURED_FORMS:
            with measurement.rounded({part: form}):
                measured[form] = measurement.divergence(part.layer).mean_kl
            done += cost
            left = (time.monotonic() - began) / done * (total - done)
            share = _LOADED + (_MEASURED - _LOADED) * done / total
            report(share, f"measuring {part.name} in {form}, about {max(left, 1):.0f} s left")
        errors = {form: measurement.squared_error(part, form) for form in KINDS}
        found.append(PartForms(part, derive_divergences(measured, errors), MEASURED_FORMS))
    return found


def _choices(measured: Sequence[PartForms]) -> dict[str, list[Choice]]:
    """Return the forms that each part can have, and to stay as it is."""
    found: dict[str, list[Choice]] = {}
    for one in measured:
        part = one.part
        found[part.name] = [Choice(form, part.sizes[form], one.divergences[form]) for form in KINDS]
        found[part.name].append(Choice(STORED, part.stored_bytes, 0.0))
    return found


class _Trials:
    """Measure whole plans, each once.

    Args:
        planner: Makes the plans.
        measurement: Measures the network.
        parts: All parts.
        limit: Limits of the plan.
        correction: Corrects the errors of rounding; None: matrices are rounded plainly.
        report: Called with the share done.
    """

    def __init__(
        self,
        planner: Planner,
        measurement: Measurement,
        parts: Sequence[Part],
        limit: Limit,
        correction: Correction | None,
        report: Progress,
    ) -> None:
        self._planner, self._measurement, self._limit = planner, measurement, limit
        self._correction = correction
        self._parts = {part.name: part for part in parts}
        self._report = report
        self._found: dict[tuple[tuple[str, str], ...], tuple[Plan, Divergence]] = {}

    def forms_of(self, plan: Plan) -> dict[Part, FormName]:
        """Return the parts that a plan rounds, and their forms."""
        return {self._parts[name]: cast("FormName", form) for name, form in plan.forms.items() if form != STORED}

    def named_forms(self, plan: Plan) -> dict[str, FormName]:
        """Return the parameters that a plan rounds, by name, and their forms."""
        return {name: form for part, form in self.forms_of(plan).items() for name in part.parameters}

    def measure(self, plan: Plan) -> Divergence:
        """Return the divergence of a whole plan."""
        key = tuple(plan.forms.items())
        if key not in self._found:
            with self._applied(plan, self._correction):
                return self._measure_applied(plan)
        return self._found[key][1]

    def _measure_applied(self, plan: Plan) -> Divergence:
        """``measure`` of a plan whose values the network has already."""
        key = tuple(plan.forms.items())
        if key not in self._found:
            self._found[key] = plan, self._measurement.divergence(-1)
            share = _MEASURED + (_PLANNED - _MEASURED) * min(len(self._found) / (_SEARCH_STEPS + CURVE_POINTS), 1)
            self._report(share, f"measuring a plan of {format_bytes(plan.size_bytes)}")
        return self._found[key][1]

    def result(self, num_parameters: int, with_curve: bool) -> tuple[Quantised, Mapping[str, Codes]]:
        """Return the best plan with its figures, and the codes of its corrected matrices.

        Args:
            num_parameters: Of the checkpoint.
            with_curve: Measure plans of other sizes too.

        Raises:
            InvalidRequest: As ``choose``.
        """
        plan = self.choose()
        codes, plain = self._final_codes(plan)
        found, stored, bits = self.measure(plan), self._measurement.stored(), plan.size_bytes * 8 / num_parameters
        if with_curve:
            self._measure_other_sizes()
        self._report(_PLANNED, "writing")
        return Quantised(plan, found, plain, stored, self._curve(), plan.size_bytes, bits), codes

    def _final_codes(self, plan: Plan) -> tuple[Mapping[str, Codes], Divergence]:
        """Return the codes of a plan's corrected matrices, and its divergence without correction.

        There are none if plain rounding predicts better; ``measure`` gives its divergence then.
        """
        if self._correction is None:
            return {}, self.measure(plan)
        with self._applied(plan, None):
            plain = self._measurement.divergence(-1)
        with self._applied(plan, self._correction):
            corrected, codes = self._measure_applied(plan), dict(self._correction.codes)
        if plain.mean_kl <= corrected.mean_kl:
            self._found[tuple(plan.forms.items())] = plan, plain
            return {}, plain
        return codes, plain

    @contextmanager
    def _applied(self, plan: Plan, correction: Correction | None) -> Iterator[None]:
        """Give the network the values of a plan, and restore its own at the end."""
        forms_of = self.forms_of(plan)
        fixed = {
            name: form
            for name, form in self.named_forms(plan).items()
            if correction is not None and correction.can_correct(name, form)
        }
        others = {part: form for part, form in forms_of.items() if fixed.keys().isdisjoint(part.parameters)}
        with self._measurement.rounded(others), nullcontext() if correction is None else correction.applied(fixed):
            yield

    def choose(self) -> Plan:
        """Return the best plan within the limits.

        Raises:
            InvalidRequest: No plan is; the message names the best one.
        """
        size, max_kl = self._limit.size_bytes, self._limit.max_kl
        limits = [one for one in self._planner.limits() if size is None or one <= size]
        largest = self._planner.within(self._planner.max_bytes if size is None else size)
        assert largest is not None
        if max_kl is None:
            return largest
        if self.measure(largest).mean_kl > max_kl:
            raise InvalidRequest(
                f"a KL divergence of {max_kl:g} nats can't be kept within {size or largest.size_bytes} bytes: the best "
                f"plan of {format_bytes(largest.size_bytes)} has {self.measure(largest).mean_kl:.2e}. Allow more.",
                param="max_kl",
            )
        best = largest
        low, high = 0, len(limits) - 1
        while low <= high:  # the measured divergence falls with the bytes, but for noise
            middle = (low + high) // 2
            plan = self._planner.within(limits[middle])
            assert plan is not None
            if self.measure(plan).mean_kl <= max_kl:
                best, high = plan, middle - 1
            else:
                low = middle + 1
        return best

    def _measure_other_sizes(self) -> None:
        """Measure plans up to the checkpoint's own size, and those with one form for all parts."""
        stored = self._planner.uniform(STORED).size_bytes
        smallest, largest = self._planner.min_bytes, min(self._planner.uniform(KINDS[-1]).size_bytes, stored)
        for step in range(CURVE_POINTS):
            plan = self._planner.within(smallest + (largest - smallest) * step // (CURVE_POINTS - 1))
            if plan is not None:
                self.measure(plan)
        for plan in map(self._planner.uniform, KINDS):
            if plan.size_bytes < stored:
                self.measure(plan)

    def _curve(self) -> list[CurvePoint]:
        """Return all measured plans, the smallest first."""
        points = [_curve_point(plan, divergence) for plan, divergence in self._found.values()]
        return sorted(points, key=lambda point: point.size_bytes)


def _curve_point(plan: Plan, divergence: Divergence) -> CurvePoint:
    forms = set(plan.forms.values())
    return CurvePoint(plan.size_bytes, divergence.mean_kl, plan.predicted, forms.pop() if len(forms) == 1 else "")


def _figures(found: Quantised, text: str) -> dict[str, Any]:
    return {
        "mean_kl": found.divergence.mean_kl,
        "top1_agreement": found.divergence.top1_agreement,
        "perplexity": found.divergence.perplexity,
        "stored_perplexity": found.stored.perplexity,
        "num_tokens": found.divergence.num_tokens,
        "text": text,
        "bits_per_weight": found.bits_per_weight,
        "predicted_kl": found.plan.predicted,
        "plainly_rounded_kl": found.plain.mean_kl,
    }


def _plan_file(measured: Sequence[PartForms], found: Quantised, text: str, limit: Limit) -> dict[str, Any]:
    """Return the content of ``quantisation.json``."""
    return {
        "version": 1,
        "limit": asdict(limit),
        "measured": _figures(found, text),
        "curve": [asdict(point) for point in found.curve],
        "parts": [
            {
                "name": one.part.name,
                "form": found.plan.forms[one.part.name],
                "num_weights": one.part.num_weights,
                "divergences": dict(one.divergences),
                "measured": list(one.measured),
            }
            for one in measured
        ],
        "groups": {form: OWN_FORMS[form].group for form in KINDS},
    }
