"""Tiny checkpoints in each quantised format, with a twin that holds the same values in float32."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import PretrainedConfig

from tests.inference.modelling.encodings.formats import Format
from tests.inference.modelling.huggingface import make_checkpoint, read_config

LINEAR = re.compile(r"\.(?:\w+_proj|w[123]|w(?:q_a|q_b|kv|gate|o_a|o_b))\.weight$")
"""Names of the matrices that quantising programs take: projections, not routers, embeddings or heads."""


def write_pair(
    config: PretrainedConfig,
    directory: Path,
    form: Format,
    *,
    side_file: str = "",
    changes: Mapping[str, Any] | None = None,
) -> tuple[Path, Path]:
    """Write a quantised checkpoint and its twin.

    Args:
        config: Of the model.
        directory: Where both go.
        form: What the matrices are stored in.
        side_file: Where the quantisation is stated; empty: in config.json.
        changes: Of what is stated.

    Returns:
        Directories of the quantised checkpoint and of the twin.
    """
    twin, _ = make_checkpoint(config, directory / "twin")
    plain = load_file(twin / "model.safetensors")
    rng = np.random.default_rng(0)
    stored: dict[str, torch.Tensor] = {}
    for name, tensor in plain.items():
        if not LINEAR.search(name):
            stored[name] = tensor
            continue
        made, values = form.make(rng, *tensor.shape)
        stored |= {name.removesuffix("weight") + leaf: part for leaf, part in made.items()}
        plain[name] = torch.from_numpy(values)
    quantised = directory / "quantised"
    quantised.mkdir()
    save_file(plain, twin / "model.safetensors", metadata={"format": "pt"})
    save_file(stored, quantised / "model.safetensors", metadata={"format": "pt"})
    stated = {**form.config, **(changes or {})}
    whole = read_config(twin) | ({} if side_file else {"quantization_config": stated})
    (quantised / "config.json").write_text(json.dumps(whole))
    if side_file:
        (quantised / side_file).write_text(json.dumps(stated))
    return quantised, twin
