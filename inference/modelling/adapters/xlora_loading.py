"""Read the files of an X-LoRA: each adapter as it is read alone, and the classifier."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from inference.errors import UnsupportedFormat
from inference.modelling.adapters.deltas import ModuleDelta
from inference.modelling.adapters.factors import check_finite
from inference.modelling.adapters.loading import LoadedAdapter, load_adapter
from inference.modelling.adapters.scaling_classifier import ScalingClassifier
from inference.modelling.lora.xlora_plan import XLoraPlan
from inference.modelling.weights.files import TensorFiles


def load_xlora(plan: XLoraPlan, paths: Sequence[Path], network: nn.Module) -> LoadedAdapter:
    """Read an X-LoRA for a network.

    Args:
        plan: Checked against the network's spec.
        paths: The classifier's safetensors file, then that of each adapter.
        network: The base, loaded.

    Raises:
        CheckpointError: A file is broken, or an adapter changes a module of a kind that isn't adapted per request.
    """
    deltas: dict[str, ModuleDelta] = defaultdict(ModuleDelta)
    for adapter, path in zip(plan.adapters, paths[1:], strict=True):
        for name, delta in load_adapter(adapter, path, network).deltas.items():
            if delta.whole is not None or delta.offset is not None:
                part = name if delta.whole is not None else f"the bias of {name}"
                raise UnsupportedFormat(
                    f"an adapter of the X-LoRA ({path.parent.name}) replaces {part}, which can't be scaled token by "
                    "token; train it without that.",
                    param=name,
                )
            deltas[name].terms += delta.terms
    names = [name for linear in plan.classifier for name in (linear.weight, linear.bias) if name is not None]
    with TensorFiles([paths[0]], [names]) as files, torch.inference_mode():
        files.move()
        device = next(network.parameters()).device
        classifier = ScalingClassifier(plan, lambda name: check_finite(name, files.read(name)), device)
    num_bytes = sum(delta.nbytes for delta in deltas.values()) + classifier.nbytes
    return LoadedAdapter(dict(deltas), is_eager=True, num_bytes=num_bytes, classifier=classifier)
