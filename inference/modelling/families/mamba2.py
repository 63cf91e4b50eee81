"""Mamba-2: Mamba-2 layers only (Codestral Mamba among them).

Source: the published mistralai/Mamba-Codestral-7B-v0.1 and state-spaces/mamba2-* files and transformers' ``mamba2``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import MAMBA_COMMON, Table, used
from inference.modelling.families.config_keys import Harmless, Members
from inference.modelling.families.config_values import activation, check_size, rms_norm
from inference.modelling.families.decoder import decoder_spec
from inference.modelling.families.decoder_layout import read_layout
from inference.modelling.families.mamba_ssm import OUTER, SSM_CFG_2, renamed_config
from inference.modelling.families.state_space import (
    UNBOUNDED_POSITIONS,
    Mamba2Keys,
    mamba2_sources,
    mamba2_spec,
    time_step_limits,
)
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.parts import prefixed
from inference.modelling.specs.sources import Source, tensor

CONFIG_KEYS: Mapping[str, Table] = {
    "mamba2": {
        **MAMBA_COMMON,
        **used("num_heads", "head_dim", "n_groups", "time_step_limit"),
        **OUTER,
        "ssm_cfg": Members(SSM_CFG_2),
        "time_step_rank": Harmless("a start value of a training"),
    },
}  # fmt: skip

KEYS = Mamba2Keys(("num_heads",), ("head_dim",), ("state_size",), ("n_groups",), ("conv_kernel",), 8)


def build_spec(view: CheckpointView) -> ModelSpec:
    view = renamed_config(view)
    layout = read_layout(
        view,
        prefixes=("backbone.", "model.", ""),
        embeddings=("embeddings.weight", "embedding.weight"),
        default_max_position_embeddings=UNBOUNDED_POSITIONS,
    )
    norm = rms_norm(view, "layer_norm_epsilon", default=1e-5)
    act = activation(view)
    limits = time_step_limits(view, "time_step_limit")
    layers: list[LayerSpec] = []
    sources: dict[str, Source] = {}
    for number in range(layout.num_layers):
        base = f"{layout.layer(number)}mixer."
        mixer = mamba2_spec(view, base, KEYS, activation=act, norm_eps=norm.eps, limits=limits)
        check_size(view, mixer.intermediate_size, f"columns of {base}out_proj.weight", "intermediate_size")
        layers.append(LayerSpec(token_mixer=mixer, token_norm=norm))
        sources[f"layers.{number}.token_norm.weight"] = tensor(f"{layout.layer(number)}norm.weight")
        sources |= prefixed(f"layers.{number}.token_mixer", mamba2_sources(mixer, base, layout.hidden_size))
    return decoder_spec(view, layout, "mamba2", layers, sources, norm, final_norm_name="norm_f")
