"""Mamba and Falcon-Mamba: Mamba-1 layers only.

Falcon-Mamba norms Δ, B and C without weights, so nothing but ``model_type`` tells the two apart.

Source: the published state-spaces/mamba-*, mamba-*-hf and tiiuae/falcon-mamba-7b files, and transformers'
``mamba`` and ``falcon_mamba``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import MAMBA_COMMON, Table, used
from inference.modelling.families.config_keys import Members
from inference.modelling.families.config_values import activation, number_with_evidence, rms_norm
from inference.modelling.families.decoder import decoder_spec
from inference.modelling.families.decoder_layout import read_layout
from inference.modelling.families.mamba_ssm import OUTER, SSM_CFG_1, renamed_config
from inference.modelling.families.state_space import UNBOUNDED_POSITIONS, mamba1_sources, mamba1_spec
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.parts import NormSpec, prefixed
from inference.modelling.specs.sources import Source, tensor

MAMBA: Table = {**MAMBA_COMMON, **used("d_inner", "time_step_rank"), **OUTER, "ssm_cfg": Members(SSM_CFG_1)}

CONFIG_KEYS: Mapping[str, Table] = {
    "mamba": MAMBA,
    "falcon_mamba": {**MAMBA, **used("mixer_rms_eps")},
}  # fmt: skip


def build_spec(view: CheckpointView) -> ModelSpec:
    view = renamed_config(view)
    model_type = view.config.string("model_type", default="mamba")
    layout = read_layout(
        view,
        prefixes=("backbone.", "model.", ""),
        embeddings=("embeddings.weight", "embedding.weight"),
        tied_by_default=True,
        default_max_position_embeddings=UNBOUNDED_POSITIONS,
    )
    norm = rms_norm(view, "layer_norm_epsilon", default=1e-5)
    act = activation(view)
    inner_norm = None
    if model_type == "falcon_mamba":
        eps = number_with_evidence(view, "mamba.inner_norm_eps", ("mixer_rms_eps",), 1e-6, low=0.0, high=1.0)
        inner_norm = NormSpec("rms", eps, weightless=True)
    layers: list[LayerSpec] = []
    sources: dict[str, Source] = {}
    for number in range(layout.num_layers):
        base = f"{layout.layer(number)}mixer."
        mixer = mamba1_spec(
            view,
            base,
            activation=act,
            inner_norm=inner_norm,
            state_size=("state_size",),
            conv_kernel=("conv_kernel",),
            dt_rank=("time_step_rank",),
            intermediate_size=("intermediate_size", "d_inner"),
        )
        layers.append(LayerSpec(token_mixer=mixer, token_norm=norm))
        sources[f"layers.{number}.token_norm.weight"] = tensor(f"{layout.layer(number)}norm.weight")
        sources |= prefixed(f"layers.{number}.token_mixer", mamba1_sources(mixer, base, layout.hidden_size))
    return decoder_spec(view, layout, model_type, layers, sources, norm, final_norm_name="norm_f")
