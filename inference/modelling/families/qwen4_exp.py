"""Qwen4-Exp, its text model: several streams, chosen blocks of keys, embeddings of n-grams beside Qwen 3.5's layers.

Mixers read a mix of the streams; queries see the blocks of keys that an indexer chooses; some layers of the delta rule
first add what a table has for the last tokens; all layers have experts.

Source: transformers' ``qwen4_exp_text``, also for what config.json may leave out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from inference.errors import CorruptCheckpoint, TensorShapeMismatch, UnsupportedArchitecture
from inference.modelling.families.checks import OTHER_PARTS, ROTARY_BUFFERS
from inference.modelling.families.config import MAX_SIZE, CheckpointView
from inference.modelling.families.config_key_tables import Table, harmless, used
from inference.modelling.families.config_values import activation, check_size, rms_norm
from inference.modelling.families.decoder import decoder_spec, norm_sources, read_layers
from inference.modelling.families.decoder_layout import DecoderLayout, read_layout
from inference.modelling.families.head_sizes import read_heads
from inference.modelling.families.headers import matrix_shape, vector_length
from inference.modelling.families.moe_config import moe_sources
from inference.modelling.families.qwen3_next import (
    CONTEXT,
    HEAD_DIM,
    INTERVAL,
    QWEN3_NEXT,
    QWEN3_NEXT_EXPERTS,
    delta_mixer,
    gated_attention,
    qwen_experts,
)
from inference.modelling.families.rope_config import read_rope
from inference.modelling.families.state_space import conv_shape
from inference.modelling.families.text_part import around, text_part
from inference.modelling.families.windows import layer_types
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.hyper import HyperConnectionSpec, HyperStreamsSpec
from inference.modelling.specs.indexer import PooledIndexerSpec
from inference.modelling.specs.layers import AttentionSpec, TokenMixerSpec
from inference.modelling.specs.ngram import NGramSpec
from inference.modelling.specs.parts import NormSpec, RopeSpec, prefixed
from inference.modelling.specs.sources import Piece, Source, concatenated, tensor

QWEN4_EXP: Table = {
    **QWEN3_NEXT,
    **QWEN3_NEXT_EXPERTS,
    **used(
        "norm_topk_prob", "output_gate_type", "hc_count", "hc_lowrank", "indexer_n_heads", "indexer_kv_heads",
        "indexer_head_dim", "indexer_budget", "indexer_compress_ratio", "ple_layer_ids", "ple_embed_dim",
        "ple_conv_kernel_size", "ngram_size", "heads_per_ngram",
    ),
    **harmless(
        "the files hold what was made of it: the multipliers, and the parts of the table",
        "seed", "ngram_vocab_size_base", "make_ngram_vocab_size_divisible_by", "split_ngram_parts",
    ),
    **harmless("how transformers keeps states", "number_of_conv_states"),
    **harmless("of the layers that draft", "mtp"),
}  # fmt: skip
CONFIG_KEYS: Mapping[str, Table] = {"qwen4_exp_text": QWEN4_EXP, "qwen4_exp": around(QWEN4_EXP)}

NAME = "qwen4_exp_text"
TYPES = ("linear_attention", "indexed_attention", "full_attention")
"""The latter two are one."""
MIXERS = {"token": "attn_hyper_connection", "channel": "mlp_hyper_connection"}
"""Our names of what is around a layer's mixers to the file's."""
READING = {"down_proj": "input_mix_weight_down", "up_proj": "input_mix_weight_up"}
END = "hyper_connection_mixer"
MAX_VOCABULARY = 1 << 24
"""Numbers of tokens are kept in float32."""


@dataclass(frozen=True, slots=True)
class _Reader:
    """What the layers of a checkpoint have in common."""

    view: CheckpointView
    layout: DecoderLayout
    norm: NormSpec
    act: str
    hyper: HyperConnectionSpec

    def layer(self, number: int) -> tuple[LayerSpec, dict[str, Source]]:
        """A layer, and the sources of its parameters within it."""
        name = self.layout.layer(number)
        token, token_sources = self._token_mixer(name)
        channel = qwen_experts(self.view, NAME, name, self.act)
        sources = prefixed("token_mixer", token_sources)
        sources |= prefixed("channel_mixer", moe_sources(self.view, channel, f"{name}mlp."))
        for ours, theirs in MIXERS.items():
            sources |= prefixed(f"hyper.{ours}", reading_sources(self.hyper, self.layout.hidden_size, name + theirs))
            sources[f"hyper.{ours}.inject.weight"] = tensor(f"{name}{theirs}.block_inject_weight.weight")
        ngram = self._ngram(f"{name}ple.")
        if ngram is not None:
            sources |= prefixed("ngram", self._ngram_sources(ngram, f"{name}ple."))
        return LayerSpec(token_mixer=token, channel_mixer=channel, hyper=self.hyper, ngram=ngram), sources

    def _token_mixer(self, layer: str) -> tuple[TokenMixerSpec, dict[str, Source]]:
        """The layer's delta rule, or its attention."""
        view = self.view
        if f"{layer}linear_attn.A_log" in view.tensors:
            spec, sources = delta_mixer(view, f"{layer}linear_attn.", self.norm.eps)
            name = view.config.string("output_gate_type", default=self.act)
            if name not in ("silu", "sigmoid"):
                raise UnsupportedArchitecture(
                    f"config.json: output_gate_type is {name[:60]!r}; supported are silu, sigmoid.",
                    param="output_gate_type",
                )
            return replace(spec, gate_activation="silu" if name == "silu" else "sigmoid"), sources
        heads = read_heads(view, layer, default_head_dim=HEAD_DIM, has_gate=True)
        rope = read_rope(
            view,
            heads.head_dim,
            max_position_embeddings=self.layout.max_position_embeddings,
            default_partial=1.0,
        )
        attention, own = gated_attention(view, layer, heads, rope, self.norm)
        return self._indexed(attention, own, f"{layer}self_attn.indexer.", rope)

    def _indexed(
        self, attention: AttentionSpec, sources: dict[str, Source], base: str, rope: RopeSpec
    ) -> tuple[AttentionSpec, dict[str, Source]]:
        """The attention with what chooses its keys.

        Raises:
            TensorShapeMismatch: The tensors don't fit each other, or the sizes of config.json.
            CorruptCheckpoint: The blocks don't divide the keys that are chosen, or the rotation is wider than a key.
            UnsupportedArchitecture: The rotation depends on the length.
        """
        view = self.view
        width = vector_length(view.tensors, f"{base}k_layernorm.weight")
        rows = matrix_shape(view.tensors, f"{base}index_qk_proj.weight")[0]
        evidence = f"shapes of {base}index_qk_proj and k_layernorm"
        count = rows // width - 1
        if rows % width or count < 1:
            raise TensorShapeMismatch(
                f"{base}index_qk_proj.weight has {rows} rows, which aren't queries and a key of {width}.",
                param=f"{base}index_qk_proj.weight",
            )
        check_size(view, width, evidence, "indexer_head_dim")
        check_size(view, count, evidence, "indexer_n_heads")
        check_size(view, 1, evidence, "indexer_kv_heads")
        size = view.config.integer("indexer_compress_ratio", low=1, high=MAX_SIZE)
        budget = view.config.integer("indexer_budget", low=1, high=MAX_SIZE)
        if budget % size:
            raise CorruptCheckpoint(
                f"config.json: blocks of {size} keys (indexer_compress_ratio) don't divide indexer_budget {budget}.",
                param="indexer_budget",
            )
        if rope.rotary_dim > width:
            raise CorruptCheckpoint(
                f"config.json: {rope.rotary_dim} values are rotated, but a key of the indexer has {width}.",
                param="partial_rotary_factor",
            )
        if rope.depends_on_length:
            raise UnsupportedArchitecture(
                "config.json: a rotation that depends on the length (rope_type) is not supported where blocks of keys "
                "are chosen.",
                param="rope_type",
            )
        indexer = PooledIndexerSpec(count, width, size, budget // size, self.norm)
        own = {"qk_proj.weight": tensor(f"{base}index_qk_proj.weight")}
        for ours, theirs in (("q_norm", "q_layernorm"), ("k_norm", "k_layernorm")):
            own |= prefixed(ours, norm_sources(self.norm, base + theirs))
        return replace(attention, block_indexer=indexer), sources | prefixed("indexer", own)

    def _ngram(self, base: str) -> NGramSpec | None:
        """The embeddings of n-grams under ``base``, if the layer has them.

        Raises:
            TensorShapeMismatch: The tensors don't fit each other, or the sizes of config.json.
            CorruptCheckpoint: There is no ``eos_token_id``.
        """
        view, table = self.view, f"{base}ple_embedding."
        if f"{base}key_proj.weight" not in view.tensors:
            return None
        if self.layout.vocab_size > MAX_VOCABULARY:
            raise UnsupportedArchitecture(
                f"{self.layout.vocab_size} tokens are more than n-grams are supported for, {MAX_VOCABULARY}.",
                param="vocab_size",
            )
        order = vector_length(view.tensors, f"{table}layer_multipliers")
        heads = vector_length(view.tensors, f"{table}ngram_heads_vocab_sizes")
        shapes = [matrix_shape(view.tensors, name) for name in self._table_names(table)]
        kernel = conv_shape(view, f"{base}conv1d.weight")[1]
        if order < 2 or heads % (order - 1):
            raise TensorShapeMismatch(
                f"{table}ngram_heads_vocab_sizes has {heads} heads for n-grams of 2 to {order} tokens.",
                param=f"{table}ngram_heads_vocab_sizes",
            )
        check_size(view, order, f"length of {table}layer_multipliers", "ngram_size")
        check_size(view, heads // (order - 1), f"length of {table}ngram_heads_vocab_sizes", "heads_per_ngram")
        check_size(view, heads * shapes[0][1], f"columns of {table}ngram_embedding by heads", "ple_embed_dim")
        check_size(view, kernel, f"shape of {base}conv1d.weight", "ple_conv_kernel_size")
        return NGramSpec(
            hidden_size=self.layout.hidden_size,
            num_streams=self.hyper.num_streams,
            order=order,
            heads_per_order=heads // (order - 1),
            head_dim=shapes[0][1],
            rows=sum(rows for rows, _ in shapes),
            conv_kernel=kernel,
            eos_token_id=self._eos_token(),
            norm=self.norm,
        )

    def _eos_token(self) -> int:
        value = self.view.config.get("eos_token_id")
        first = value[0] if isinstance(value, list) and value else value
        if not isinstance(first, int) or isinstance(first, bool) or not 0 <= first < MAX_VOCABULARY:
            raise CorruptCheckpoint(
                f"config.json: eos_token_id is {str(value)[:60]!r}; n-grams need the token that ends a text.",
                param="eos_token_id",
            )
        return first

    def _table_names(self, base: str) -> list[str]:
        """The tensors that are the table, one below the other."""
        whole = f"{base}ngram_embedding.weight"
        pattern = re.compile(re.escape(base) + r"ngram_embedding\.shard_(\d{1,6})\.weight$")
        numbers = sorted(int(match[1]) for match in map(pattern.match, self.view.tensors) if match)
        # A gap is found as a missing tensor.
        return (
            [f"{base}ngram_embedding.shard_{number}.weight" for number in range(numbers[-1] + 1)]
            if numbers
            else [whole]
        )

    def _ngram_sources(self, spec: NGramSpec, base: str) -> dict[str, Source]:
        table = f"{base}ple_embedding."
        sources = {
            "table.weight": concatenated(*self._table_names(table)),
            "hash.multipliers": tensor(f"{table}layer_multipliers"),
            "hash.sizes": tensor(f"{table}ngram_heads_vocab_sizes"),
            "hash.offsets": tensor(f"{table}ngram_heads_offsets"),
            **{f"{name}.weight": tensor(f"{base}{name}.weight") for name in ("key_proj", "value_proj", "conv1d")},
        }
        shape = (spec.num_streams, spec.hidden_size)
        for ours, theirs in (("key_norm", "norm_key"), ("query_norm", "norm_query"), ("conv_norm", "norm_conv")):
            sources[f"{ours}.weight"] = Source((Piece(f"{base}{theirs}.weight", reshape=shape),))
        return sources


def reading_sources(spec: HyperConnectionSpec, hidden_size: int, name: str) -> dict[str, Source]:
    """Sources of what reads a mix of the streams, whose tensor names start with ``name``."""
    norm = Piece(f"{name}.hc_norm.weight", reshape=(spec.num_streams, hidden_size))
    return {
        "norm.weight": Source((norm,)),
        **{f"{ours}.weight": tensor(f"{name}.{theirs}.weight") for ours, theirs in READING.items()},
    }


def build_spec(view: CheckpointView) -> ModelSpec:
    """The text model; of a model that sees pictures too, the part of it that reads and writes text."""
    view = text_part(view)
    layout = read_layout(view, default_max_position_embeddings=CONTEXT)
    norm, act = rms_norm(view, offset=1.0), activation(view)
    hyper = _hyper(view, layout, norm)
    reader = _Reader(view, layout, norm, act, hyper)
    _check_types(view, layout)
    layers, sources = read_layers(layout.num_layers, reader.layer)
    _check_ngrams(view, layers)
    sources |= prefixed("streams", reading_sources(hyper, layout.hidden_size, layout.prefix + END))
    return decoder_spec(
        view,
        layout,
        NAME,
        layers,
        sources,
        None,
        ignored=(ROTARY_BUFFERS, OTHER_PARTS),
        streams=HyperStreamsSpec(hyper),
    )


def _hyper(view: CheckpointView, layout: DecoderLayout, norm: NormSpec) -> HyperConnectionSpec:
    """How the mixers read the streams, by the shapes.

    Raises:
        TensorShapeMismatch: The streams aren't as wide as the embedding.
    """
    name = f"{layout.prefix}{END}."
    rank, width = matrix_shape(view.tensors, f"{name}{READING['down_proj']}.weight")
    if width % layout.hidden_size:
        raise TensorShapeMismatch(
            f"{name}{READING['down_proj']}.weight has {width} columns, which aren't streams of {layout.hidden_size}.",
            param=f"{name}{READING['down_proj']}.weight",
        )
    check_size(view, width // layout.hidden_size, f"columns of {name}{READING['down_proj']}.weight", "hc_count")
    check_size(view, rank, f"rows of {name}{READING['down_proj']}.weight", "hc_lowrank")
    return HyperConnectionSpec(width // layout.hidden_size, rank, norm)


def _check_types(view: CheckpointView, layout: DecoderLayout) -> None:
    """Compare the kinds of layers that config.json states with the tensors.

    Raises:
        TensorShapeMismatch: They differ.
    """
    types, key = layer_types(view, layout.num_layers, TYPES), "layer_types"
    if types is None and "full_attention_interval" in view.config:
        key, interval = "full_attention_interval", view.config.integer("full_attention_interval", default=INTERVAL)
        types = tuple(TYPES[not (number + 1) % interval] for number in range(layout.num_layers))
    for number, kind in enumerate(types or ()):
        name = f"{layout.layer(number)}linear_attn.A_log"
        if (kind == TYPES[0]) != (name in view.tensors):
            raise TensorShapeMismatch(
                f"config.json says layer {number} is {kind} ({key}), but {name} is "
                f"{'there' if name in view.tensors else 'missing'}; correct config.json.",
                param=key,
            )


def _check_ngrams(view: CheckpointView, layers: list[LayerSpec]) -> None:
    """Compare the layers with embeddings of n-grams with config.json's, whose numbers begin with 1.

    Raises:
        TensorShapeMismatch: They differ.
    """
    found = [number for number, layer in enumerate(layers, 1) if layer.ngram is not None]
    stated = sorted(set(view.config.integers("ple_layer_ids")))
    if "ple_layer_ids" in view.config and stated != found:
        raise TensorShapeMismatch(
            f"config.json says ple_layer_ids {stated}, but the tensors have n-grams in the layers {found}, counted "
            "from 1; correct config.json.",
            param="ple_layer_ids",
        )
