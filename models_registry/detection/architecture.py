"""Detect the format and ``model_type`` of a checkpoint from tensor names and config.json.

``model_type`` decides what shapes can't tell: the places of norms, ``w + 1``, activations, multipliers. Only the types
in ``FAMILIES`` are read: tensor names of another type may look the same while its arithmetic differs. A missing type
is inferred from the class in config.json, or from the tensor names with a warning. A person can set the type.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Literal

from inference.errors import UnsupportedArchitecture
from inference.modelling.families.config import CheckpointConfig, Confidence, Facts
from inference.modelling.families.registry import FAMILIES, REFUSED

Format = Literal["oxidizr", "huggingface"]

ARCHITECTURE_NAMES: Mapping[str, str] = {
    family.architecture: model_type for model_type, family in FAMILIES.items() if family.architecture is not None
}
"""``architectures[0]`` of config.json to ``model_type``."""

_CLASS_SUFFIXES = ("ForCausalLM", "Model")
"""Ends of the class names of a text generator; a base model has the same layers."""

_TEXT = "_text"
"""End of many types' names, which is left out where names are compared."""

_OXIDIZR_NAMES = re.compile(r"layers\.\d+\.(mamba2\.|mamba3\.|moe\.|mamba\.a_log|self_attn\.w_)")
"""Names that only the oxidizr trainer writes. Its plain attention layers are named like those of a base model."""

_SIGNATURES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("qwen3_next", (r"\.linear_attn\.in_proj_qkvz\.",), ()),
    ("qwen4_exp_text", (r"\.attn_hyper_connection\.", r"\.linear_attn\.in_proj_qkv\."), ()),
    ("qwen3_5_moe_text", (r"\.linear_attn\.in_proj_qkv\.", r"\.mlp\.experts\."), ()),
    ("qwen3_5_text", (r"\.linear_attn\.in_proj_qkv\.", r"\.mlp\.gate_proj\."), ()),
    ("olmo_hybrid", (r"\.linear_attn\.q_conv1d\.",), ()),
    ("glm5_next_text", (r"\.indexer\.index_kpool_compress_gate$", r"\.self_attn\.(forget_gate\.)?A_log$"), ()),
    ("kimi_linear", (r"\.self_attn\.q_conv1d\.",), ()),
    ("bailing_hybrid", (r"\.attention\.q_conv1d\.",), ()),
    ("minimax", (r"\.self_attn\.output_gate\.",), ()),
    ("zaya", (r"\.self_attn\.qkv_proj\.conv_qk_grouped\.",), ()),
    ("inkling2_text", (r"\.rel_l2_clip\.scale$",), ()),
    ("inkling_text", (r"\.rel_logits_proj\.proj$", r"\.(self_attn|attn)\.(r_proj|wr_du)\."), ()),
    ("zamba", (r"\.shared_transf\.", r"\.mamba\.x_proj_weight$"), ()),
    ("zamba2", (r"\.shared_transformer\.", r"\.mamba_decoder\.mamba\.dt_bias$"), ()),
    ("recurrent_gemma", (r"\.temporal_block\.rg_lru\.",), ()),
    ("xlstm", (r"\.mlstm_layer\.multihead_norm\.",), ()),
    ("lfm3", (r"\.operator_norm\.", r"\.self_attn\.q_norm\."), ()),
    ("lfm2_moe", (r"\.operator_norm\.", r"\.feed_forward\.gate\."), ()),
    ("lfm2", (r"\.operator_norm\.", r"\.feed_forward\.w1\."), ()),
    ("nemotron_h", (r"backbone\..*\.mixer\.dt_bias$", r"backbone\..*\.mixer\.(q_proj|up_proj)\."), ()),
    ("mamba", (r"backbone\..*\.mixer\.x_proj\.",), (r"\.mixer\.q_proj\.",)),
    ("mamba2", (r"backbone\..*\.mixer\.dt_bias$",), (r"\.mixer\.(q_proj|up_proj)\.",)),
    ("jetmoe", (r"\.self_attention\.experts\.input_linear\.",), ()),
    ("diffllama", (r"\.self_attn\.lambda_q1$",), ()),
    ("aria_text", (r"\.mlp\.experts\.fc1\.weight$", r"\.mlp\.shared_experts\."), ()),
    ("bitnet", (r"\.self_attn\.attn_sub_norm\.", r"\.mlp\.ffn_sub_norm\."), ()),
    ("mistral_large4_text", (r"\.(self_attn\.softmax_scaling\.scale|attention\.ssmax_scaling\.s)$",), ()),
    ("dots3_note_text", (r"\.self_attn\.k_rope_only_layernorm\.weight$",), ()),
    ("hy_v4", (r"\.self_attn\.(learnable_sink_param|sinks)$", r"\.self_attn\.indexer\.wq_b\."), ()),
    (
        "deepseek_v4",
        (r"\.(self_attn\.sinks|attn\.attn_sink)$", r"\.(self_attn\.o_a_proj|attn\.wo_a)\.", r"(^|\.)hc_head[._]"),
        (),
    ),
    ("axk2", (r"\.input_layernorm\.(W_down|mlp\.fc1)\.", r"\.self_attn\.indexer\.wq_b\."), ()),
    ("axk1", (r"\.post_mlp_layernorm\.", r"\.self_attn\.kv_a_proj_with_mqa\."), ()),
    ("deepseek_v32", (r"\.self_attn\.indexer\.wq_b\.",), ()),
    ("deepseek_v3", (r"\.kv_a_proj_with_mqa\.", r"\.e_score_correction_bias$"), ()),
    ("deepseek_v2", (r"\.kv_a_proj_with_mqa\.",), ()),
    ("jamba", (r"\.mamba\.x_proj\.", r"\.feed_forward\."), ()),
    ("falcon_h1", (r"\.mamba\.dt_bias$", r"\.pre_ff_layernorm\.", r"\.layers\.0\.self_attn\."), ()),
    ("granitemoehybrid", (r"\.shared_mlp\.input_linear\.", r"\.mamba\.dt_bias$"), ()),
    ("bamba", (r"\.mamba\.dt_bias$", r"\.feed_forward\.gate_proj\."), ()),
    ("mixtral", (r"\.block_sparse_moe\.experts\.0\.w1\.", r"\.self_attn\.q_proj\."), ()),
    ("phi3", (r"\.self_attn\.qkv_proj\.", r"\.mlp\.gate_up_proj\."), ()),
    ("longcat_flash", (r"\.self_attn\.1\.kv_a_proj_with_mqa\.",), ()),
    ("minimax_m3_vl_text", (r"\.self_attn\.index(er\.|_)q_proj\.", r"\.gate\.weight$"), ()),
    ("molmo2_text", (r"\.self_attn\.att_proj\.", r"\.mlp\.ff_proj\."), ()),
    ("step3p5", (r"\.moe\.router_bias$", r"\.self_attn\.g_proj\."), ()),
    ("mimo_v2_flash", (r"\.self_attn\.(attention_sink_bias|sinks)$", r"\.mlp\.gate\.e_score_correction_bias$"), ()),
    ("gemma3n_text", (r"\.altup\.modality_router\.",), ()),
    ("llama4_text", (r"\.feed_forward\.shared_expert\.",), ()),
    ("gemma4_text", (r"\.layer_scalar$", r"\.pre_feedforward_layernorm\."), ()),
    ("muse_spark_text", (r"\.post_attention_residual_gate\.gate$",), ()),
    ("muse_glimmer_text", (r"\.pre_feedforward_layernorm\.", r"\.self_attn\.gate_proj\."), (r"\.q_norm\.",)),
    ("gemma3_text", (r"\.pre_feedforward_layernorm\.", r"\.post_feedforward_layernorm\.", r"\.q_norm\."), ()),
    ("gemma2", (r"\.pre_feedforward_layernorm\.", r"\.post_feedforward_layernorm\."), (r"\.q_norm\.",)),
    ("qwen2_moe", (r"\.mlp\.shared_expert_gate\.",), ()),
    ("qwen3_moe", (r"\.mlp\.experts\.", r"\.self_attn\.q_norm\."), ()),
    ("qwen3", (r"\.self_attn\.q_norm\.", r"\.mlp\.gate_proj\.", r"\.input_layernorm\."), ()),
    ("qwen2", (r"\.self_attn\.q_proj\.bias$", r"\.mlp\.gate_proj\.", r"\.input_layernorm\."), ()),
    ("llama", (r"\.self_attn\.q_proj\.weight$", r"\.mlp\.gate_proj\.", r"\.input_layernorm\."), ()),
)
"""Type, patterns that must occur in the names, patterns that must not; the first that fits is inferred."""


def detect_format(names: Iterable[str], config: CheckpointConfig, facts: Facts) -> Format:
    """Tell oxidizr's checkpoints from those of HuggingFace, whose names start with ``model.`` or ``backbone.``.

    Names without a prefix are oxidizr's, unless config.json (or a person) states the type of another family: a base
    model that was saved without its head has no prefix either.
    """
    names = list(names)
    found = next((name for name in names if name.startswith(("model.", "backbone."))), None)
    override = facts.overrides.get("model_type")
    stated = config.get("model_type") if override is None else override
    is_other_family = isinstance(stated, str) and stated in FAMILIES and stated != "oxidizr"
    if found is not None:
        facts.add("format", "huggingface", f"tensor names such as {found[:80]}")
        return "huggingface"
    if is_other_family and (override is not None or not any(map(_OXIDIZR_NAMES.match, names))):
        facts.add("format", "huggingface", f"model_type {stated}; the tensor names have no prefix")
        return "huggingface"
    facts.add("format", "oxidizr", "no tensor name starts with model. or backbone.")
    return "oxidizr"


def detect_model_type(
    names: Iterable[str], format_: Format, config: CheckpointConfig, facts: Facts
) -> tuple[str, bool]:
    """Return the family to read the checkpoint with, and whether it was only inferred from the names.

    Raises:
        UnsupportedArchitecture: The stated type or class is not supported, or nothing is stated and the names are of
            no known layers.
    """
    if "model_type" in facts.overrides:
        return str(facts.add("model_type", None, "")), False
    names = list(names)
    stated = config.get("model_type")
    if isinstance(stated, str) and stated in REFUSED:
        raise UnsupportedArchitecture(f"model_type {stated!r} is not supported: {REFUSED[stated]}.", param="model_type")
    if stated is not None and (not isinstance(stated, str) or stated not in FAMILIES):
        raise _unsupported(f"model_type {str(stated)[:60]!r} is not supported", str(stated), names, "model_type")
    if format_ == "oxidizr":
        if stated not in (None, "oxidizr"):
            facts.warn(
                f"config.json says model_type {str(stated)[:60]!r}, but the tensors have oxidizr's names, by which "
                "they are read."
            )
        facts.add("model_type", "oxidizr", "tensor names without a prefix")
        return "oxidizr", False
    if stated == "oxidizr":
        problem = "config.json says model_type 'oxidizr', but oxidizr's tensor names have no prefix"
        raise _unsupported(problem, "", names, "model_type")
    architectures = config.get("architectures", default=())
    class_ = architectures[0] if isinstance(architectures, list) and architectures else None
    by_class = _type_of_class(class_, stated, names)
    if stated is not None:
        facts.add("model_type", stated, "config.json")
        return stated, False
    if by_class is not None:
        facts.add("model_type", by_class, f"config.json (architectures: {class_})", Confidence.HIGH)
        return by_class, False
    return _infer_from_names(names, facts), True


def _type_of_class(class_: object, stated: str | None, names: list[str]) -> str | None:
    """Return the type that a class of config.json belongs to; None: there is no class.

    Raises:
        UnsupportedArchitecture: The class belongs to no family, to another one than ``stated``, or to another task.
    """
    if class_ is None:
        return None
    shown = str(class_)[:60]
    for name, model_type in ARCHITECTURE_NAMES.items():
        stem = name.removesuffix("ForCausalLM")
        # The first Llama files spell it LLaMA.
        if shown == name or any(shown.lower() == (stem + suffix).lower() for suffix in _CLASS_SUFFIXES):
            if stated is None:
                return model_type
            if FAMILIES[stated].architecture == name:
                return stated
            break
    beside = "" if stated is None else f" beside model_type {stated!r}"
    raise _unsupported(f"architectures {shown!r}{beside} is not supported", stated or shown, names, "architectures")


def _unsupported(problem: str, stated: str, names: list[str], param: str) -> UnsupportedArchitecture:
    """The error for a type or class outside the list, with the nearest supported type and how to force it."""
    supported = f"{len(FAMILIES)} types are supported (docs/families.md)"
    stems = {name.removesuffix(_TEXT): name for name in sorted(FAMILIES, reverse=True)}
    stem = stated.lower().removesuffix("forcausallm").removesuffix(_TEXT)
    spelling = [stems[found] for found in difflib.get_close_matches(stem, sorted(stems), 1, 0.7)]
    by_names = _type_by_names(names)
    if not spelling and not names:  # there is a config.json alone
        return UnsupportedArchitecture(f"{problem}; {supported}.", param=param)
    if not spelling and by_names is None:
        shown = ", ".join(name[:80] for name in sorted(names)[:5])
        return UnsupportedArchitecture(
            f"{problem}, and the tensor names ({shown}, …) are of no known architecture; {supported}.", param=param
        )
    nearest = spelling[0] if spelling else by_names
    reason = "by its name" if spelling else "by the tensor names, which don't show the arithmetic"
    return UnsupportedArchitecture(
        f"{problem}; {supported}. The nearest is {nearest} ({reason}). If it computes exactly as {nearest} does, "
        f'force it: --override model_type={nearest}, overrides = {{model_type = "{nearest}"}} under [[models]], or set '
        "model_type on the page for uploads.",
        param=param,
    )


def _type_by_names(names: list[str]) -> str | None:
    """Return the first type of ``_SIGNATURES`` that the tensor names fit."""

    def occurs(pattern: str) -> bool:
        compiled = re.compile(pattern)
        return any(compiled.search(name) for name in names)

    for model_type, required, forbidden in _SIGNATURES:
        if all(map(occurs, required)) and not any(map(occurs, forbidden)):
            return model_type
    return None


def _infer_from_names(names: list[str], facts: Facts) -> str:
    reason = "config.json has no model_type"
    model_type = _type_by_names(names)
    if model_type is None:
        raise _unsupported(reason, "", names, "model_type")
    facts.add("model_type", model_type, f"{reason}; the tensor names are {model_type}'s", Confidence.LOW)
    facts.warn(
        f"{reason}; it is read as {model_type} by its tensor names. Names don't show activations, norm offsets or "
        "multipliers: set model_type if the text is nonsense."
    )
    return model_type
