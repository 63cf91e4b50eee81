"""GLM-5: DeepSeek-V3.2's layers, some of which see the keys that an earlier one chose.

Source: transformers' ``glm_moe_dsa``, also for what config.json may leave out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import Table, harmless, used
from inference.modelling.families.config_keys import Only
from inference.modelling.families.decoder_layout import DecoderLayout
from inference.modelling.families.deepseek import SPARSE, Variant, latent_decoder
from inference.modelling.families.shared_choice import TYPE_KEYS, choice_sources, scheduled_types, unused_indexers
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.indexer import IndexerSpec
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.parts import NormSpec

PAIRS = Only((True,), "adjacent pairs are rotated")
CONFIG_KEYS: Mapping[str, Table] = {
    "glm_moe_dsa": {
        **SPARSE,
        **used(*TYPE_KEYS),
        **harmless("of a layer that drafts", "index_share_for_mtp_iteration"),
        **harmless("up to rounding", "moe_router_dtype"),
        "rope_interleave": PAIRS,
        "indexer_rope_interleave": PAIRS,
    }
}


def build_spec(view: CheckpointView) -> ModelSpec:
    def variant(layout: DecoderLayout, norm: NormSpec) -> Variant:
        sources = choice_sources(view, layout, scheduled_types(view, layout.num_layers))

        def attention(number: int, spec: MLASpec) -> MLASpec:
            assert isinstance(spec.indexer, IndexerSpec)
            assert spec.rope is not None
            if number < layout.num_layers and sources[number] is not None:
                return replace(spec, indexer=None, choice_source=sources[number])
            return replace(spec, indexer=replace(spec.indexer, rope=spec.rope))

        return Variant(attention=attention, ignored=unused_indexers(layout, sources))

    return latent_decoder(view, "glm_moe_dsa", variant)
