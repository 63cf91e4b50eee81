"""GPT (the first): GPT-2 with its norms behind the sums, so that each mixer reads a normed stream and adds to it.

Source: https://openai.com/index/language-unsupervised/, and transformers' ``openai``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from inference.modelling.families.attention_decoder import AttentionDecoder
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import GPT, Table, used
from inference.modelling.families.config_values import activation, check_size, layer_norm
from inference.modelling.families.decoder import Positions, norm_sources
from inference.modelling.families.gpt2 import GPT2, MASKS
from inference.modelling.families.prediction_head import HeadLayer
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.parts import prefixed

CONFIG_KEYS: Mapping[str, Table] = {
    "openai-gpt": {
        **{key: rule for key, rule in GPT.items() if key not in ("activation_function", "n_inner")},
        **used("afn"),
    }
}


def build_spec(view: CheckpointView) -> ModelSpec:
    decoder = AttentionDecoder.read(
        view,
        replace(GPT2, norms={"channel_norm": "ln_1"}),
        prefixes=("transformer.", ""),
        embeddings=("tokens_embed.weight",),
        layers="h.",
        tied_by_default=True,
        default_max_position_embeddings=512,
    )
    layout, norm = decoder.layout, layer_norm(view, "layer_norm_epsilon")
    check_size(view, layout.hidden_size, f"columns of {layout.embedding}", "n_embd")

    def adapt(number: int, layer: HeadLayer) -> HeadLayer:
        """The norm behind a layer is the one before the next layer's attention."""
        spec, sources = replace(layer[0], replaces_stream=True), layer[1]
        if not number:
            return spec, sources
        before = norm_sources(norm, f"{layout.layer(number - 1)}ln_2")
        return replace(spec, token_norm=norm), {**sources, **prefixed("token_norm", before)}

    act = activation(view, "afn", default="gelu")
    return decoder.spec(
        "openai-gpt",
        norm=norm,
        ropes=None,
        act="gelu_tanh" if act == "gelu" else act,
        gated=False,
        adapt=adapt,
        ignored=(MASKS,),
        final_norm_name=f"h.{layout.num_layers - 1}.ln_2",
        positions=Positions(f"{layout.prefix}positions_embed.weight"),
    )
