"""ScalingClassifier: how much of each of its adapters an X-LoRA gives to a token.

The arithmetic is that of PEFT, https://github.com/huggingface/peft (tuners/xlora), after https://arxiv.org/abs/2402.07148.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from inference.modelling.lora.xlora_plan import XLoraPlan


class ScalingClassifier:
    """An X-LoRA's classifier, in float32.

    Args:
        plan: Of the X-LoRA.
        read: Reads a tensor of the classifier's file.
        device: Of the network.
    """

    def __init__(self, plan: XLoraPlan, read: Callable[[str], torch.Tensor], device: torch.device) -> None:
        self._config = plan.config
        self._shape = (plan.num_scaled, len(plan.adapters))

        def copied(name: str) -> torch.Tensor:
            return read(name).to(device, torch.float32, copy=True)

        self._linears = [
            (copied(linear.weight), None if linear.bias is None else copied(linear.bias)) for linear in plan.classifier
        ]

    @property
    def nbytes(self) -> int:
        """Memory of the matrices."""
        return sum(part.nbytes for linear in self._linears for part in linear if part is not None)

    @property
    def reads_adapted_rows(self) -> bool:
        """Whether the rows that it reads are computed with the adapters, and not by the base alone."""
        return self._config.pass_value != 0

    def first_scalings(self, count: int) -> torch.Tensor:
        """(count, modules, adapters) scalings of the pass whose rows ``scalings`` reads."""
        device = self._linears[0][0].device
        return self._chosen(torch.full((count, *self._shape), self._config.pass_value, device=device))

    def scalings(self, hidden: torch.Tensor) -> torch.Tensor:
        """(n, h) rows behind the final norm to (n, modules, adapters) float32."""
        config, values = self._config, hidden.float()
        for number, (weight, bias) in enumerate(self._linears):
            if number and config.has_relu:
                values = values.relu()
            values = functional.linear(values, weight, bias)
        values = values.view(len(values), *self._shape)
        if config.has_softmax:
            values = torch.softmax(values / config.temperature, dim=-1)
        return self._chosen(values)

    def _chosen(self, values: torch.Tensor) -> torch.Tensor:
        """Scalings of the adapters that each token goes through; those of the others are 0."""
        config = self._config
        if config.top_k is not None:
            chosen = torch.topk(values, config.top_k, dim=-1).indices
            values = values * torch.zeros_like(values).scatter_(-1, chosen, 1.0)
        if config.has_topk_softmax:
            is_out = values == 0
            values = torch.softmax(values.masked_fill(is_out, float("-inf")), dim=-1).masked_fill(is_out, 0.0)
        return values * config.weight
