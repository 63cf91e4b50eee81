"""Multi-head latent attention as DeepSeek's files name it, and what chooses the keys that its queries see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from inference.errors import CorruptCheckpoint, TensorShapeMismatch, UnsupportedArchitecture
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_values import check_size, integer_with_evidence
from inference.modelling.families.headers import matrix_shape
from inference.modelling.families.rope_config import read_rope, yarn_softmax_multiplier
from inference.modelling.specs.compressed import CompressedIndexerSpec, CompressorSpec
from inference.modelling.specs.indexer import IndexerSpec
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.parts import NormSpec, RopeSpec, prefixed
from inference.modelling.specs.sources import Piece, Source, concatenated, tensor

LATENT_NORM = NormSpec("rms", 1e-6)
"""eps of the norms of the latents, which ``rms_norm_eps`` doesn't reach."""


def mla_spec(
    view: CheckpointView,
    base: str,
    max_positions: int,
    *,
    interleaved: bool | None,
    output: str = "o_proj",
    query: str = "q_b_proj",
    joins_latents: bool = False,
) -> MLASpec:
    """Sizes from the shapes of the layer under ``base``; only the head count has to come from config.json.

    Args:
        base: With the dot: ``model.layers.0.self_attn.``.
        max_positions: The model's context.
        interleaved: Whether adjacent pairs are rotated, or the halves; None: nothing is rotated.
        output: The file's name of the last projection.
        query: The file's name of what makes the queries from their latent.
        joins_latents: As in ``MLASpec``; ``q_b_proj`` then holds each head's query and output gate.
    """
    config, tensors, facts = view.config, view.tensors, view.facts
    heads = config.integer("num_attention_heads", high=1 << 16)
    facts.add("attention.num_heads", heads, "config.json")
    rank = _columns(view, f"{base}kv_b_proj.weight")
    rope_dim = _rows(view, f"{base}kv_a_proj_with_mqa.weight") - rank
    compressed = f"{base}q_a_proj.weight" in tensors
    q_name = f"{base}{query if compressed else 'q_proj'}.weight"
    value_dim = _per_head(f"{base}{output}.weight", _columns(view, f"{base}{output}.weight"), heads)
    gate_dim = value_dim if joins_latents else 0
    nope_dim = _per_head(q_name, _rows(view, q_name), heads) - rope_dim - gate_dim
    expanded = _per_head(f"{base}kv_b_proj.weight", _rows(view, f"{base}kv_b_proj.weight"), heads)
    _check_widths(base, heads, rope_dim, nope_dim, value_dim, expanded, least_rope_dim=int(interleaved is not None))
    q_rank = _rows(view, f"{base}q_a_proj.weight") if compressed else None
    sizes = {
        "kv_lora_rank": rank,
        "qk_rope_head_dim": rope_dim,
        "qk_nope_head_dim": nope_dim,
        "qk_head_dim": nope_dim + rope_dim,
        "v_head_dim": value_dim,
        "q_lora_rank": q_rank,
    }
    _check_sizes(view, base, sizes)
    rope = None
    if interleaved is not None:
        rope = read_rope(view, rope_dim, max_position_embeddings=max_positions, interleaved=interleaved)
    return MLASpec(
        num_heads=heads,
        kv_lora_rank=rank,
        q_lora_rank=q_rank,
        qk_nope_head_dim=nope_dim,
        qk_rope_head_dim=rope_dim,
        v_head_dim=value_dim,
        scale=(nope_dim + rope_dim) ** -0.5 * (1.0 if rope is None else yarn_softmax_multiplier(rope)),
        rope=rope,
        q_a_norm=LATENT_NORM if compressed else None,
        kv_a_norm=LATENT_NORM,
        bias=f"{base}kv_a_proj_with_mqa.bias" in tensors,
        joins_latents=joins_latents,
        output_gate=joins_latents,
    )


def _check_widths(
    base: str, heads: int, rope_dim: int, nope_dim: int, value_dim: int, expanded: int, *, least_rope_dim: int
) -> None:
    """Compare a head's widths with its rows of ``kv_b_proj``.

    Raises:
        TensorShapeMismatch: They aren't its unrotated keys and its values.
    """
    if rope_dim < least_rope_dim or nope_dim < 1 or expanded != nope_dim + value_dim:
        raise TensorShapeMismatch(
            f"the attention tensors of {base[:-1]} don't fit {heads} heads: rotated width {rope_dim}, unrotated "
            f"{nope_dim}, value width {value_dim}, but kv_b_proj has {expanded} rows for each head.",
            param=f"{base}kv_b_proj.weight",
        )


def _check_sizes(view: CheckpointView, base: str, sizes: Mapping[str, int | None]) -> None:
    """Record the sizes that the shapes under ``base`` give, which config.json may not contradict."""
    for key, found in sizes.items():
        check_size(view, found or 0, f"shapes of the tensors of {base[:-1]}", key)
        if found is not None:
            view.facts.add(f"mla.{key}", found, f"shapes of the tensors of {base[:-1]}")


def query_name(view: CheckpointView, layer: str) -> str:
    """The file's name of the matrix that makes a layer's queries from their latent."""
    in_transformers = "q_gate_proj"  # A.X-K2's, which its own files call as all others do
    return in_transformers if f"{layer}self_attn.{in_transformers}.weight" in view.tensors else "q_b_proj"


def indexer_spec(view: CheckpointView, base: str, spec: MLASpec) -> IndexerSpec:
    """What chooses the keys of the attention ``spec`` by its query latent; unless changed, it rotates halves.

    Raises:
        UnsupportedArchitecture: The queries have no latent.
    """
    if spec.q_lora_rank is None or spec.rope is None:
        raise _without_latent(base)
    return read_indexer(view, base, replace(spec.rope, interleaved=False))


def read_indexer(view: CheckpointView, base: str, rope: RopeSpec | None) -> IndexerSpec:
    """What chooses the keys of the attention under ``base``, whose queries and keys are rotated by ``rope``.

    Raises:
        TensorShapeMismatch: More values are rotated than a key has.
    """
    width, heads = _indexer_sizes(view, base)
    top_k = integer_with_evidence(view, "attention.index_topk", ("index_topk",), 2048)
    if rope is not None and rope.rotary_dim > width:
        raise TensorShapeMismatch(
            f"{base}indexer.wk.weight has {width} rows, but {rope.rotary_dim} values of a key are rotated.",
            param=f"{base}indexer.wk.weight",
        )
    return IndexerSpec(heads, width, top_k, rope, NormSpec("layer", 1e-6))


def compressed_indexer_spec(view: CheckpointView, base: str, spec: MLASpec) -> CompressedIndexerSpec:
    """What chooses windows of the tokens that the attention ``spec`` sees (GLM-5.3).

    Raises:
        UnsupportedArchitecture: The queries have no latent.
        CorruptCheckpoint: The number of tokens isn't one of whole windows.
    """
    if spec.q_lora_rank is None:
        raise _without_latent(base)
    width, heads = _indexer_sizes(view, base)
    window = _rows(view, f"{base}indexer.index_kpool_compress_ape")
    check_size(view, window, f"rows of {base}indexer.index_kpool_compress_ape", "index_kpool")
    tokens = integer_with_evidence(view, "attention.index_topk", ("index_topk",), 2048)
    if tokens % window:
        raise CorruptCheckpoint(
            f"config.json: index_topk is {tokens}, which isn't a multiple of the {window} tokens of a window "
            "(index_kpool).",
            param="index_topk",
        )
    compressor = CompressorSpec(window, width, False, None, None, kv_norm=NormSpec("layer", 1e-6))
    return CompressedIndexerSpec(heads, tokens // window, compressor)


def _indexer_sizes(view: CheckpointView, base: str) -> tuple[int, int]:
    """Width of an indexer's heads, and their number."""
    width = _rows(view, f"{base}indexer.wk.weight")
    heads = _rows(view, f"{base}indexer.weights_proj.weight")
    check_size(view, width, f"rows of {base}indexer.wk.weight", "index_head_dim")
    check_size(view, heads, f"rows of {base}indexer.weights_proj.weight", "index_n_heads")
    return width, heads


def _without_latent(base: str) -> UnsupportedArchitecture:
    return UnsupportedArchitecture(
        f"{base}q_a_proj.weight is missing; the indexer makes its queries from that latent.", param="q_lora_rank"
    )


def _indexer_sources(spec: IndexerSpec | CompressedIndexerSpec, base: str) -> dict[str, Source]:
    if isinstance(spec, CompressedIndexerSpec):
        names = {"q_proj.weight": "wq_b.weight", "head_weights.weight": "weights_proj.weight"}
        names |= {f"compressor.kv_norm.{leaf}": f"k_norm.{leaf}" for leaf in ("weight", "bias")}
        names["compressor.position_bias"] = "index_kpool_compress_ape"
        sources = {ours: tensor(f"{base}indexer.{theirs}") for ours, theirs in names.items()}
        both = (f"{base}indexer.{name}" for name in ("wk.weight", "index_kpool_compress_gate"))
        return prefixed("indexer", sources | {"compressor.kv_gate_proj.weight": concatenated(*both)})
    names = {"q_proj": "wq_b", "k_proj": "wk", "head_weights": "weights_proj"}
    sources = {f"{ours}.weight": tensor(f"{base}indexer.{theirs}.weight") for ours, theirs in names.items()}
    sources |= {f"k_norm.{leaf}": tensor(f"{base}indexer.k_norm.{leaf}") for leaf in ("weight", "bias")}
    if spec.hidden_norm is not None:
        sources |= {f"hidden_norm.{leaf}": tensor(f"{base}indexer.q_input_norm.{leaf}") for leaf in ("weight", "bias")}
    if spec.has_softmax_scale:
        sources |= _softmax_scale_sources(f"{base}indexer.")
    return prefixed("indexer", sources)


def _softmax_scale_sources(base: str) -> dict[str, Source]:
    return {f"softmax_scale.{leaf}": tensor(f"{base}softmax_scaling.{leaf}") for leaf in ("scale", "bias")}


def mla_sources(spec: MLASpec, base: str, *, output: str = "o_proj", query: str = "q_b_proj") -> dict[str, Source]:
    """``kv_b_proj`` holds k and v head by head; they become two parameters."""
    nope, both = spec.qk_nope_head_dim, spec.qk_nope_head_dim + spec.v_head_dim
    sources = {
        "k_b_proj.weight": Source((Piece(f"{base}kv_b_proj.weight", per_group=(both, 0, nope)),)),
        "v_b_proj.weight": Source((Piece(f"{base}kv_b_proj.weight", per_group=(both, nope, both)),)),
        "o_proj.weight": tensor(f"{base}{output}.weight"),
    }
    if spec.kv_source is None:
        sources["kv_a_proj.weight"] = tensor(f"{base}kv_a_proj_with_mqa.weight")
        sources["kv_a_norm.weight"] = tensor(f"{base}kv_a_layernorm.weight")
    if spec.k_rope_norm is not None:
        sources["k_rope_norm.weight"] = tensor(f"{base}k_rope_only_layernorm.weight")
    if spec.head_gate:
        sources["head_gate.weight"] = tensor(f"{base}g_proj.weight")
    if spec.q_lora_rank is None:
        sources["q_proj.weight"] = tensor(f"{base}q_proj.weight")
    else:
        sources["q_a_proj.weight"] = tensor(f"{base}q_a_proj.weight")
        sources["q_a_norm.weight"] = tensor(f"{base}q_a_layernorm.weight")
        sources |= _query_sources(spec, f"{base}{query}.weight")
    if spec.indexer is not None:
        sources |= _indexer_sources(spec.indexer, base)
    if spec.has_softmax_scale:
        sources |= _softmax_scale_sources(base)
    if spec.bias:
        if spec.kv_source is None:
            sources["kv_a_proj.bias"] = tensor(f"{base}kv_a_proj_with_mqa.bias")
        sources["o_proj.bias"] = tensor(f"{base}{output}.bias")
        if spec.q_lora_rank is not None:
            sources["q_a_proj.bias"] = tensor(f"{base}q_a_proj.bias")
    return sources


def _query_sources(spec: MLASpec, name: str) -> dict[str, Source]:
    """Of the matrix ``name``, which holds each head's query, and its output gate where ``joins_latents``."""
    if not spec.joins_latents:
        return {"q_b_proj.weight": tensor(name)}
    width = spec.qk_nope_head_dim + spec.qk_rope_head_dim
    both = width + spec.v_head_dim
    return {
        "q_b_proj.weight": Source((Piece(name, per_group=(both, 0, width)),)),
        "gate_proj.weight": Source((Piece(name, per_group=(both, width, both)),)),
    }


def _rows(view: CheckpointView, name: str) -> int:
    return matrix_shape(view.tensors, name)[0]


def _columns(view: CheckpointView, name: str) -> int:
    return matrix_shape(view.tensors, name)[1]


def _per_head(name: str, size: int, heads: int) -> int:
    if size % heads:
        raise TensorShapeMismatch(
            f"{name}: {size} can't be split into the {heads} heads that config.json states.", param=name
        )
    return size // heads
