"""Mistral Small 4: DeepSeek-V3's layers with softmax scores, and queries scaled by position.

Source: transformers' ``mistral4``, also for what config.json may leave out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from inference.errors import TensorShapeMismatch
from inference.modelling.families.config import CheckpointConfig, CheckpointView
from inference.modelling.families.config_key_tables import Table, used
from inference.modelling.families.deepseek import DENSE, Variant, latent_decoder
from inference.modelling.families.grouped_moe import GROUPED_MOE
from inference.modelling.families.llama import GROWING_ROPE, MINISTRAL3_ROPE, undescribed_rope
from inference.modelling.families.rope_config import described_rope, read_query_growth
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.latent import MLASpec

CONFIG_KEYS: Mapping[str, Table] = {
    "mistral4": {
        **DENSE,
        **GROUPED_MOE,
        **used("rope_interleave"),
        "rope_parameters": MINISTRAL3_ROPE,
        "rope_scaling": MINISTRAL3_ROPE,
    }
}

ROPE: Mapping[str, Any] = {
    **GROWING_ROPE, "rope_theta": 10_000.0, "factor": 128.0, "original_max_position_embeddings": 8192,
}  # fmt: skip
"""The rotation of a config.json that describes none."""
SHARE = "partial_rotary_factor"


def build_spec(view: CheckpointView) -> ModelSpec:
    rope = described_rope(view.config)
    if rope is None:
        rope = undescribed_rope(view, ROPE)
    share = None
    if isinstance(rope, Mapping):  # the share of a head that rotates is in the shapes, too
        share = CheckpointConfig(rope).number(SHARE, low=0.0, high=1.0) if rope.get(SHARE) is not None else None
        whole = {key: value for key, value in rope.items() if key != SHARE}
        view = view.changed(rope_parameters=whole, rope_scaling=None)
    growth = read_query_growth(view.config)

    def attention(number: int, spec: MLASpec) -> MLASpec:
        _check_share(spec, share)
        return replace(spec, query_growth=growth)

    return latent_decoder(view, "mistral4", lambda layout, norm: Variant(attention))


def _check_share(spec: MLASpec, share: float | None) -> None:
    """Compare config.json's share of a head that rotates with the shapes.

    Raises:
        TensorShapeMismatch: It states another.
    """
    found = spec.qk_rope_head_dim / (spec.qk_nope_head_dim + spec.qk_rope_head_dim)
    if share is not None and abs(share - found) > 1e-6:
        raise TensorShapeMismatch(
            f"config.json says {SHARE} {share:g}, but the tensors have {found:g}; correct config.json.",
            param=f"rope_parameters.{SHARE}",
        )
