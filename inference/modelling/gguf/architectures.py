"""Read a GGUF file as the checkpoint that it was converted from: its config.json, and its tensors by their old names.

An architecture is a row of ``ARCHITECTURES``: a config function, the names outside and inside of layers, and the
prefix of the layers. Families don't know where a checkpoint came from. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from inference.errors import CorruptCheckpoint, TensorShapeMismatch, UnsupportedArchitecture, UnsupportedFormat
from inference.modelling.gguf import (
    configs,
    dense_configs,
    early_configs,
    early_names,
    expert_configs,
    expert_names,
    gemma_configs,
    mixed_configs,
    names,
)
from inference.modelling.gguf.config_parts import draft_layers
from inference.modelling.gguf.container import GgufArray
from inference.modelling.gguf.metadata import Metadata
from inference.modelling.gguf.parts import GgufParts, read_parts
from inference.modelling.gguf.tensors import (
    CheckpointTensor,
    DeltaHeads,
    Heads,
    How,
    Rename,
    Segment,
    checkpoint_tensors,
)

MAX_LAYERS = 4096
_LAYER = re.compile(r"blk\.(0|[1-9]\d{0,3})\.")
_SINGLE_EXPERT = re.compile(r"blk\.(0|[1-9]\d{0,3})\.ffn_(gate|up|down)\.(0|[1-9]\d{0,4})\.weight")
FLOAT32, FLOAT32_BYTES = 0, 4
"""Number of the type of plain floats, and the size of one."""
CONFIG_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors whose values go into the config."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """How files of an architecture are read.

    Attributes:
        config: Makes config.json of the metadata.
        layers: Names of the layers' tensors.
        outer: Names of the others.
        prefix: What stands before the number of a layer.
        arrays: Keys with a number for each layer, to the tensor of the layer that it was.
        drafts: Whether files can have layers behind the model's, which draft tokens, and how checkpoints call them:
            under ``mtp.``, or as further layers; ``unread``: the family doesn't know them, and they stay in the file.
    """

    config: Callable[[Metadata], dict[str, Any]]
    layers: tuple[Rename, ...]
    outer: Mapping[str, tuple[str, How]]
    prefix: str = "model.layers."
    drafts: Literal["", "mtp", "layers", "unread"] = ""
    arrays: Mapping[str, str] = field(default_factory=dict)


def _backbone(config: Callable[[Metadata], dict[str, Any]], layers: tuple[Rename, ...]) -> Architecture:
    return Architecture(config, layers, names.BACKBONE_OUTER, "backbone.layers.")


_MIXTRAL = Architecture(configs.llama, names.MIXTRAL, names.OUTER)
_QWEN3_NEXT_AS_IT_WAS = Architecture(configs.qwen3_next, names.QWEN3_NEXT_AS_IT_WAS, names.GEMMA_OUTER)
_FALCON_TWO_NORMS = Architecture(
    early_configs.falcon, early_names.FALCON_TWO_NORMS, early_names.FALCON_OUTER, "transformer.h."
)
_NEMOTRON = _backbone(configs.nemotron_h, names.NEMOTRON_H)

ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(configs.llama, names.LLAMA, names.OUTER),
    "qwen2": Architecture(configs.qwen, names.QWEN, names.OUTER),
    "qwen3": Architecture(configs.qwen, names.QWEN, names.OUTER),
    "qwen2moe": Architecture(configs.qwen_moe, names.QWEN_MOE, names.OUTER),
    "qwen3moe": Architecture(configs.qwen_moe, names.QWEN_MOE, names.OUTER),
    "qwen3next": Architecture(configs.qwen3_next, names.QWEN3_NEXT, names.GEMMA_OUTER, drafts="mtp"),
    "qwen35": Architecture(configs.qwen35, names.QWEN35, names.GEMMA_OUTER, drafts="mtp"),
    "qwen35moe": Architecture(configs.qwen35, names.QWEN35_MOE, names.GEMMA_OUTER, drafts="mtp"),
    "lfm2": Architecture(configs.lfm2, names.LFM2, names.LFM2_OUTER),
    "lfm2moe": Architecture(configs.lfm2, names.LFM2_MOE, names.LFM2_OUTER),
    "phi3": Architecture(configs.phi3, names.PHI3, names.OUTER),
    "gemma2": Architecture(configs.gemma2, names.GEMMA, names.GEMMA_OUTER),
    "gemma3": Architecture(configs.gemma3, names.GEMMA, names.GEMMA_OUTER),
    "llama4": Architecture(expert_configs.llama4, names.LLAMA4, names.OUTER),
    "gemma3n": Architecture(gemma_configs.gemma3n, names.GEMMA3N, names.GEMMA3N_OUTER),
    "gemma4": Architecture(gemma_configs.gemma4, expert_names.GEMMA4, names.LAYER_INPUTS_OUTER),
    "mamba": _backbone(configs.mamba, names.MAMBA),
    "mamba2": _backbone(configs.mamba2, names.MAMBA2),
    "jamba": Architecture(configs.jamba, names.JAMBA, names.JAMBA_OUTER),
    "granite": Architecture(dense_configs.granite, names.LLAMA, names.OUTER),
    "granitemoe": Architecture(expert_configs.granite_moe, names.GRANITE, names.OUTER),
    "granitehybrid": Architecture(configs.granite_hybrid, names.GRANITE, names.OUTER),
    "falcon-h1": Architecture(configs.falcon_h1, names.FALCON_H1, names.JAMBA_OUTER),
    "nemotron_h": _NEMOTRON,
    "nemotron_h_moe": _NEMOTRON,
    "deepseek2": Architecture(configs.deepseek2, names.DEEPSEEK2, names.OUTER, drafts="layers"),
    "gemma": Architecture(dense_configs.gemma, names.GEMMA1, names.GEMMA_OUTER),
    "phi2": Architecture(dense_configs.phi2, names.PHI2, names.PHI2_OUTER),
    "starcoder2": Architecture(dense_configs.starcoder2, names.STARCODER2, names.BIASED_OUTER),
    "stablelm": Architecture(dense_configs.stablelm, names.STABLELM, names.BIASED_OUTER),
    "command-r": Architecture(dense_configs.command_r, names.COHERE, names.OUTER),
    "cohere2": Architecture(dense_configs.cohere2, names.COHERE, names.OUTER),
    "olmo": Architecture(dense_configs.olmo, names.OLMO, names.OUTER),
    "olmo2": Architecture(dense_configs.olmo2, names.OLMO2, names.OUTER),
    "olmoe": Architecture(expert_configs.olmoe, names.OLMOE, names.OUTER),
    "chatglm": Architecture(partial(dense_configs.plain, model_type="glm"), names.CHATGLM, names.OUTER),
    "glm4": Architecture(dense_configs.glm4, names.GLM4, names.OUTER),
    "glm4moe": Architecture(expert_configs.glm4_moe, names.GLM4_MOE, names.OUTER, drafts="layers"),
    "smollm3": Architecture(dense_configs.smollm3, names.LLAMA, names.OUTER),
    "exaone4": Architecture(dense_configs.exaone4, names.OLMO2, names.OUTER, drafts="unread"),
    "exaone-moe": Architecture(expert_configs.exaone_moe, names.EXAONE_MOE, names.OUTER, drafts="layers"),
    "ernie4_5": Architecture(partial(dense_configs.plain, model_type="ernie4_5"), names.QWEN, names.OUTER),
    "ernie4_5-moe": Architecture(expert_configs.ernie4_5_moe, names.ERNIE4_5_MOE, names.OUTER),
    "hunyuan-dense": Architecture(
        partial(dense_configs.plain, model_type="hunyuan_v1_dense"), names.HUNYUAN, names.OUTER
    ),
    "hunyuan-moe": Architecture(expert_configs.hunyuan_moe, names.HUNYUAN_MOE, names.OUTER),
    "seed_oss": Architecture(partial(dense_configs.plain, model_type="seed_oss"), names.SEED_OSS, names.OUTER),
    "nemotron": Architecture(dense_configs.nemotron, names.NEMOTRON, names.NEMOTRON_OUTER),
    "jais2": Architecture(dense_configs.jais2, names.JAIS2, names.BIASED_OUTER),
    "arcee": Architecture(dense_configs.arcee, names.ARCEE, names.OUTER),
    "minicpm3": Architecture(dense_configs.minicpm3, names.DEEPSEEK2, names.OUTER),
    "dots1": Architecture(expert_configs.dots1, names.DOTS1, names.OUTER),
    "minimax-m2": Architecture(expert_configs.minimax_m2, names.MINIMAX_M2, names.OUTER),
    "phimoe": Architecture(expert_configs.phimoe, names.PHIMOE, names.PHIMOE_OUTER),
    "afmoe": Architecture(expert_configs.afmoe, names.AFMOE, names.OUTER),
    "apertus": Architecture(
        dense_configs.apertus,
        names.APERTUS,
        names.OUTER,
        arrays={"xielu.alpha_p": "mlp.act_fn.alpha_p", "xielu.alpha_n": "mlp.act_fn.alpha_n"},
    ),
    "bloom": Architecture(early_configs.bloom, early_names.BLOOM, early_names.BLOOM_OUTER, "transformer.h."),
    "falcon": Architecture(early_configs.falcon, early_names.FALCON, early_names.FALCON_OUTER, "transformer.h."),
    "gpt2": Architecture(early_configs.gpt2, early_names.GPT2, early_names.GPT2_OUTER, "transformer.h."),
    "gptneox": Architecture(
        early_configs.gpt_neox, early_names.GPT_NEOX, early_names.GPT_NEOX_OUTER, "gpt_neox.layers."
    ),
    "mpt": Architecture(early_configs.mpt, early_names.MPT, early_names.MPT_OUTER, "transformer.blocks."),
    "starcoder": Architecture(early_configs.starcoder, early_names.GPT2, early_names.GPT2_OUTER, "transformer.h."),
    "gpt-oss": Architecture(expert_configs.gpt_oss, expert_names.GPT_OSS, names.OUTER),
    "kimi-linear": Architecture(expert_configs.kimi_linear, expert_names.KIMI_LINEAR, names.OUTER),
    "mimo2": Architecture(expert_configs.mimo2, expert_names.MIMO2, names.OUTER, drafts="layers"),
    "dbrx": Architecture(expert_configs.dbrx, expert_names.DBRX, expert_names.DBRX_OUTER, "transformer.blocks."),
    "deepseek32": Architecture(
        partial(expert_configs.sparse_deepseek, model_type="deepseek_v32"),
        expert_names.DEEPSEEK32,
        names.OUTER,
        drafts="layers",
    ),
    "glm-dsa": Architecture(
        partial(expert_configs.sparse_deepseek, model_type="glm_moe_dsa"),
        expert_names.DEEPSEEK32,
        names.OUTER,
        drafts="layers",
    ),
    "mellum": Architecture(expert_configs.mellum, names.QWEN_MOE, names.OUTER),
    "cohere2moe": Architecture(expert_configs.cohere2_moe, expert_names.COHERE2_MOE, names.OUTER, drafts="unread"),
    "minimax-m3": Architecture(expert_configs.minimax_m3, expert_names.MINIMAX_M3, names.GEMMA_OUTER),
    "internlm2": Architecture(partial(dense_configs.plain, model_type="llama"), names.LLAMA, names.OUTER),
    "qwen2vl": Architecture(partial(dense_configs.plain, model_type="qwen2"), names.QWEN, names.OUTER),
    "qwen3vl": Architecture(partial(dense_configs.plain, model_type="qwen3"), names.QWEN, names.OUTER),
    "qwen3vlmoe": Architecture(configs.qwen_moe, names.QWEN_MOE, names.OUTER),
    "mistral3": Architecture(dense_configs.mistral3, names.LLAMA, names.OUTER),
    "exaone": Architecture(partial(dense_configs.plain, model_type="llama"), names.QWEN, names.OUTER),
    "minicpm": Architecture(dense_configs.minicpm, names.LLAMA, names.OUTER),
    "baichuan": Architecture(dense_configs.baichuan, names.LLAMA, names.OUTER),
    "qwen": Architecture(dense_configs.qwen1, names.QWEN, names.OUTER),
    "xverse": Architecture(partial(dense_configs.plain, model_type="llama"), names.LLAMA, names.OUTER),
    "orion": Architecture(dense_configs.orion, names.STABLELM, names.BIASED_OUTER),
    "codeshell": Architecture(dense_configs.starcoder2, names.STARCODER2, names.BIASED_OUTER),
    "pangu-embedded": Architecture(partial(dense_configs.plain, model_type="llama"), names.QWEN, names.OUTER),
    "hunyuan_vl": Architecture(dense_configs.hunyuan_vl, names.HUNYUAN, names.OUTER),
    "maincoder": Architecture(
        partial(dense_configs.plain, model_type="hunyuan_v1_dense"), names.MAINCODER, names.OUTER
    ),
    "paddleocr": Architecture(partial(dense_configs.plain, model_type="llama"), names.QWEN, names.OUTER),
    "bailingmoe": Architecture(expert_configs.bailing_moe, names.ERNIE4_5_MOE, names.OUTER),
    "bailingmoe2": Architecture(expert_configs.bailing_moe2, expert_names.BAILING_MOE2, names.OUTER, drafts="layers"),
    "bailingmoe3": Architecture(mixed_configs.bailing_moe3, expert_names.BAILING_MOE3, names.OUTER, drafts="layers"),
    "hy_v3": Architecture(expert_configs.hy_v3, expert_names.HY_V3, names.OUTER, drafts="layers"),
    "hy_v4": Architecture(mixed_configs.hy_v4, expert_names.HY_V4, expert_names.HY_V4_OUTER),
    "laguna": Architecture(mixed_configs.laguna, expert_names.LAGUNA, names.OUTER),
    "granite_swa": Architecture(mixed_configs.granite_swa, expert_names.GRANITE_SWA, names.OUTER),
    "minimax-01": Architecture(mixed_configs.minimax_01, expert_names.MINIMAX_01, names.OUTER),
}
"""``general.architecture`` to how it is read."""


@dataclass(frozen=True, slots=True)
class GgufCheckpoint:
    """A file as the checkpoint that it was made of.

    Attributes:
        parts: Its headers.
        architecture: ``general.architecture``.
        config: What config.json would have.
        tensors: How each tensor is put together, by the name that it had.
    """

    parts: GgufParts
    architecture: str
    config: Mapping[str, Any]
    tensors: Mapping[str, CheckpointTensor]


def read_checkpoint(paths: Sequence[Path]) -> GgufCheckpoint:
    """Read the headers of all parts of a file.

    Args:
        paths: All parts, in order.

    Raises:
        UnsupportedArchitecture: An architecture that isn't read, or a tensor that it doesn't have.
        UnsupportedFormat: The file holds no model (an adapter, a projector), or no GGUF.
        CorruptCheckpoint: A part breaks the format, or a key has a value of another kind.
        MissingTensor: A part is missing.
        TensorShapeMismatch: A tensor has a shape that can't be what it is named after, or the vocabulary has another
            size than the embedding.
    """
    parts = read_parts(paths)
    kind = parts.keys.get("general.type", "model")
    if kind != "model":
        raise UnsupportedFormat(
            f"{parts.head.path.name} holds no model, but {str(kind)[:60]!r} (general.type); name the model's file.",
            param="general.type",
        )
    meta = Metadata(parts)
    row = ARCHITECTURES.get(meta.architecture)
    if row is None:
        raise UnsupportedArchitecture(
            f"{parts.head.path.name} is of the architecture {meta.architecture[:60]!r}, which is not read; read are "
            f"{', '.join(ARCHITECTURES)}.",
            param="general.architecture",
        )
    if meta.architecture == "llama" and meta.integer("expert_count"):
        row = _MIXTRAL
    if meta.architecture == "qwen3next" and any(name.endswith(".ssm_in.weight") for name in parts.tensors):
        row = _QWEN3_NEXT_AS_IT_WAS
    if meta.architecture == "falcon" and "blk.0.attn_norm_2.weight" in parts.tensors:
        row = _FALCON_TWO_NORMS
    num_layers, drafts = _count_layers(meta, row)
    _check_vocabulary(parts)
    queries = meta.per_layer("attention.head_count")
    keys = meta.per_layer("attention.head_count_kv") or queries
    tensors = checkpoint_tensors(
        parts,
        {**row.outer, **_drafting(row, num_layers, drafts), **_single_experts(meta, row, num_layers)},
        row.layers,
        prefix=row.prefix,
        num_layers=num_layers + (drafts if row.drafts == "layers" else 0),
        heads={number: Heads(*pair) for number, pair in enumerate(zip(queries, keys, strict=False))},
        delta=_delta_heads(meta),
        unused=(*CONFIG_TENSORS, *_unread_layers(parts, row, num_layers)),
    )
    tensors |= _numbers_of_layers(parts, row, num_layers)
    return GgufCheckpoint(parts, meta.architecture, row.config(meta), tensors)


def _numbers_of_layers(parts: GgufParts, row: Architecture, num_layers: int) -> dict[str, CheckpointTensor]:
    """Tensors of one number each, which the file has in arrays of its metadata."""
    found: dict[str, CheckpointTensor] = {}
    for key, target in row.arrays.items():
        value = parts.keys.get(key)
        if not isinstance(value, GgufArray) or value.element != "float32" or value.count != num_layers:
            raise CorruptCheckpoint(
                f"the GGUF key {key} must be an array of {num_layers} float32, one for each layer.", param=key
            )
        for number in range(num_layers):
            place = Segment(0, FLOAT32, value.begin + number * FLOAT32_BYTES, 1, 1)
            found[f"{row.prefix}{number}.{target}"] = CheckpointTensor((1,), (place,))
    return found


def _count_layers(meta: Metadata, row: Architecture) -> tuple[int, int]:
    """(layers of the model, layers behind them that only draft tokens)."""
    count, file = meta.integer("block_count") or 0, meta.parts.head.path.name
    if not 1 <= count <= MAX_LAYERS:
        raise UnsupportedArchitecture(
            f"{file} states {count} layers ({meta.architecture}.block_count); 1 to {MAX_LAYERS} are needed.",
            param="block_count",
        )
    drafts = draft_layers(meta) if row.drafts else 0
    if drafts >= count:
        raise UnsupportedArchitecture(
            f"{file} states {count} layers, of which {drafts} only draft tokens "
            f"({meta.architecture}.nextn_predict_layers); at least one other is needed.",
            param="nextn_predict_layers",
        )
    return count - drafts, drafts


def _unread_layers(parts: GgufParts, row: Architecture, first: int) -> Iterator[str]:
    """Stored tensors of the layers from ``first`` on, where the family doesn't know them."""
    for name in parts.tensors if row.drafts == "unread" else ():
        match = _LAYER.match(name)
        if match is not None and int(match[1]) >= first:
            yield name


def _delta_heads(meta: Metadata) -> DeltaHeads | None:
    keys, values, width = (meta.integer(f"ssm.{name}") for name in ("group_count", "time_step_rank", "inner_size"))
    return DeltaHeads(keys, values, width) if keys and values and width else None


def _drafting(row: Architecture, first: int, count: int) -> dict[str, tuple[str, How]]:
    """Names of the layers from ``first`` on, which draft tokens, under ``mtp.``, and of what is around them."""
    found: dict[str, tuple[str, How]] = {}
    for number in range(count if row.drafts == "mtp" else 0):
        for inner, rows in (("", names.QWEN35_DRAFTS), (f"layers.{number}.", row.layers)):
            for item in rows:
                assert isinstance(item.stored, str)
                found[f"blk.{first + number}.{item.stored}"] = (f"mtp.{inner}{item.target}", item.how)
    return found


def _single_experts(meta: Metadata, row: Architecture, num_layers: int) -> dict[str, tuple[str, How]]:
    """Names of Mixtral's experts in the first files, which hold each matrix alone."""
    if row is not _MIXTRAL:
        return {}
    count = meta.integer("expert_count") or 0
    found: dict[str, tuple[str, How]] = {}
    for stored in meta.parts.tensors:
        match = _SINGLE_EXPERT.fullmatch(stored)
        if match is not None and int(match[1]) < num_layers and int(match[3]) < count:
            name = names.MIXTRAL_EXPERT[match[2]]
            found[stored] = (f"{row.prefix}{match[1]}.block_sparse_moe.experts.{match[3]}.{name}.weight", "")
    return found


def _check_vocabulary(parts: GgufParts) -> None:
    tokens, embedding = parts.keys.get("tokenizer.ggml.tokens"), parts.tensors.get("token_embd.weight")
    if not isinstance(tokens, GgufArray) or embedding is None:
        return
    rows = embedding[1].shape[0]
    if tokens.count != rows:
        raise TensorShapeMismatch(
            f"the vocabulary of {parts.head.path.name} has {tokens.count} tokens (tokenizer.ggml.tokens), but "
            f"token_embd.weight has {rows} rows; convert the model again.",
            param="tokenizer.ggml.tokens",
        )
