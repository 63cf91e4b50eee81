"""Llama 3.2 that sees (Mllama), its text model: Llama 3's, between layers that do nothing without a picture.

Source: https://arxiv.org/abs/2407.21783, section 7, and transformers' ``mllama``, which skips those layers for text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from inference.errors import TensorShapeMismatch
from inference.modelling.families.attention_decoder import AttentionDecoder
from inference.modelling.families.checks import IgnoredTensors
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import DECODER, ROPE, Table, used
from inference.modelling.families.config_keys import Harmless
from inference.modelling.families.config_values import rms_norm
from inference.modelling.families.decoder_layout import DecoderLayout
from inference.modelling.families.text_part import around, text_part
from inference.modelling.spec import ModelSpec

TEXT: Table = {**DECODER, **ROPE, **used("cross_attention_layers"), "dropout": Harmless("training only")}
CONFIG_KEYS: Mapping[str, Table] = {"mllama": around(TEXT)}
SEEING = (3, 8, 13, 18, 23, 28, 33, 38)
"""transformers' default of the layers that attend to a picture."""
THETA = 500_000.0
CONTEXT = 131072
PICTURE_ROWS = 8
"""Of the embedding, behind those of the text's tokens; the head has none for them."""


def build_spec(view: CheckpointView) -> ModelSpec:
    view = text_part(view)
    decoder = AttentionDecoder.read(view, default_max_position_embeddings=CONTEXT, spare_rows=PICTURE_ROWS)
    seeing = _seeing(view, decoder.layout)
    left = "|".join(re.escape(decoder.layout.layer(number)) for number in seeing)
    own = tuple(number for number in range(decoder.layout.num_layers) if number not in seeing)
    layout = replace(decoder.layout, num_layers=len(own), numbers=own)
    return replace(decoder, layout=layout).spec(
        "mllama",
        norm=rms_norm(view, default=1e-5),
        ropes=decoder.rope(default_theta=THETA),
        ignored=(IgnoredTensors(re.compile(f"^({left})"), "layers that do nothing without a picture"),)
        if seeing
        else (),
    )


def _seeing(view: CheckpointView, layout: DecoderLayout) -> tuple[int, ...]:
    """The layers that attend to a picture.

    Raises:
        TensorShapeMismatch: config.json names others than the tensors.
    """
    names = (f"{layout.layer(number)}cross_attn.q_proj.weight" for number in range(layout.num_layers))
    found = tuple(number for number, name in enumerate(names) if name in view.tensors)
    stated = view.config.integers("cross_attention_layers")
    if "cross_attention_layers" not in view.config:
        stated = tuple(number for number in SEEING if number < layout.num_layers)
    if stated != found:
        raise TensorShapeMismatch(
            f"config.json says that layers {list(stated)[:20]} attend to a picture, the tensors say "
            f"{list(found)[:20]}.",
            param="cross_attention_layers",
        )
    view.facts.add("layers left out", len(found), "they attend to a picture, and do nothing without one")
    return found
