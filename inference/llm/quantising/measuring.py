"""Measure the divergence of a network's predictions while some of its matrices hold rounded values.

The network computes in float32, so that the divergence of one matrix isn't lost in the rounding of activations. The
residual stream that enters each layer is kept, so a changed layer is computed from there on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch

from inference.errors import InvalidRequest
from inference.llm.quality import WindowRunner, row_slices
from inference.llm.quantising.parts import Part
from inference.modelling.backends.backend import Backend
from inference.modelling.forward_batch import ForwardBatch
from inference.modelling.layers.coded import rounded_to_form
from inference.modelling.quantisation import GROUP_SIZES, OWN_FORMS, FormName, is_quantisable
from inference.modelling.residual_stream import ResidualStream
from inference.modelling.spec import ModelSpec

REFERENCE_BYTES = 512 << 20
"""Maximum bytes of the unchanged network's log-probabilities; of longer texts every n-th position is compared."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """How a changed network predicts.

    Attributes:
        mean_kl: Mean KL divergence from the unchanged network's distribution, in nats.
        top1_agreement: Share of positions at which both have the same argmax.
        perplexity: exp of the mean negative log-likelihood of the text's own next token.
        num_tokens: Positions that were compared.
    """

    mean_kl: float
    top1_agreement: float
    perplexity: float
    num_tokens: int


@dataclass(slots=True)
class _Window:
    """A window of the text, with the states of the unchanged network.

    Attributes:
        batch: The window as a step.
        rows: Positions that are compared.
        targets: Next token of the text at each of them.
        streams: Input of each layer; the last one is the input of the final norm.
        log_probs: Log-probabilities at the compared positions.
    """

    batch: ForwardBatch
    rows: torch.Tensor
    targets: torch.Tensor
    streams: list[ResidualStream]
    log_probs: torch.Tensor


def measuring_bytes(spec: ModelSpec, num_tokens: int, dtype: torch.dtype) -> int:
    """Return the bytes that a measurement keeps: weights, the inputs of all layers, and log-probabilities.

    A measured plan may round every matrix, and the values that are restored behind it are kept meanwhile.

    Args:
        spec: Specification of the network.
        num_tokens: Tokens of the text.
        dtype: dtype that the network is measured in.
    """
    # An input is the residual stream and the result that is still to be added to it.
    inputs = 2 * spec.hidden_size * (len(spec.layers) + 1) * num_tokens
    log_probs = min(REFERENCE_BYTES, 4 * spec.vocab_size * num_tokens)
    shapes = spec.parameter_shapes().items()
    rounded = sum(math.prod(shape) for name, shape in shapes if is_quantisable(name, shape))
    return (spec.num_parameters() + rounded + inputs) * dtype.itemsize + log_probs


class Measurement:
    """Measure divergences of one network over one text.

    Args:
        runner: Runs the unchanged network, whose weights aren't packed.
        backend: Backend of the network, which quantises.
        windows: Token ids of each window, at least two.

    Raises:
        InvalidRequest: The predictions of the unchanged network hold NaN or infinity.
    """

    def __init__(self, runner: WindowRunner, backend: Backend, windows: Iterable[Sequence[int]]) -> None:
        self._runner, self._network, self._backend = runner, runner.network, backend
        self._parameters = dict(self._network.named_parameters())
        windows = list(windows)
        count = sum(len(window) - 1 for window in windows)
        step = max(1, math.ceil(count * self._network.spec.vocab_size * 4 / REFERENCE_BYTES))
        self._windows = [self._reference(window, step) for window in windows]

    @property
    def num_layers(self) -> int:
        """Number of layers of the network."""
        return len(self._network.layers)

    def stored(self) -> Divergence:
        """Compare the unchanged network with itself."""
        return self.divergence(self.num_layers)

    @contextmanager
    def rounded(self, forms: Mapping[Part, FormName]) -> Iterator[None]:
        """Give parts the values that they have in a form, and restore their values at the end."""
        before: dict[str, torch.Tensor] = {}
        try:
            for part, form in forms.items():
                for name in part.parameters:
                    parameter = self._parameters[name]
                    before[name] = parameter.data
                    parameter.data = self.rounded_values(parameter.data, form)
            yield
        finally:
            for name, values in before.items():
                self._parameters[name].data = values

    def rounded_values(self, weight: torch.Tensor, form: FormName) -> torch.Tensor:
        """Return the values of a weight, or of a stack of weights, in a form."""
        if form not in GROUP_SIZES:
            return rounded_to_form(weight, OWN_FORMS[form])
        packed = self._backend.quantise(weight, form)
        if weight.dim() == 2:
            return cast("torch.Tensor", packed.dense(weight.dtype))  # type: ignore[union-attr]
        matrices = [packed.matrix(number).dense(weight.dtype) for number in range(weight.shape[0])]  # type: ignore[union-attr]
        return torch.stack(matrices)

    def squared_error(self, part: Part, form: FormName) -> float:
        """Return the sum of the squared differences between a part's values and those in a form."""
        total = 0.0
        for name in part.parameters:
            weight = self._parameters[name].data
            total += float((self.rounded_values(weight, form) - weight).square().sum(dtype=torch.float64))
        return total

    def divergence(self, first_layer: int) -> Divergence:
        """Compare the network as it is now with the unchanged one.

        Args:
            first_layer: The first one that may have changed; -1: the embedding too; the number of layers: the head.
        """
        divergence = loss = 0.0
        agreed = count = 0
        for window in self._windows:
            hidden = self._hidden(window, first_layer)[window.rows]
            for part in row_slices(len(hidden), self._network.spec.vocab_size):
                found = self._network.compute_logits(hidden[part]).log_softmax(-1)
                exact, targets = window.log_probs[part], window.targets[part]
                divergence += float((exact.exp() * (exact - found)).sum(dtype=torch.float64))
                loss -= float(found.gather(1, targets.unsqueeze(1)).sum(dtype=torch.float64))
                agreed += int((found.argmax(1) == exact.argmax(1)).sum())
                count += len(targets)
        perplexity = math.exp(loss / count) if loss / count < 700 else math.inf
        return Divergence(max(divergence, 0.0) / count, agreed / count, perplexity, count)

    def _hidden(self, window: _Window, first_layer: int) -> torch.Tensor:
        network = self._network
        states = network.states_by_layer(self._runner.states)
        # The states of earlier layers are those of another window, so the run begins with the first one that is read.
        first = network.spec.first_needed(max(first_layer, 0))
        stream = network.embed(window.batch) if first_layer < 0 else window.streams[first].copy()
        for layer, state in zip(network.layers[first:], states[first:], strict=True):
            layer(stream, window.batch, state)
        return network.finish(stream)

    def _reference(self, tokens: Sequence[int], step: int) -> _Window:
        network, batch = self._network, self._runner.batch(tokens[:-1])
        stream = network.embed(batch)
        streams = [stream.copy()]
        for layer, state in zip(network.layers, network.states_by_layer(self._runner.states), strict=True):
            layer(stream, batch, state)
            streams.append(stream.copy())
        hidden = network.finish(stream)
        rows = torch.arange(0, len(tokens) - 1, step, device=hidden.device)
        targets = torch.tensor(tokens[1:], device=hidden.device)[rows]
        log_probs = network.compute_logits(hidden[rows]).log_softmax(-1)
        if not bool(log_probs.isfinite().all()):
            raise InvalidRequest(
                "the predictions of the stored weights hold NaN or infinity, so nothing can be compared with them; "
                "measure with --dtype float32, and check the weights.",
                param="dtype",
            )
        return _Window(batch, rows, targets, streams, log_probs)
