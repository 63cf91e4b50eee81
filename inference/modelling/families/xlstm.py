"""xLSTM: mLSTM layers only, an MLP after each; caps on gates and logits.

Source: https://arxiv.org/abs/2503.13427, the published NX-AI/xLSTM-7b files and transformers' ``xlstm``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.errors import TensorShapeMismatch
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import COMMON, Table, harmless, used
from inference.modelling.families.config_keys import Only
from inference.modelling.families.config_values import check_size, number_with_evidence, rms_norm
from inference.modelling.families.decoder import decoder_spec, llama_layer
from inference.modelling.families.decoder_layout import read_layout
from inference.modelling.families.headers import matrix_shape, vector_length
from inference.modelling.families.state_space import UNBOUNDED_POSITIONS
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.layers import MLPSpec
from inference.modelling.specs.linear import MLSTMSpec
from inference.modelling.specs.parts import NormSpec, prefixed
from inference.modelling.specs.sources import Source, concatenated, tensor

CONFIG_KEYS: Mapping[str, Table] = {
    "xlstm": {
        **COMMON,
        **used(
            "embedding_dim", "num_blocks", "num_heads", "norm_eps", "qk_dim_factor", "v_dim_factor", "eps",
            "gate_soft_cap", "output_logit_soft_cap",
        ),
        "tie_word_embeddings": Only((False,), "the head is a matrix of its own"),
        "use_bias": Only((False,), "projections and norms have no biases"),
        "add_out_norm": Only((True,), "there is a norm behind the layers"),
        "weight_mode": Only(("single",), "no published file has fused projections, nor can transformers make one"),
        **harmless("the text side takes it from the tokeniser's files", "force_bos_token_insert"),
        **harmless("the tensors say it", "head_dim", "ffn_proj_factor", "ffn_round_up_to_multiple_of"),
        **harmless(
            "which kernel computes it, and in which number format",
            "chunkwise_kernel", "sequence_kernel", "step_kernel", "mode", "chunk_size", "return_last_states",
            "autocast_kernel_dtype", "inference_state_dtype", "max_inference_chunksize", "norm_reduction_force_float32",
        ),
    },
}  # fmt: skip


def build_spec(view: CheckpointView) -> ModelSpec:
    layout = read_layout(
        view,
        prefixes=("backbone.", ""),
        embeddings=("embeddings.weight",),
        layers="blocks.",
        default_max_position_embeddings=UNBOUNDED_POSITIONS,
    )
    check_size(view, layout.hidden_size, f"columns of {layout.embedding}", "embedding_dim")
    check_size(view, layout.num_layers, "distinct layer numbers in the tensor names", "num_blocks")
    norm = rms_norm(view, "norm_eps")
    layers: list[LayerSpec] = []
    sources: dict[str, Source] = {}
    for number in range(layout.num_layers):
        name, layer = f"layers.{number}", layout.layer(number)
        mixer, mixer_sources = _mixer(view, f"{layer}mlstm_layer.", layout.hidden_size, norm)
        base = f"{layer}ffn."
        layers.append(llama_layer(mixer, MLPSpec(matrix_shape(view.tensors, f"{base}proj_down.weight")[1]), norm))
        sources |= {
            f"{name}.token_norm.weight": tensor(f"{layer}norm_mlstm.weight"),
            f"{name}.channel_norm.weight": tensor(f"{layer}norm_ffn.weight"),
            **prefixed(f"{name}.token_mixer", mixer_sources),
            f"{name}.channel_mixer.gate_up_proj.weight": concatenated(
                f"{base}proj_up_gate.weight", f"{base}proj_up.weight"
            ),
            f"{name}.channel_mixer.down_proj.weight": tensor(f"{base}proj_down.weight"),
        }
    cap = number_with_evidence(view, "logits_soft_cap", ("output_logit_soft_cap",), 30.0, low=1e-3, high=1e6)
    return decoder_spec(view, layout, "xlstm", layers, sources, norm, logits_softcap=cap, final_norm_name="out_norm")


def _mixer(view: CheckpointView, base: str, hidden_size: int, norm: NormSpec) -> tuple[MLSTMSpec, dict[str, Source]]:
    """The layer under ``base``.

    Raises:
        TensorShapeMismatch: Its heads don't divide the widths, or config.json's factors give others.
    """
    tensors, config = view.tensors, view.config
    projections, gates = ("q", "k", "v", "ogate_preact"), ("igate_preact", "fgate_preact")
    rows = sum(matrix_shape(tensors, f"{base}{name}.weight")[0] for name in projections)
    heads = sum(vector_length(tensors, f"{base}{name}.bias") for name in gates) // 2
    values = vector_length(tensors, f"{base}multihead_norm.weight")
    keys = rows // 2 - values
    if keys < 1 or keys % heads or values % heads:
        raise TensorShapeMismatch(
            f"{base[:-1]}: {heads} heads don't divide keys of {keys} and values of {values}.", param=base[:-1]
        )
    check_size(view, heads, f"biases of {base}{gates[0]}", "num_heads")
    for key, found in (("qk_dim_factor", keys), ("v_dim_factor", values)):
        if key in config and int(hidden_size * config.number(key, low=0.0, high=1e6)) != found:
            raise TensorShapeMismatch(
                f"config.json says {key} {config.number(key):g} of {hidden_size}, but the tensors of {base[:-1]} have "
                f"{found}; correct config.json.",
                param=key,
            )
    cap = number_with_evidence(view, "gate_soft_cap", ("gate_soft_cap",), 15.0, low=1e-3, high=1e6)
    eps = number_with_evidence(view, "mlstm.eps", ("eps",), 1e-6, low=0.0, high=1.0)
    return MLSTMSpec(heads, keys // heads, values // heads, cap, norm.eps, eps), {
        "in_proj.weight": concatenated(*(f"{base}{name}.weight" for name in projections)),
        "gates.weight": concatenated(*(f"{base}{name}.weight" for name in gates)),
        "gates.bias": concatenated(*(f"{base}{name}.bias" for name in gates)),
        "norm.weight": tensor(f"{base}multihead_norm.weight"),
        "out_proj.weight": tensor(f"{base}out_proj.weight"),
    }
