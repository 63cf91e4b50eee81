"""Round matrices so that the errors of their columns make up for each other on a text (GPTQ).

Plain rounding takes each weight for itself. Here the inputs x of a matrix W are recorded over a text, and its columns
are rounded one after the other; what a column's rounding changes in W·x is taken up by the columns that aren't rounded
yet, as well as H = Σ x·xᵀ says that they can. Layers follow each other, so that the inputs of one are those that the
rounded layers before it give. Source: Frantar et al. 2022, https://arxiv.org/abs/2210.17323.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch.nn import functional

from inference.llm.quality import WindowRunner
from inference.modelling.layers.code_search import nearest_codes
from inference.modelling.layers.coded import Codes, quantise_to_codes
from inference.modelling.layers.linear import Linear
from inference.modelling.quantisation import OWN_FORMS, Form, FormName, is_quantisable
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.parts import Shape

DAMPINGS = (0.1, 1.0)
"""Shares of H's mean diagonal that are added to its diagonal, so that few inputs don't make it singular; the first that
does."""
BLOCK_COLUMNS = 128
"""Columns whose changes reach the later ones at once."""
CORRECTED_FORMS: tuple[FormName, ...] = ("int2", "int3", "int4", "int5", "int6")
"""Above 6 bits rounding changes too little to be worth the time."""


def correcting_bytes(spec: ModelSpec, num_tokens: int, dtype: torch.dtype) -> int:
    """Return the bytes that a correction takes besides the network: H of a layer's matrices, codes, residual stream.

    Args:
        spec: Specification of the network.
        num_tokens: Tokens of the text.
        dtype: dtype of the network.
    """
    matrices: dict[str, list[Shape]] = {}
    for name, shape in spec.parameter_shapes().items():
        if name.startswith("layers.") and len(shape) == 2 and is_quantisable(name, shape):
            matrices.setdefault(name.split(".")[1], []).append(shape)
    most = max(
        (4 * sum(shape[1] ** 2 for shape in layer) + max(map(rounding_bytes, layer)) for layer in matrices.values()),
        default=0,
    )
    # A byte for each code, of the chosen plan and of the one that is measured.
    codes = 2 * sum(math.prod(shape) for layer in matrices.values() for shape in layer)
    return most + codes + 3 * spec.hidden_size * num_tokens * dtype.itemsize


def rounding_bytes(shape: Shape) -> int:
    """Return the bytes that the rounding of a matrix takes at once, besides what was recorded."""
    outputs, inputs = shape
    square, whole = inputs**2, outputs * inputs
    # At first H as a mean, in order, damped, its root, its inverse, that one's root, and what checks it; then the mean,
    # the last root, and what is left of W with its scales and their inverses.
    return 4 * max(7 * square + whole, 2 * square + 5 * whole)


class _Recorder:
    """Stands in for a packed weight: multiplies, and adds the inputs' products up.

    Attributes:
        products: H (K, K) float32.
        num_rows: Inputs that it is a sum of.
    """

    nbytes = 0
    is_quantised = False

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight
        inputs = weight.shape[1]
        self.products = torch.zeros(inputs, inputs, device=weight.device)
        self.num_rows = 0

    def linear(self, hidden: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """(…, K) to (…, N)."""
        rows = hidden.reshape(-1, hidden.shape[-1]).float()
        self.products.addmm_(rows.T, rows)
        self.num_rows += len(rows)
        return functional.linear(hidden, self._weight, bias)

    def wide_linear(self, hidden: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The same in float32."""
        return self.linear(hidden, bias).float()


class Correction:
    """Rounds the matrices of a network's layers, and keeps their codes.

    Attributes:
        codes: Codes and scales of the corrected parameters, by name.

    Args:
        runner: Runs the network, whose weights aren't packed.
        windows: Token ids of each window of the text.
    """

    def __init__(self, runner: WindowRunner, windows: Sequence[Sequence[int]]) -> None:
        self._runner, self._network, self._windows = runner, runner.network, windows
        self.codes: dict[str, Codes] = {}

    def can_correct(self, parameter: str, form: FormName) -> bool:
        """Whether a parameter is a matrix of a layer, and the form has few enough bits."""
        path, _, leaf = parameter.rpartition(".")
        if leaf != "weight" or not path.startswith("layers.") or form not in CORRECTED_FORMS:
            return False
        module = self._network.get_submodule(path)
        return isinstance(module, Linear) and module.packed is None

    @contextmanager
    def applied(self, forms: Mapping[str, FormName]) -> Iterator[None]:
        """Give parameters their values with corrected errors, and restore their values at the end.

        Layers from the first one on that reads another layer's cache are rounded plainly: it holds one window.

        Args:
            forms: Of parameters that can be corrected.
        """
        network = self._network
        states, sources = network.states_by_layer(self._runner.states), network.spec.source_numbers()
        batches = [self._runner.batch(window) for window in self._windows]
        streams = [network.embed(batch) for batch in batches]
        before: dict[Linear, torch.Tensor] = {}
        self.codes = {}
        try:
            for number, (layer, state) in enumerate(zip(network.layers, states, strict=True)):
                linears = {
                    name: cast("Linear", network.get_submodule(name.rpartition(".")[0]))
                    for name in forms
                    if name.startswith(f"layers.{number}.")
                }
                if sources[number] != number:
                    streams = []
                with _recording(linears.values()) as recorders:
                    for stream, batch in zip(streams, batches, strict=False):
                        layer(stream.copy(), batch, state)
                for (name, linear), recorder in zip(linears.items(), recorders, strict=True):
                    before[linear] = linear.weight.data
                    self.codes[name] = _codes(linear.weight.data, recorder, OWN_FORMS[forms[name]])
                    linear.weight.data = self.codes[name].dense(linear.weight.dtype)
                for stream, batch in zip(streams, batches, strict=False):
                    layer(stream, batch, state)
            yield
        finally:
            for linear, weight in before.items():
                linear.weight.data = weight


def _codes(weight: torch.Tensor, recorder: _Recorder, form: Form) -> Codes:
    if not recorder.num_rows:
        return quantise_to_codes(weight, form)
    return corrected_codes(weight, recorder.products / recorder.num_rows, form)


@contextmanager
def _recording(linears: Iterable[Linear]) -> Iterator[list[_Recorder]]:
    found = list(linears)
    recorders = [_Recorder(linear.weight.data) for linear in found]
    try:
        for linear, recorder in zip(found, recorders, strict=True):
            linear.packed = recorder
        yield recorders
    finally:
        for linear in found:
            linear.packed = None


def corrected_codes(weight: torch.Tensor, products: torch.Tensor, form: Form) -> Codes:
    """Round a matrix column by column, those of the largest inputs first; plainly, if its inputs aren't finite.

    The scales are those of plain rounding, so the codes have groups of neighbours whatever the order was.

    Args:
        weight: (N, K).
        products: H (K, K), the mean of x·xᵀ.
        form: One without offsets.
    """
    plain = quantise_to_codes(weight, form)
    order = products.diagonal().argsort(descending=True, stable=True)
    factor = _inverse_factor(products[order][:, order])
    if factor is None:
        return plain
    inputs, device = weight.shape[1], weight.device
    stands_for = form.levels or range(-form.zero, (1 << form.bits) - form.zero)
    levels = torch.tensor(list(stands_for), dtype=torch.float32, device=device)
    scales = plain.scales.float().T[order // form.group]
    inverses = torch.where(scales == 0, 0.0, 1.0 / scales)
    # From here on a column is a row, so that its values are neighbours.
    left, codes = weight.float().T[order].contiguous(), torch.empty_like(weight.T, dtype=torch.uint8)
    for begin in range(0, inputs, BLOCK_COLUMNS):
        end = min(inputs, begin + BLOCK_COLUMNS)
        errors = torch.empty(end - begin, weight.shape[0], device=device)
        for column in range(begin, end):
            found = nearest_codes(left[column] * inverses[column], form)
            codes[order[column]] = found
            error = (left[column] - levels[found.int()] * scales[column]) / factor[column, column]
            errors[column - begin] = error
            left[column + 1 : end] -= torch.outer(factor[column, column + 1 : end], error)
        left[end:] -= factor[begin:end, end:].T @ errors
    return Codes(codes.T.contiguous(), plain.scales, None, form)


def _inverse_factor(products: torch.Tensor) -> torch.Tensor | None:
    """Return the upper U of H⁻¹ = Uᵀ·U, whose row i says what column i's error does to those behind it.

    None: H is no product of finite inputs.
    """
    mean = products.diagonal().mean()
    for damping in DAMPINGS:
        damped = products.clone()
        diagonal = damped.diagonal()
        diagonal[diagonal == 0] = torch.where(mean > 0, mean, torch.ones_like(mean))  # inputs that are always 0
        diagonal += damping * mean
        lower, problem = torch.linalg.cholesky_ex(damped)
        if problem:
            continue
        factor: torch.Tensor
        factor, problem = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
        if not problem and bool(factor.isfinite().all()):
            return factor
    return None
