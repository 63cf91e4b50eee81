"""Falcon-H1: attention beside Mamba-2 in each layer, then an MLP; factors on all of their inputs and outputs.

Source: https://arxiv.org/abs/2507.22448, the published tiiuae/Falcon-H1 files and transformers' ``falcon_h1``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from inference.errors import CorruptCheckpoint, TensorShapeMismatch
from inference.modelling.families.attention_config import attention_sources, attention_spec
from inference.modelling.families.checks import ROTARY_BUFFERS
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import HYBRID_MAMBA2, WITH_ROPE, Table, harmless, used
from inference.modelling.families.config_keys import Biases, Only
from inference.modelling.families.config_values import activation, check_size, number_with_evidence, rms_norm
from inference.modelling.families.decoder import decoder_spec, llama_layer, llama_layer_sources
from inference.modelling.families.decoder_layout import DecoderLayout, read_layout
from inference.modelling.families.head_sizes import read_heads
from inference.modelling.families.mlp_config import mlp_sources, mlp_spec
from inference.modelling.families.rope_config import read_rope
from inference.modelling.families.state_space import HYBRID_KEYS, mamba2_sources, mamba2_spec, time_step_limits
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.layers import Mamba2Spec
from inference.modelling.specs.parallel import BranchSpec, ParallelSpec
from inference.modelling.specs.parts import NormSpec, prefixed
from inference.modelling.specs.sources import Source

BOTH = Only(("hybrid",), "each layer has attention and Mamba-2")
CONFIG_KEYS: Mapping[str, Table] = {
    "falcon_h1": {
        **WITH_ROPE,
        **HYBRID_MAMBA2,
        **used(
            "mamba_d_ssm", "mamba_rms_norm", "mamba_norm_before_gate", "embedding_multiplier", "lm_head_multiplier",
            "key_multiplier", "attention_in_multiplier", "attention_out_multiplier", "ssm_in_multiplier",
            "ssm_out_multiplier", "ssm_multipliers", "mlp_multipliers",
        ),
        "layer_types": BOTH,
        "layers_block_type": BOTH,
        "attn_layer_indices": Only((), "each layer has attention and Mamba-2"),
        "mamba_use_mlp": Only((True,), "each layer has an MLP"),
        "mamba_proj_bias": Biases(r"mamba\.in_proj"),
        "projectors_bias": Biases(r"mamba\.out_proj"),
        "mlp_bias": Biases(r"feed_forward\.(?:gate|up|down)_proj"),
        **harmless("the shapes say it", "mlp_expansion_factor", "expansion_factor"),
    },
}  # fmt: skip


def build_spec(view: CheckpointView) -> ModelSpec:
    layout = read_layout(view, default_max_position_embeddings=8192)
    norm = rms_norm(view, default=1e-5)
    act = activation(view)
    gate, down = _multipliers(view, "mlp_multipliers", 2)
    layers: list[LayerSpec] = []
    sources: dict[str, Source] = {}
    for number in range(layout.num_layers):
        layer = layout.layer(number)
        mixer, mixer_sources = _token_mixers(view, layout, layer, norm, act)
        mlp = mlp_spec(view, layer, act, mlp="feed_forward.")
        channel = mlp_sources(view, mlp, layer, mlp="feed_forward.")
        layers.append(llama_layer(mixer, replace(mlp, gate_multiplier=gate, output_multiplier=down), norm))
        sources |= llama_layer_sources(number, layer, mixer_sources, channel, channel_norm="pre_ff_layernorm")
    return decoder_spec(
        view,
        layout,
        "falcon_h1",
        layers,
        sources,
        norm,
        ignored=(ROTARY_BUFFERS,),
        embedding_multiplier=_multiplier(view, "embedding_multiplier"),
        logits_multiplier=_multiplier(view, "lm_head_multiplier"),
        final_norm_name="final_layernorm",
    )


def _multiplier(view: CheckpointView, key: str) -> float:
    return number_with_evidence(view, key, (key,), 1.0, low=-1e9, high=1e9)


def _multipliers(view: CheckpointView, key: str, count: int) -> tuple[float, ...]:
    """A list of ``count`` numbers; all 1 when config.json has none.

    Raises:
        CorruptCheckpoint: A list of another length.
    """
    values = view.config.numbers(key) or (1.0,) * count
    if len(values) != count:
        raise CorruptCheckpoint(f"config.json: {key} has {len(values)} numbers; it must have {count}.", param=key)
    view.facts.add(key, list(values), "config.json" if key in view.config else f"{key} is not in config.json; default")
    return values


def _token_mixers(
    view: CheckpointView, layout: DecoderLayout, layer: str, norm: NormSpec, act: str
) -> tuple[ParallelSpec, dict[str, Source]]:
    """Attention and Mamba-2; the keys' factor is one of the scores, so it is in their scale."""
    heads = read_heads(view, layer)
    rope = read_rope(view, heads.head_dim, max_position_embeddings=layout.max_position_embeddings)
    scale = heads.head_dim**-0.5 * _multiplier(view, "key_multiplier")
    attention = attention_spec(view, layer, heads, rope, scale=scale)
    mamba = _mamba(view, f"{layer}mamba.", norm, act)
    factors = [_multiplier(view, f"{kind}_{end}_multiplier") for kind in ("attention", "ssm") for end in ("in", "out")]
    spec = ParallelSpec((BranchSpec(attention, *factors[:2]), BranchSpec(mamba, *factors[2:])))
    return spec, {
        **prefixed("attention", attention_sources(view, attention, layer)),
        **prefixed("mamba2", mamba2_sources(mamba, f"{layer}mamba.", layout.hidden_size)),
    }


def _mamba(view: CheckpointView, base: str, norm: NormSpec, act: str) -> Mamba2Spec:
    """The layer under ``base``.

    Raises:
        TensorShapeMismatch: config.json says that there is a gated norm and the tensors don't, or the other way round.
    """
    limits = time_step_limits(view, "time_step_limit")
    spec = mamba2_spec(view, base, HYBRID_KEYS, activation=act, norm_eps=norm.eps, limits=limits)
    check_size(view, spec.intermediate_size, f"columns of {base}out_proj.weight", "mamba_d_ssm")
    has_norm = spec.gated_norm is not None
    if view.config.boolean("mamba_rms_norm", default=has_norm) != has_norm:
        raise TensorShapeMismatch(
            f"config.json says mamba_rms_norm {str(not has_norm).lower()}, but {base}norm.weight is "
            f"{'there' if has_norm else 'missing'}; correct config.json.",
            param="mamba_rms_norm",
        )
    z, x, b, c, dt = _multipliers(view, "ssm_multipliers", 5)
    before = view.config.boolean("mamba_norm_before_gate", default=True)
    return replace(spec, norm_before_gate=before, multipliers=(z, x, b, c, dt))
