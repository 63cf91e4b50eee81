"""Layer: torch's Module with cheaper calls, and methods that a backend may replace per instance.

A decode step of a small model spends as long in Python as in arithmetic, and a good part of that in ``Module.__call__``
(hooks, which nothing here uses) and ``Module.__getattr__`` (every look at a submodule or parameter).

The methods of a layer type are its definition in PyTorch. ``inference.modelling.backends`` puts faster forms in place
of some of them, as attributes of the instances; a form calls the type's own method for inputs that it can't serve.
"""

from __future__ import annotations

from typing import Any

from torch import nn


class Layer(nn.Module):
    """A module without hooks: calling it is calling ``forward`` of its type, which no backend replaces.

    Attributes:
        bfloat16_states: Names of the recurrent states that the layer's backend reads and writes in bfloat16 too; the
            others have to be float32.
    """

    bfloat16_states: frozenset[str] = frozenset()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "forward" in cls.__dict__:
            cls.__call__ = cls.forward  # type: ignore[method-assign]


def cache_attributes(network: nn.Module) -> None:
    """Make submodules and parameters ordinary attributes too; once all weights are in their final form.

    Registered ones are found only after Python's own lookup has failed, at several times the cost.
    """
    for module in network.modules():
        module.__dict__.update(module._modules)
        module.__dict__.update(module._parameters)
