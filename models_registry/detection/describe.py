"""Describe an inspection as plain data, for ``blazr info`` and the page of the model."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from inference.modelling.spec import LayerSpec
from inference.modelling.specs.compressed import CompressedAttentionSpec
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.layers import AttentionSpec, ChannelMixerSpec, Mamba1Spec, Mamba2Spec, MoESpec
from inference.modelling.specs.linear import (
    GatedDeltaSpec,
    KimiDeltaSpec,
    LightningSpec,
    Mamba3Spec,
    MLSTMSpec,
    RGLRUSpec,
    ShortConvSpec,
)
from inference.modelling.specs.parallel import MixerSpec
from inference.modelling.specs.rwkv import ChannelMixSpec, TimeMixSpec
from models_registry.detection.facts import FACTS, facts_to_set
from models_registry.detection.inspection import Inspection


def describe(inspection: Inspection) -> dict[str, Any]:
    """Return the description of an inspection, ready for JSON.

    Returns:
        Sizes and totals by name; ``layers`` (number, kind, sizes, num_parameters, state bytes per token and per
        sequence); ``facts`` (name, value, evidence, confidence, and how each can be overridden); ``overridable``;
        ``warnings``; ``files``; ``tokenizer``.
    """
    spec = inspection.spec
    tokenizer = inspection.tokenizer
    return {
        "directory": str(inspection.directory),
        "format": spec.format,
        "model_type": spec.model_type,
        "dtype": spec.dtype,
        "num_layers": len(spec.layers),
        "hidden_size": spec.hidden_size,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_position_embeddings,
        "tie_word_embeddings": spec.tie_word_embeddings,
        "num_parameters": inspection.num_parameters,
        "num_parameters_outside_layers": sum(
            math.prod(shape) for name, shape in spec.parameter_shapes().items() if not name.startswith("layers.")
        ),
        "num_tensors": len(inspection.tensors),
        "stored_dtypes": dict(Counter(info.dtype for info in inspection.tensors.values()).most_common()),
        "size_bytes": inspection.size_bytes,
        "state_bytes_per_token": spec.state_bytes_per_token(),
        "state_bytes_per_sequence": spec.state_bytes_per_sequence(),
        "layer_kinds": dict(Counter(layer.kind for layer in spec.layers)),
        "layers": [_layer(number, layer, spec.hidden_size, spec.dtype) for number, layer in enumerate(spec.layers)],
        "tokenizer": {
            "kind": tokenizer.kind,
            "name": tokenizer.name,
            "file": None if tokenizer.path is None else tokenizer.path.rpartition("/")[2],
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_ids": list(tokenizer.eos_token_ids),
            "chat_template": tokenizer.chat_template_origin,
        },
        "facts": [fact.to_dict() | {"overridable": fact.name in FACTS} for fact in inspection.facts],
        "overridable": facts_to_set(spec.format),
        "warnings": list(inspection.warnings),
        "files": [{"path": file.path, "size_bytes": file.size_bytes, "role": file.role} for file in inspection.files],
    }


def _parameters_of(hidden_size: int) -> Any:
    return lambda layer: sum(math.prod(shape) for shape in layer.parameter_shapes(hidden_size).values())


def _layer(number: int, layer: LayerSpec, hidden_size: int, dtype: str) -> dict[str, Any]:
    sizes: dict[str, Any] = {}
    mixers = layer.token_mixers
    for mixer in mixers:
        found = _token_mixer_sizes(mixer)
        sizes |= found if len(mixers) == 1 else {f"{mixer.kind} {name}": size for name, size in found.items()}
    if layer.channel_mixer is not None:
        sizes |= _channel_mixer_sizes(layer.channel_mixer)
    state = layer.state()
    return {
        "number": number,
        "kind": layer.kind,
        "token_mixer": None if layer.token_mixer is None else layer.token_mixer.kind,
        "channel_mixer": None if layer.channel_mixer is None else layer.channel_mixer.kind,
        "sizes": sizes,
        "num_parameters": _parameters_of(hidden_size)(layer),
        "state_bytes_per_token": sum(part.size_bytes(dtype) for part in state if part.per == "token"),
        "state_bytes_per_sequence": sum(part.size_bytes(dtype) for part in state if part.per == "sequence"),
    }


def _token_mixer_sizes(mixer: MixerSpec) -> dict[str, Any]:
    sizes: dict[str, Any] = {}
    if isinstance(mixer, AttentionSpec):
        sizes = {"heads": mixer.num_heads, "kv heads": mixer.num_kv_heads, "head dim": mixer.head_dim}
        if mixer.sliding_window is not None:
            sizes["window"] = mixer.sliding_window
        if mixer.output_gate:
            sizes["gate"] = "of the output"
    elif isinstance(mixer, MLASpec):
        sizes = {"heads": mixer.num_heads, "kv latent": mixer.kv_lora_rank}
        if mixer.q_lora_rank is not None:
            sizes["q latent"] = mixer.q_lora_rank
        sizes |= {"head dim": mixer.qk_nope_head_dim, "rope dim": mixer.qk_rope_head_dim}
        if mixer.sliding_window is not None:
            sizes["window"] = mixer.sliding_window
    elif isinstance(mixer, CompressedAttentionSpec):
        sizes = {"heads": mixer.num_heads, "head dim": mixer.head_dim, "q latent": mixer.q_lora_rank}
        sizes["window"] = mixer.sliding_window
        if mixer.compressor is not None:
            sizes["tokens of an entry"] = mixer.compressor.window
        if mixer.indexer is not None:
            sizes["entries seen"] = mixer.indexer.top_k
    elif isinstance(mixer, Mamba1Spec):
        sizes = {"inner": mixer.intermediate_size, "state": mixer.state_size, "dt rank": mixer.dt_rank}
        sizes["kernel"] = mixer.conv_kernel
        if mixer.num_heads != 1:
            sizes["heads"] = mixer.num_heads
    elif isinstance(mixer, GatedDeltaSpec):
        sizes = {"heads": mixer.num_value_heads, "key heads": mixer.num_key_heads, "head dim": mixer.value_head_dim}
        sizes |= {"key dim": mixer.key_head_dim, "kernel": mixer.conv_kernel}
    elif isinstance(mixer, KimiDeltaSpec):
        sizes = {"heads": mixer.num_heads, "head dim": mixer.head_dim, "kernel": mixer.conv_kernel}
    elif isinstance(mixer, MLSTMSpec):
        sizes = {"heads": mixer.num_heads, "key dim": mixer.key_head_dim, "head dim": mixer.value_head_dim}
    elif isinstance(mixer, LightningSpec):
        sizes = {"heads": mixer.num_heads, "head dim": mixer.head_dim}
    elif isinstance(mixer, TimeMixSpec):
        sizes = {"width": mixer.width}
    elif isinstance(mixer, ChannelMixSpec):
        sizes = {"intermediate": mixer.intermediate_size}
    elif isinstance(mixer, ShortConvSpec | RGLRUSpec):
        sizes = {"width": mixer.width, "kernel": mixer.conv_kernel}
    elif isinstance(mixer, Mamba2Spec | Mamba3Spec):
        sizes = {"heads": mixer.num_heads, "head dim": mixer.head_dim, "state": mixer.state_size}
        if mixer.num_groups != 1:
            sizes["groups"] = mixer.num_groups
        if mixer.conv_kernel is not None:
            sizes["kernel"] = mixer.conv_kernel
        if isinstance(mixer, Mamba3Spec):
            sizes |= {"rotation": "complex" if mixer.complex_rope else "none"}
            if mixer.mimo_rank:
                sizes["MIMO rank"] = mixer.mimo_rank
        if mixer.a_override is not None:
            sizes["A"] = mixer.a_override
    return sizes


def _channel_mixer_sizes(mixer: ChannelMixerSpec) -> dict[str, Any]:
    if not isinstance(mixer, MoESpec):
        return {"ffn": mixer.intermediate_size}
    sizes: dict[str, Any] = {"experts": mixer.num_experts, "top k": mixer.top_k, "ffn": mixer.intermediate_size}
    if mixer.shared_intermediate_size:
        sizes["shared ffn"] = mixer.shared_intermediate_size
    return sizes
