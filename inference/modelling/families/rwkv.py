"""RWKV-4: time mixing, a mean of all earlier values whose weights decay, then channel mixing; no attention.

Each block of the files is two layers here: both mixers keep a row of their own.

Source: https://arxiv.org/abs/2305.13048, the published RWKV/rwkv-4-* files and transformers' ``rwkv``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import COMMON, Table, harmless, used
from inference.modelling.families.config_keys import Harmless
from inference.modelling.families.config_values import check_size, layer_norm
from inference.modelling.families.decoder import decoder_spec, norm_sources
from inference.modelling.families.decoder_layout import read_layout
from inference.modelling.families.headers import matrix_shape
from inference.modelling.families.state_space import UNBOUNDED_POSITIONS
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.parts import NormSpec, prefixed
from inference.modelling.specs.rwkv import ChannelMixSpec, TimeMixSpec
from inference.modelling.specs.sources import Piece, Source, tensor

CONFIG_KEYS: Mapping[str, Table] = {
    "rwkv": {
        **COMMON,
        **used("attention_hidden_size", "intermediate_size", "layer_norm_epsilon"),
        **harmless("the recurrence has no limit", "context_length", "ctx_len"),
        "rescale_every": Harmless("halves the stream, for float16's range; only the eps of norms sees it"),
    },
}  # fmt: skip

FINAL_NORM_EPS = 1e-5
"""Whatever config.json says: transformers doesn't pass it on to this norm."""

TIME_NAMES = {
    "key_mix": "time_mix_key", "value_mix": "time_mix_value", "receptance_mix": "time_mix_receptance",
    "key_proj.weight": "key.weight", "value_proj.weight": "value.weight", "decay": "time_decay", "bonus": "time_first",
    "receptance_proj.weight": "receptance.weight", "out_proj.weight": "output.weight",
}  # fmt: skip
CHANNEL_NAMES = {
    "key_mix": "time_mix_key", "receptance_mix": "time_mix_receptance", "up_proj.weight": "key.weight",
    "receptance_proj.weight": "receptance.weight", "down_proj.weight": "value.weight",
}  # fmt: skip
"""Our names to those of the files."""


def build_spec(view: CheckpointView) -> ModelSpec:
    layout = read_layout(
        view,
        prefixes=("rwkv.", ""),
        embeddings=("embeddings.weight",),
        layers="blocks.",
        head="head.weight",
        default_max_position_embeddings=UNBOUNDED_POSITIONS,
    )
    norm = layer_norm(view, "layer_norm_epsilon")
    hidden = layout.hidden_size
    layers: list[LayerSpec] = []
    sources: dict[str, Source] = {}

    def add(mixer: TimeMixSpec | ChannelMixSpec, base: str, names: Mapping[str, str], norm_name: str) -> None:
        name = f"layers.{len(layers)}"
        layers.append(LayerSpec(token_mixer=mixer, token_norm=norm))
        sources.update(prefixed(f"{name}.token_norm", norm_sources(norm, norm_name)))
        for parameter, shape in mixer.parameter_shapes(hidden).items():
            stored = base + names[parameter]
            is_row = parameter.endswith("_mix")  # stored as (1, 1, h)
            sources[f"{name}.token_mixer.{parameter}"] = (
                Source((Piece(stored, reshape=shape),)) if is_row else tensor(stored)
            )

    for number in range(layout.num_layers):
        block = layout.layer(number)
        width = matrix_shape(view.tensors, f"{block}attention.key.weight")[0]
        check_size(view, width, f"rows of {block}attention.key.weight", "attention_hidden_size")
        inner = matrix_shape(view.tensors, f"{block}feed_forward.key.weight")[0]
        check_size(view, inner, f"rows of {block}feed_forward.key.weight", "intermediate_size")
        add(TimeMixSpec(hidden, width), f"{block}attention.", TIME_NAMES, f"{block}ln1")
        add(ChannelMixSpec(hidden, inner), f"{block}feed_forward.", CHANNEL_NAMES, f"{block}ln2")
    return decoder_spec(
        view,
        layout,
        "rwkv",
        layers,
        sources,
        NormSpec("layer", FINAL_NORM_EPS),
        embedding_norm=norm,
        embedding_norm_name="blocks.0.pre_ln",
        final_norm_name="ln_out",
    )
