"""GPT-Neo: GPT-2 with separate projections, a window in every other layer, and scores that aren't scaled.

Source: https://doi.org/10.5281/zenodo.5297715, and transformers' ``gpt_neo``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import chain, repeat

from inference.errors import CorruptCheckpoint
from inference.modelling.families.attention_decoder import AttentionDecoder, LayerNames
from inference.modelling.families.checks import IgnoredTensors
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import COMMON, GPT, Table, harmless, used
from inference.modelling.families.config_keys import Harmless
from inference.modelling.families.config_values import activation, layer_norm
from inference.modelling.families.decoder import Positions
from inference.modelling.families.mlp_config import MLPNames
from inference.modelling.spec import ModelSpec

NAMES = LayerNames(
    attention="attn.attention.",
    output="out_proj",
    mlp_matrices=MLPNames(up="c_fc", down="c_proj"),
    norms={"token_norm": "ln_1", "channel_norm": "ln_2"},
    final_norm="ln_f",
)
MASKS = IgnoredTensors(re.compile(r"\.attention\.(bias|masked_bias)$"), "constants of masks; early exports have them")
CONFIG_KEYS: Mapping[str, Table] = {
    "gpt_neo": {
        **COMMON,
        **{key: rule for key, rule in GPT.items() if isinstance(rule, Harmless)},
        **used("num_heads", "attention_layers", "attention_types", "window_size", "intermediate_size"),
        **used("activation_function", "layer_norm_epsilon"),
        **harmless("training only", "resid_dropout", "embed_dropout"),
    }
}


def build_spec(view: CheckpointView) -> ModelSpec:
    decoder = AttentionDecoder.read(
        view,
        NAMES,
        prefixes=("transformer.", ""),
        embeddings=("wte.weight",),
        layers="h.",
        tied_by_default=True,
        default_max_position_embeddings=2048,
    )
    window = view.config.integer("window_size", default=256, high=1 << 30)
    return decoder.spec(
        "gpt_neo",
        norm=layer_norm(view, "layer_norm_epsilon"),
        ropes=None,
        windows=[window if kind == "local" else None for kind in _kinds(view, decoder.layout.num_layers)],
        attention_options={"scale": 1.0},
        act=activation(view, "activation_function", default="gelu_new"),
        gated=False,
        ignored=(MASKS,),
        positions=Positions(f"{decoder.layout.prefix}wpe.weight"),
    )


def _kinds(view: CheckpointView, num_layers: int) -> list[str]:
    """Which layers are ``global`` and which ``local``, of ``attention_types``: [[kinds, how often], …].

    Raises:
        CorruptCheckpoint: The types aren't such pairs, or not one for each layer, or ``attention_layers`` differs.
    """
    types = view.config.get("attention_types", default=[[["global", "local"], num_layers // 2]])
    try:
        repeated = (repeat(kinds, min(count, num_layers)) for kinds, count in types)
        kinds = list(chain.from_iterable(chain.from_iterable(repeated)))
    except (TypeError, ValueError):
        kinds = []
    if len(kinds) != num_layers or not {"global", "local"}.issuperset(map(str, kinds)):
        raise CorruptCheckpoint(
            f"config.json: attention_types is {str(types)[:60]!r}; it must give each of {num_layers} layers global or "
            "local.",
            param="attention_types",
        )
    stated = view.config.strings("attention_layers")
    if stated and list(stated) != kinds:
        raise CorruptCheckpoint(
            "config.json: attention_layers isn't what attention_types says.", param="attention_layers"
        )
    return kinds
