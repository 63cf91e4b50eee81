"""Phi-3 and Phi-4-mini: Llama with fused projections, partial rotation and LongRoPE.

Source: https://arxiv.org/abs/2404.14219, and the published files.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.attention_decoder import AttentionDecoder
from inference.modelling.families.checks import IgnoredTensors
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import LLAMA_LIKE, Table, used
from inference.modelling.families.config_keys import Only
from inference.modelling.families.config_values import rms_norm
from inference.modelling.families.windows import sliding_window
from inference.modelling.spec import ModelSpec

CONFIG_KEYS: Mapping[str, Table] = {
    "phi3": {
        **LLAMA_LIKE,
        **used("sliding_window"),
        "full_attn_mod": Only((1,), "all layers attend alike"),
        "interpolate_factor": Only((1,), "positions are whole numbers"),
        "lm_head_bias": Only((False,), "the head has no bias"),
    },
}  # fmt: skip

ROPE_TYPES = {"su": "longrope", "yarn": "longrope"}
"""Names that early Phi-3 files give to longrope; the family never had YaRN proper."""
TRAINED_CONTEXT = 4096
"""``original_max_position_embeddings`` of a config that doesn't mention it."""


def build_spec(
    view: CheckpointView, model_type: str = "phi3", *, ignored: tuple[IgnoredTensors, ...] = ()
) -> ModelSpec:
    """The spec of a model of this type; ``ignored``: tensors that aren't the text model's."""
    decoder = AttentionDecoder.read(view)
    return decoder.spec(
        model_type,
        norm=rms_norm(view, default=1e-5),
        ropes=decoder.rope(default_partial=1.0, renamed_types=ROPE_TYPES, default_original=TRAINED_CONTEXT),
        windows=(sliding_window(view),) * decoder.layout.num_layers,
        ignored=ignored,
    )
