"""Small networks of one layer, with the decays that a test chooses."""

from __future__ import annotations

import torch

from bench.gpu_models import random_network
from inference.llm.quality import WindowRunner
from inference.modelling.backends.backend import Backend
from inference.modelling.spec import LayerSpec, MixerSpec, ModelSpec
from inference.modelling.specs.parts import NormSpec

NORM = NormSpec("rms", 1e-5)
HIDDEN, VOCAB = 32, 61


def runner_of(*mixers: MixerSpec, length: int = 40) -> WindowRunner:
    """A network with a layer for each mixer, random weights, in float32."""
    layers = tuple(LayerSpec(mixer, NORM) for mixer in mixers)
    spec = ModelSpec("huggingface", "test", HIDDEN, VOCAB, 128, layers, NORM)
    network = random_network(spec, "cpu", torch.float32, 3)
    Backend(torch.device("cpu"), torch.float32).bind(network)
    return WindowRunner(network, length, "float32", "cpu")


def token_ids(count: int) -> list[int]:
    return torch.randint(0, VOCAB, (count,), generator=torch.Generator().manual_seed(5)).tolist()
