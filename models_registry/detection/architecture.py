"""Detect the format and ``model_type`` of a checkpoint from tensor names and config.json.

``model_type`` decides what shapes can't tell: the places of norms, ``w + 1``, activations, multipliers. A supported
type in config.json is used. An unknown or missing type is inferred from the names, with a warning. A type that has
the names of another one but computes differently is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

from inference.errors import UnsupportedArchitecture, UnsupportedFormat
from inference.modelling.families.config import CheckpointConfig, Confidence, Facts
from inference.modelling.families.registry import FAMILIES

Format = Literal["oxidizr", "huggingface"]

ARCHITECTURE_NAMES: Mapping[str, str] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "MixtralForCausalLM": "mixtral",
    "Phi3ForCausalLM": "phi3",
    "Gemma2ForCausalLM": "gemma2",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "MambaForCausalLM": "mamba",
    "FalconMambaForCausalLM": "falcon_mamba",
    "Mamba2ForCausalLM": "mamba2",
    "BambaForCausalLM": "bamba",
    "GraniteMoeHybridForCausalLM": "granitemoehybrid",
    "NemotronHForCausalLM": "nemotron_h",
    "JambaForCausalLM": "jamba",
}
"""``architectures[0]`` of config.json to ``model_type``."""

DIFFERENT_ARITHMETIC = frozenset(
    {
        "arcee", "cohere", "cohere2", "ernie4_5", "exaone", "exaone4", "falcon_h1", "gemma", "gemma3",
        "gemma3_text", "gemma3n", "gemma4", "glm", "glm4", "glm4_moe", "gpt_neox", "gpt_oss", "granite", "granitemoe",
        "granitemoeshared", "helium", "hunyuan_v1_dense", "internlm2", "kimi_linear", "lfm2", "llama4", "llama4_text",
        "minicpm", "minicpm3", "minimax", "nemotron", "olmo", "olmo2", "olmo3", "olmoe", "persimmon", "phi", "phimoe",
        "qwen3_next", "seed_oss", "smollm3", "stablelm", "starcoder2", "zamba", "zamba2",
    }
)  # fmt: skip
"""Types whose tensors are (or can be) named like another family's while their arithmetic differs. Read as
that family they would give fluent nonsense, so without a family of their own they are refused."""

_SIGNATURES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("nemotron_h", (r"backbone\..*\.mixer\.dt_bias$", r"backbone\..*\.mixer\.(q_proj|up_proj)\."), ()),
    ("mamba", (r"backbone\..*\.mixer\.x_proj\.",), (r"\.mixer\.q_proj\.",)),
    ("mamba2", (r"backbone\..*\.mixer\.dt_bias$",), (r"\.mixer\.(q_proj|up_proj)\.",)),
    ("deepseek_v3", (r"\.kv_a_proj_with_mqa\.", r"\.e_score_correction_bias$"), ()),
    ("deepseek_v2", (r"\.kv_a_proj_with_mqa\.",), ()),
    ("jamba", (r"\.mamba\.x_proj\.", r"\.feed_forward\."), ()),
    ("granitemoehybrid", (r"\.shared_mlp\.input_linear\.", r"\.mamba\.dt_bias$"), ()),
    ("bamba", (r"\.mamba\.dt_bias$", r"\.feed_forward\.gate_proj\."), ()),
    ("mixtral", (r"\.block_sparse_moe\.experts\.0\.w1\.", r"\.self_attn\.q_proj\."), ()),
    ("phi3", (r"\.self_attn\.qkv_proj\.", r"\.mlp\.gate_up_proj\."), ()),
    ("gemma2", (r"\.pre_feedforward_layernorm\.", r"\.post_feedforward_layernorm\."), (r"\.q_norm\.",)),
    ("qwen2_moe", (r"\.mlp\.shared_expert_gate\.",), ()),
    ("qwen3_moe", (r"\.mlp\.experts\.", r"\.self_attn\.q_norm\."), ()),
    ("qwen3", (r"\.self_attn\.q_norm\.", r"\.mlp\.gate_proj\.", r"\.input_layernorm\."), ()),
    ("qwen2", (r"\.self_attn\.q_proj\.bias$", r"\.mlp\.gate_proj\.", r"\.input_layernorm\."), ()),
    ("llama", (r"\.self_attn\.q_proj\.weight$", r"\.mlp\.gate_proj\.", r"\.input_layernorm\."), ()),
)
"""Type, patterns that must occur in the names, patterns that must not; the first that fits is inferred."""


def detect_format(names: Iterable[str], facts: Facts) -> Format:
    """``huggingface`` if any name starts with ``model.`` or ``backbone.``, else ``oxidizr``."""
    found = next((name for name in names if name.startswith(("model.", "backbone."))), None)
    if found is None:
        facts.add("format", "oxidizr", "no tensor name starts with model. or backbone.")
        return "oxidizr"
    facts.add("format", "huggingface", f"tensor names such as {found[:80]}")
    return "huggingface"


def detect_model_type(
    names: Iterable[str], format_: Format, config: CheckpointConfig, facts: Facts
) -> tuple[str, bool]:
    """Return the family to read the checkpoint with, and whether it was only inferred from the names.

    Raises:
        UnsupportedArchitecture: The type is not supported and can't be inferred, or the names are of no known layers.
    """
    if "model_type" in facts.overrides:
        return str(facts.add("model_type", None, "")), False
    stated = config.get("model_type")
    stated = stated if isinstance(stated, str) else None
    if format_ == "oxidizr":
        if stated not in (None, "oxidizr"):
            facts.warn(
                f"config.json says model_type {str(stated)[:60]!r}, but the tensors have oxidizr's names, by which "
                "they are read."
            )
        facts.add("model_type", "oxidizr", "tensor names without a prefix")
        return "oxidizr", False
    if stated in FAMILIES and stated != "oxidizr":
        facts.add("model_type", stated, "config.json")
        return str(stated), False
    if stated in DIFFERENT_ARITHMETIC:
        raise UnsupportedArchitecture(
            f"model_type {stated!r} is not supported; supported are {', '.join(sorted(FAMILIES))}.", param="model_type"
        )
    architectures = config.get("architectures", default=())
    first = architectures[0] if isinstance(architectures, list) and architectures else None
    if stated is None and isinstance(first, str) and first in ARCHITECTURE_NAMES:
        facts.add("model_type", ARCHITECTURE_NAMES[first], f"config.json (architectures: {first})", Confidence.HIGH)
        return ARCHITECTURE_NAMES[first], False
    return _infer_from_names(list(names), stated, facts), True


def _infer_from_names(names: list[str], stated: str | None, facts: Facts) -> str:
    def occurs(pattern: str) -> bool:
        compiled = re.compile(pattern)
        return any(compiled.search(name) for name in names)

    reason = "config.json has no model_type" if stated is None else f"model_type {stated[:60]!r} is unknown"
    for model_type, required, forbidden in _SIGNATURES:
        if all(map(occurs, required)) and not any(map(occurs, forbidden)):
            facts.add("model_type", model_type, f"{reason}; the tensor names are {model_type}'s", Confidence.LOW)
            facts.warn(
                f"{reason}; it is read as {model_type} by its tensor names. Names don't show activations, norm "
                "offsets or multipliers: set model_type if the text is nonsense."
            )
            return model_type
    shown = ", ".join(name[:80] for name in sorted(names)[:5])
    raise UnsupportedArchitecture(
        f"{reason}, and the tensor names ({shown}, …) are of no known architecture.", param="model_type"
    )


def refuse_quantised(names: Iterable[str], config: CheckpointConfig) -> None:
    """Refuse quantised weights, which would otherwise appear as odd shapes.

    Raises:
        UnsupportedFormat: config.json or a tensor name shows quantisation.
    """
    quantisation = config.get("quantization_config", "compression_config")
    if quantisation is not None:
        method = quantisation.get("quant_method", "?") if isinstance(quantisation, Mapping) else "?"
        raise UnsupportedFormat(
            f"the checkpoint is quantised ({str(method)[:40]}), which is not served yet; use the unquantised weights.",
            param="quantization_config",
        )
    for name in names:
        if name.endswith((".qweight", ".g_idx", ".qzeros", ".weight_scale_inv", ".weight_scale", "_blocks")):
            raise UnsupportedFormat(
                f"tensor {name[:120]} belongs to quantised weights, which are not served yet; use the "
                "unquantised weights.",
                param=name[:120],
            )
