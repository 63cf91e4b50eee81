"""ModelSpec: what a network is, layer by layer, without its weights.

Inspection makes it from headers, names and config; the database stores it as JSON; the worker
builds the network from it and never detects anything again. Standard library only: the web
process reads specs too.

A model is a residual stream ``x`` of width h (``hidden_size``). Layer by layer, each part that is there:

    x = x + r · post_norm(token_mixer(norm(x)))
    x = x + r · post_norm(channel_mixer(norm(x)))

with r = ``residual_multiplier``, or in a parallel layer both at once,

    x = x + r · (token_mixer(norm(x)) + channel_mixer(norm(x)));

and at the end of a layer, where it has them, its own input (``specs.layer_inputs``) and a factor; then

    logits = cap(head(final_norm(x)) · ``logits_multiplier``).

A ``PredictionHeadSpec`` is what some checkpoints hold beside that to draft tokens with.

Our parameter names are the keys of ``ModelSpec.parameters``; ``Source`` says from which tensors of
the checkpoint each one is put together. ``parameter_shapes`` gives the shape that each must have,
so that a wrong checkpoint is refused before any tensor is read.

Shape letters: h hidden, V vocabulary, I inner width of a Mamba layer, H heads, P head width,
S state size, G groups, K convolution kernel, E experts, f intermediate.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from inference.errors import UnsupportedFormat
from inference.modelling.encoded_tensor import EncodedTensor
from inference.modelling.spec_json import decode, encode
from inference.modelling.specs.altup import AltUpSpec, StreamsSpec
from inference.modelling.specs.attention_parts import DifferenceSpec, HeadExpertsSpec
from inference.modelling.specs.compressed import CompressedAttentionSpec, CompressedIndexerSpec, CompressorSpec
from inference.modelling.specs.gated_streams import GatedStreamsSpec
from inference.modelling.specs.hyper import HyperConnectionSpec, HyperStreamsSpec
from inference.modelling.specs.indexer import BlockIndexerSpec, IndexerSpec, PooledIndexerSpec
from inference.modelling.specs.inkling import MixerConvsSpec, RelativeAttentionSpec, SharedMoESpec
from inference.modelling.specs.inkling2 import BlockResidualSpec, BlockStreamsSpec, ClippedAttentionSpec
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.layer_inputs import LayerInputSpec, LayerInputsSpec
from inference.modelling.specs.layers import (
    AttentionSpec,
    ChannelMixerSpec,
    Mamba1Spec,
    Mamba2Spec,
    MLPSpec,
    MoESpec,
    TokenMixerSpec,
)
from inference.modelling.specs.linear import (
    GatedDeltaSpec,
    KimiDeltaSpec,
    LightningSpec,
    Mamba3Spec,
    MLSTMSpec,
    RGLRUSpec,
    ShortConvSpec,
)
from inference.modelling.specs.ngram import NGramSpec
from inference.modelling.specs.parallel import BranchSpec, MixerSpec, ParallelSpec
from inference.modelling.specs.parts import Dtype, NormSpec, RopeScaling, RopeSpec, Shape, StateTensor, prefixed
from inference.modelling.specs.positions import SinusoidsSpec
from inference.modelling.specs.rwkv import ChannelMixSpec, TimeMixSpec
from inference.modelling.specs.shared_blocks import SharedBlockSpec
from inference.modelling.specs.sinkhorn_streams import MeanStreamsSpec, SinkhornStreamsSpec
from inference.modelling.specs.sources import Piece, Source
from inference.modelling.specs.token_moe import TokenMoESpec
from inference.modelling.specs.zaya import ConvolvedAttentionSpec, MemoryMoESpec
from inference.modelling.vision.specs import PooledProjectorSpec, TileProjectorSpec, TowerSpec, VisionSpec
from inference.values.images import ImageLayout, ImagePrompt

AnyStreamsSpec = StreamsSpec | HyperStreamsSpec | GatedStreamsSpec | BlockStreamsSpec | MeanStreamsSpec
RESIDUAL_VECTORS = ("output.scale", "output.bias", "stream.scale", "stream.bias")
"""What ``LayerSpec.scales_residual`` applies to a mixer's result and to the stream."""

# --- the whole ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer: a token mixer, a channel mixer, or both, each with its norms.

    ``token_norm`` and ``channel_norm`` come before their mixer, the ``post`` ones after it.

    Attributes:
        is_parallel: Both mixers read the same stream, and their results are added at once; without a
            ``channel_norm`` the channel mixer reads what ``token_norm`` gave.
        replaces_stream: The stream goes on from what the norms before the mixers give: x = norm(x); x + mixer(x)
            (MiniMax).
        channel_multiplier: r of the channel mixer; None: ``residual_multiplier``.
        shortcut: Experts that read what the channel mixer reads; the next layer adds their result at its end
            (LongCat-Flash).
        layer_input: What the layer adds of its own input, at its end.
        altup: There are several streams, and what is around the mixers is this (Gemma 3n); None: one stream.
        has_stream_scale: A learned number multiplies the stream, at the layer's end (Gemma 4).
        hyper: There are several streams, of which each mixer, or its norm, reads a mix (Qwen4-Exp, HY 4, DeepSeek
            V4, GLM-5.3).
        scales_residual: The stream is float32, and becomes (y + b) · s + (x + b') · s' of a mixer's result y and
            itself, with learned vectors (ZAYA).
        ngram: What the layer first adds to those streams from the last tokens.
        token_gate_rank, channel_gate_rank: What a norm before a mixer gives is multiplied by sigmoid of a low-rank MLP
            of itself, of this rank (A.X-K2); 0: it isn't.
        mixer_convs: What each mixer gives passes a short convolution, which is added to it (Inkling).
        residual_temperature: Learned gates, divided by it, weigh the stream and a mixer's result (Muse Spark); 0: none.
        blocks: There are streams of blocks of layers, which the mixers read through norms of their own (Inkling 2).
        prologue: Runs first; its result is added to what the token mixer's norm reads, not to the stream (Zamba 2).
    """

    token_mixer: TokenMixerSpec | None = None
    token_norm: NormSpec | None = None
    token_post_norm: NormSpec | None = None
    channel_mixer: ChannelMixerSpec | None = None
    channel_norm: NormSpec | None = None
    channel_post_norm: NormSpec | None = None
    residual_multiplier: float = 1.0
    is_parallel: bool = False
    replaces_stream: bool = False
    channel_multiplier: float | None = None
    prologue: SharedBlockSpec | None = None
    shortcut: MoESpec | None = None
    layer_input: LayerInputSpec | None = None
    has_stream_scale: bool = False
    altup: AltUpSpec | None = None
    hyper: HyperConnectionSpec | GatedStreamsSpec | None = None
    ngram: NGramSpec | None = None
    token_gate_rank: int = 0
    channel_gate_rank: int = 0
    scales_residual: bool = False
    mixer_convs: MixerConvsSpec | None = None
    blocks: BlockResidualSpec | None = None
    residual_temperature: float = 0.0

    @property
    def kind(self) -> str:
        """A short label for people: ``mamba2``, ``mla+moe``, ``attention+mlp``."""
        parts = (*self.token_mixers, self.channel_mixer, self.shortcut)
        return "+".join(part.kind for part in parts if part is not None)

    @property
    def token_mixers(self) -> tuple[MixerSpec, ...]:
        """The attention of the prologue, and the token mixer, those side by side one by one."""
        first = () if self.prologue is None else (self.prologue.attention,)
        if isinstance(self.token_mixer, ParallelSpec):
            return (*first, *(branch.mixer for branch in self.token_mixer.branches))
        return first if self.token_mixer is None else (*first, self.token_mixer)

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """Shapes of all parameters of the layer, by name within it."""
        shapes: dict[str, Shape] = {}
        for name in ("token_norm", "token_post_norm", "channel_norm", "channel_post_norm"):
            norm: NormSpec | None = getattr(self, name)
            if norm is not None:
                shapes |= prefixed(name, norm.parameter_shapes(hidden_size))
        for name in ("prologue", "token_mixer", "channel_mixer", "shortcut", "layer_input", "altup", "blocks"):
            part: Any = getattr(self, name)
            if part is not None:
                shapes |= prefixed(name, part.parameter_shapes(hidden_size))
        if self.hyper is not None:
            shapes |= prefixed("hyper", self.hyper.layer_shapes(hidden_size))
        if self.ngram is not None:
            shapes |= prefixed("ngram", self.ngram.parameter_shapes())
        vectors = RESIDUAL_VECTORS if self.scales_residual else ("gate",) if self.residual_temperature else ()
        for name in ("token_residual", "channel_residual"):
            shapes |= {f"{name}.{part}": (hidden_size,) for part in vectors}
        if self.has_stream_scale:
            shapes["stream_scale"] = (1,)
        if self.mixer_convs is not None:
            shapes |= self.mixer_convs.parameter_shapes()
        for name, rank in (("token_gate", self.token_gate_rank), ("channel_gate", self.channel_gate_rank)):
            if rank:
                shapes |= {
                    f"{name}.down_proj.weight": (rank, hidden_size),
                    f"{name}.up_proj.weight": (hidden_size, rank),
                }
        return shapes

    def state(self) -> tuple[StateTensor, ...]:
        """Generation state of the layer; empty for a layer without a token mixer."""
        first = () if self.prologue is None else self.prologue.state()
        for part in (self.ngram, self.mixer_convs):
            first = first if part is None else (*first, *part.state())
        return first if self.token_mixer is None else (*first, *self.token_mixer.state())

    @classmethod
    def from_dict(cls, payload: Mapping[str, Any]) -> LayerSpec:
        """Read one of the ``layers`` of ``ModelSpec.to_dict``."""
        layer = decode(payload, _CLASSES)
        if not isinstance(layer, cls):
            raise TypeError(f"not a stored LayerSpec: {type(layer).__name__}")
        return layer


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A whole network.

    Attributes:
        format: ``oxidizr`` or ``huggingface``.
        model_type: The family's name, as config.json has it (``oxidizr`` for that format).
        vocab_size: Rows of the embedding; token ids must be below it.
        dtype: dtype of the stored weights.
        position_rows: Rows of a table of learned positions, added to the embedding (GPT-2); 0: there is none.
        final_norm: None: the head reads the streams' mix as it is.
        sinusoids: Positions that are added to the embedding without a table (XGLM); None: there are none.
        streams: How several residual streams begin and end; None: there is one.
        layer_inputs: Makes each layer's own input; None: there are none.
        embedding_multiplier: Multiplies the embedding's output.
        embedding_norm: Norm of the embedding's output (BLOOM); None: there is none.
        scales_embedding: The stream begins as (x + b) · s of the embedding, with learned vectors (ZAYA).
        logits_multiplier: Multiplies the logits before the cap.
        logits_softcap: cap · tanh(logits / cap); None: off.
        head_bias: The head has a bias; it isn't tied then.
        tie_word_embeddings: The head is the embedding; then there is no ``lm_head.weight`` in ``parameters``.
        parameters: Our parameter names to their sources.
        encoded: How tensors that the sources name are decoded, where the files hold codes in their place.
        prediction_head: The head for multi-token prediction that the files hold beside the model; None: there is none.
        vision: The part that reads pictures; None: there is none.
    """

    format: Literal["oxidizr", "huggingface"]
    model_type: str
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    layers: tuple[LayerSpec, ...]
    final_norm: NormSpec | None
    dtype: Dtype = "float32"
    tie_word_embeddings: bool = False
    head_bias: bool = False
    position_rows: int = 0
    embedding_multiplier: float = 1.0
    embedding_norm: NormSpec | None = None
    logits_multiplier: float = 1.0
    logits_softcap: float | None = None
    parameters: Mapping[str, Source] = field(default_factory=dict)
    encoded: tuple[EncodedTensor, ...] = ()
    prediction_head: PredictionHeadSpec | None = None
    layer_inputs: LayerInputsSpec | None = None
    streams: AnyStreamsSpec | None = None
    vision: VisionSpec | None = None
    scales_embedding: bool = False
    sinusoids: SinusoidsSpec | None = None

    def parameter_shapes(self) -> dict[str, Shape]:
        """The shape each parameter must have, by its full name; a shared block's is its first layer's."""
        shapes: dict[str, Shape] = {"embed_tokens.weight": (self.vocab_size, self.hidden_size)}
        if self.position_rows:
            shapes["embed_positions.weight"] = (self.position_rows, self.hidden_size)
        if self.embedding_norm is not None:
            shapes |= prefixed("embedding_norm", self.embedding_norm.parameter_shapes(self.hidden_size))
        if self.scales_embedding:
            shapes |= {f"embedding_scale.{name}": (self.hidden_size,) for name in ("scale", "bias")}
        if self.layer_inputs is not None:
            shapes |= prefixed("layer_inputs", self.layer_inputs.parameter_shapes(self.hidden_size))
        if self.streams is not None:
            shapes |= prefixed("streams", self.streams.parameter_shapes(self.hidden_size))
        blocks: set[int] = set()
        for number, layer in enumerate(self.layers):
            own = layer.parameter_shapes(self.hidden_size)
            if layer.prologue is not None:
                if layer.prologue.block in blocks:
                    own = {name: shape for name, shape in own.items() if not name.startswith("prologue.block.")}
                blocks.add(layer.prologue.block)
            shapes |= prefixed(f"layers.{number}", own)
        if self.final_norm is not None:
            shapes |= prefixed("final_norm", self.final_norm.parameter_shapes(self.hidden_size))
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, self.hidden_size)
        if self.head_bias:
            shapes["lm_head.bias"] = (self.vocab_size,)
        return shapes

    def integer_parameters(self) -> frozenset[str]:
        """Names of the parameters that are int64."""
        return frozenset(
            f"layers.{number}.{part}.{name}"
            for number, layer in enumerate(self.layers)
            for part, spec in (("ngram", layer.ngram), ("channel_mixer", layer.channel_mixer))
            for name in (spec.integer_parameters() if isinstance(spec, NGramSpec | TokenMoESpec) else ())
        )

    def state_numbers(self) -> tuple[int, ...]:
        """For each layer the number of the one whose keys and values it reads: its own, or ``kv_source``."""
        sources = [
            layer.token_mixer.kv_source if isinstance(layer.token_mixer, AttentionSpec | MLASpec) else None
            for layer in self.layers
        ]
        return tuple(number if source is None else source for number, source in enumerate(sources))

    def has_recurrent_states(self) -> bool:
        """Whether a layer has a state whose dtype ``state_dtype`` chooses."""
        return any(part.dtype == "state" for layer in self.layers for part in layer.state())

    def rounding_matrices(self) -> tuple[str, ...]:
        """Parameters of BitNet's linear layers, which round their inputs.

        Raises:
            UnsupportedFormat: Only some of the tensors of one parameter are in that form.
        """
        coded = {item.name for item in self.encoded if item.coding == "bitnet"}
        found = []
        for name, source in self.parameters.items() if coded else ():
            stored = set(source.tensor_names())
            if stored <= coded:
                found.append(name)
            elif not stored.isdisjoint(coded):
                other = min(stored - coded)
                raise UnsupportedFormat(
                    f"{other} isn't in BitNet's form, but {min(stored & coded)} is, and one product has both.",
                    param=other,
                )
        return tuple(found)

    def first_needed(self, first: int) -> int:
        """The layer to begin with so that those from ``first`` on read what is computed in the same run."""
        numbers = self.source_numbers()
        while (earliest := min((first, *numbers[first:]))) < first:
            first = earliest
        return first

    def source_numbers(self) -> tuple[int, ...]:
        """For each layer the number of the earliest one that it reads a state or a choice of keys of; its own: none."""
        mixers = [layer.token_mixer for layer in self.layers]
        choices = (mixer.choice_source if isinstance(mixer, MLASpec) else None for mixer in mixers)
        pairs = zip(self.state_numbers(), choices, strict=True)
        return tuple(state if choice is None else min(state, choice) for state, choice in pairs)

    def num_parameters(self) -> int:
        """Number of weights, a tied head counted once."""
        return sum(math.prod(shape) for shape in self.parameter_shapes().values())

    def num_active_parameters(self) -> int:
        """Number of weights in the layers that a token is multiplied by: of experts, those that it is routed to."""
        total = 0
        for layer in self.layers:
            attention = layer.token_mixer
            heads = attention.head_experts if isinstance(attention, AttentionSpec) else None
            routed = layer.channel_mixer if isinstance(layer.channel_mixer, MoESpec) else layer.shortcut
            for name, shape in layer.parameter_shapes(self.hidden_size).items():
                size = math.prod(shape)
                if routed is not None and name.startswith(("channel_mixer.experts.", "shortcut.experts.")):
                    size = size * routed.top_k // routed.num_choices
                if heads is not None and name.startswith("token_mixer.head_experts.experts."):
                    size = size * heads.top_k // heads.num_experts
                total += size
        return total

    def state_bytes_per_token(self, model_dtype: str | None = None) -> int:
        """Bytes of paged state (keys, values, latents) for each token of a sequence, all layers."""
        return self._state_bytes("token", model_dtype)

    def state_bytes_per_sequence(self, model_dtype: str | None = None, state_dtype: str = "float32") -> int:
        """Bytes of fixed state (convolution and recurrent states) for each sequence, all layers."""
        return self._state_bytes("sequence", model_dtype, state_dtype)

    def _state_bytes(self, per: str, model_dtype: str | None, state_dtype: str = "float32") -> int:
        dtypes = model_dtype or self.dtype, state_dtype
        return sum(part.size_bytes(*dtypes) for layer in self.layers for part in layer.state() if part.per == per)

    def without_head(self) -> ModelSpec:
        """The same without ``prediction_head``, on which no state of the model depends."""
        return self if self.prediction_head is None else replace(self, prediction_head=None)

    def to_dict(self) -> dict[str, Any]:
        """A JSON form (infinities spelled as strings); ``from_dict`` reads it back to an equal value."""
        result: dict[str, Any] = encode(self)
        return result

    @classmethod
    def from_dict(cls, payload: Mapping[str, Any]) -> ModelSpec:
        spec = decode(payload, _CLASSES)
        if not isinstance(spec, cls):
            raise TypeError(f"not a stored ModelSpec: {type(spec).__name__}")
        return spec

    def to_json(self) -> str:
        """``to_dict`` as text."""
        return json.dumps(self.to_dict(), separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True, slots=True)
class PredictionHeadSpec(ModelSpec):
    """A head for multi-token prediction (DeepSeek-V3, https://arxiv.org/abs/2412.19437, section 2.2).

    From the model's row h_p at position p (after its final norm) and the next token's embedding e_(p+1), it predicts
    the token at p + 2:

        x = eh_proj [embedding_norm(e_(p+1)); hidden_norm(h_p)],  layers as in a model,  logits = head(final_norm(x))

    The embedding and the head of the logits are the model's, unless the files have some for this head alone.

    Attributes:
        embedding_norm, hidden_norm: Norms of the two inputs.
        feeds_normed_rows: Which rows of its own it reads in the place of h_p to go on by one more token: those after
            ``final_norm``, or those before.
        has_embedding: The files have an embedding for it.
        has_lm_head: The files have a head of logits for it.
    """

    embedding_norm: NormSpec = NormSpec()  # noqa: RUF009 frozen
    hidden_norm: NormSpec = NormSpec()  # noqa: RUF009 frozen
    feeds_normed_rows: bool = False
    has_embedding: bool = False
    has_lm_head: bool = False

    def parameter_shapes(self) -> dict[str, Shape]:
        """The shape each parameter must have, by its full name."""
        hidden = self.hidden_size
        shapes: dict[str, Shape] = {"eh_proj.weight": (hidden, 2 * hidden)}
        for name in ("embedding_norm", "hidden_norm", "final_norm"):
            norm: NormSpec | None = getattr(self, name)
            if norm is not None:
                shapes |= prefixed(name, norm.parameter_shapes(hidden))
        for number, layer in enumerate(self.layers):
            shapes |= prefixed(f"layers.{number}", layer.parameter_shapes(hidden))
        if self.has_embedding:
            shapes["embed_tokens.weight"] = (self.vocab_size, hidden)
        if self.has_lm_head:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        return shapes


_CLASSES: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        NormSpec, RopeScaling, RopeSpec, AttentionSpec, MLASpec, Mamba1Spec, Mamba2Spec, Mamba3Spec, GatedDeltaSpec,
        KimiDeltaSpec, LightningSpec, MLSTMSpec, RGLRUSpec, ShortConvSpec, BranchSpec, ParallelSpec, SharedBlockSpec,
        TimeMixSpec, ChannelMixSpec, MLPSpec, MoESpec, AltUpSpec, StreamsSpec, LayerInputSpec, LayerInputsSpec,
        LayerSpec, Piece, Source,
        GatedStreamsSpec, SinusoidsSpec, EncodedTensor, DifferenceSpec, HeadExpertsSpec, BlockIndexerSpec,
        PooledIndexerSpec, IndexerSpec, HyperConnectionSpec, HyperStreamsSpec, NGramSpec, ConvolvedAttentionSpec,
        MemoryMoESpec, RelativeAttentionSpec, SharedMoESpec, MixerConvsSpec, ClippedAttentionSpec, BlockResidualSpec,
        BlockStreamsSpec, CompressorSpec, CompressedIndexerSpec, CompressedAttentionSpec, SinkhornStreamsSpec,
        MeanStreamsSpec, TokenMoESpec, ModelSpec, PredictionHeadSpec,
        VisionSpec, TowerSpec, TileProjectorSpec, PooledProjectorSpec, ImageLayout, ImagePrompt,
    )
}  # fmt: skip
