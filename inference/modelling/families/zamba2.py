"""Zamba 2: Mamba-2 layers, some of which first run a transformer block that they share with others.

Δ is kept within ``time_step_limit``, where there is one, as in its authors' code; transformers 5 raises it to
``time_step_min``, from which training only draws start values.

Source: https://arxiv.org/abs/2411.15242, the published Zyphra/Zamba2 files and transformers' ``zamba2``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inference.errors import TensorShapeMismatch
from inference.modelling.families.attention_config import attention_sources, attention_spec
from inference.modelling.families.checks import ROTARY_BUFFERS
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import DECODER, ROPE, Table, harmless, used
from inference.modelling.families.config_keys import Biases, Harmless, Only
from inference.modelling.families.config_values import activation, check_size, rms_norm
from inference.modelling.families.decoder import decoder_spec
from inference.modelling.families.decoder_layout import DecoderLayout, read_layout
from inference.modelling.families.head_sizes import read_heads
from inference.modelling.families.headers import matrix_shape
from inference.modelling.families.mlp_config import mlp_sources, mlp_spec
from inference.modelling.families.rope_config import read_rope
from inference.modelling.families.state_space import (
    Mamba2Keys,
    check_hybrid_layers,
    mamba2_sources,
    mamba2_spec,
    time_step_limits,
)
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.parts import NormSpec, prefixed
from inference.modelling.specs.shared_blocks import SharedBlockSpec
from inference.modelling.specs.sources import Source, concatenated, tensor

CONFIG_KEYS: Mapping[str, Table] = {
    "zamba2": {
        **{key: rule for key, rule in DECODER.items() if key != "head_dim"},
        **ROPE,
        **used(
            "attention_head_dim", "attention_hidden_size", "layers_block_type", "hybrid_layer_ids", "n_mamba_heads",
            "mamba_headdim", "mamba_d_state", "mamba_ngroups", "mamba_d_conv", "time_step_limit", "num_mem_blocks",
            "use_mem_rope", "use_shared_attention_adapter", "adapter_rank",
        ),
        "add_bias_linear": Biases(r"(?:mamba\.(?:in|out)_proj|feed_forward\.(?:gate_up|down)_proj)"),
        "use_conv_bias": Harmless("the tensors say it"),
        "use_shared_mlp_adapter": Only((True,), "the MLP has adapters"),
        "use_long_context": Only((False,), "the context is config.json's"),
        **harmless("the shapes say it", "mamba_expand", "kv_channels", "num_query_groups", "ffn_hidden_size"),
        **harmless("start values of a training", "time_step_min", "time_step_max", "time_step_floor"),
        **harmless("which kernel computes it", "use_mamba_kernels", "use_mem_eff_path", "chunk_size"),
    },
}  # fmt: skip

KEYS = Mamba2Keys(("n_mamba_heads",), ("mamba_headdim",), ("mamba_d_state",), ("mamba_ngroups",), ("mamba_d_conv",), 1)
MAMBA_NORM_EPS = 1e-5
"""Of the gated norm, whatever config.json says."""


def build_spec(view: CheckpointView) -> ModelSpec:
    layout = read_layout(view, tied_by_default=True)
    norm = rms_norm(view, default=1e-5)
    limits = time_step_limits(view, "time_step_limit")
    hybrid = [n for n in range(layout.num_layers) if f"{layout.layer(n)}linear.weight" in view.tensors]
    check_hybrid_layers(view, layout.num_layers, hybrid)
    blocks = _Blocks(view, layout, hybrid, norm)
    layers: list[LayerSpec] = []
    sources: dict[str, Source] = {}
    for number in range(layout.num_layers):
        name, layer = f"layers.{number}", layout.layer(number)
        base = f"{layer}mamba_decoder." if number in hybrid else layer
        mixer = mamba2_spec(view, f"{base}mamba.", KEYS, activation="silu", norm_eps=MAMBA_NORM_EPS, limits=limits)
        sources |= prefixed(f"{name}.token_mixer", mamba2_sources(mixer, f"{base}mamba.", layout.hidden_size))
        sources[f"{name}.token_norm.weight"] = tensor(f"{base}input_layernorm.weight")
        prologue = None
        if number in hybrid:
            prologue, own = blocks.use(hybrid.index(number))
            sources |= prefixed(f"{name}.prologue", own)
        layers.append(LayerSpec(token_mixer=mixer, token_norm=norm, prologue=prologue))
    return decoder_spec(
        view, layout, "zamba2", layers, sources, norm, ignored=(ROTARY_BUFFERS,), final_norm_name="final_layernorm"
    )


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The shared blocks: ``num_mem_blocks`` of them, which the hybrid layers use in turn.

    Their tensors are stored under the first layers that use them, the adapters of all layers among them.
    """

    view: CheckpointView
    layout: DecoderLayout
    hybrid: Sequence[int]
    norm: NormSpec

    def use(self, number: int) -> tuple[SharedBlockSpec, dict[str, Source]]:
        """What the hybrid layer of this number (among them) runs, and its sources, the block's with its first layer."""
        view = self.view
        count = view.config.integer("num_mem_blocks", default=1, high=1 << 16)
        block = number % count
        base = f"{self.layout.layer(self.hybrid[block])}shared_transformer."
        spec = self._spec(block, number, base)
        sources = {
            "mlp_down_proj.weight": tensor(f"{base}feed_forward.gate_up_proj_adapter_list.{number}.0.weight"),
            "mlp_up_proj.weight": tensor(f"{base}feed_forward.gate_up_proj_adapter_list.{number}.1.weight"),
            "out_proj.weight": tensor(f"{self.layout.layer(self.hybrid[number])}linear.weight"),
        }
        if spec.attention_rank is not None:
            adapters = {name: f"{base}self_attn.linear_{name}_adapter_list.{number}" for name in "qkv"}
            sources["qkv_down_proj.weight"] = concatenated(*(f"{adapter}.0.weight" for adapter in adapters.values()))
            sources |= {f"{name}_up_proj.weight": tensor(f"{adapter}.1.weight") for name, adapter in adapters.items()}
        if number < count:
            sources |= {
                "block.input_norm.weight": tensor(f"{base}input_layernorm.weight"),
                "block.mlp_norm.weight": tensor(f"{base}pre_ff_layernorm.weight"),
                **prefixed("block.attention", attention_sources(view, spec.attention, base)),
                **prefixed("block.mlp", mlp_sources(view, spec.mlp, base, mlp="feed_forward.")),
            }
        return spec, sources

    def _spec(self, block: int, number: int, base: str) -> SharedBlockSpec:
        view, hidden = self.view, self.layout.hidden_size
        check_size(view, 2 * hidden, f"twice the columns of {self.layout.embedding}", "attention_hidden_size")
        heads = read_heads(view, base, default_head_dim=self._head_dim())
        check_size(view, heads.head_dim, f"rows of {base}self_attn.q_proj.weight", "attention_head_dim")
        rope = None
        if view.config.boolean("use_mem_rope", default=False):
            rope = read_rope(view, heads.head_dim, max_position_embeddings=self.layout.max_position_embeddings)
        attention = attention_spec(view, base, heads, rope, scale=(heads.head_dim / 2) ** -0.5)
        mlp = mlp_spec(view, base, activation(view, default="gelu"), mlp="feed_forward.")
        rank = matrix_shape(view.tensors, f"{base}feed_forward.gate_up_proj_adapter_list.{number}.0.weight")[0]
        check_size(view, rank, f"rows of the adapters under {base[:-1]}", "adapter_rank")
        adapter = f"{base}self_attn.linear_q_adapter_list.{number}.0.weight"
        has_adapter = adapter in view.tensors
        if view.config.boolean("use_shared_attention_adapter", default=has_adapter) != has_adapter:
            raise TensorShapeMismatch(
                f"config.json says use_shared_attention_adapter {str(not has_adapter).lower()}, but {adapter} is "
                f"{'there' if has_adapter else 'missing'}; correct config.json.",
                param="use_shared_attention_adapter",
            )
        attention_rank = matrix_shape(view.tensors, adapter)[0] if has_adapter else None
        return SharedBlockSpec(block, attention, mlp, self.norm, attention_rank, rank)

    def _head_dim(self) -> int | None:
        """2h / heads, if config.json has the number of heads."""
        heads = self.view.config.optional_integer("num_attention_heads", high=1 << 16)
        return None if heads is None else 2 * self.layout.hidden_size // heads
