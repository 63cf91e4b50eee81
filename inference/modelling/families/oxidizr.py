"""Checkpoints of the oxidizr trainer: any mix of Mamba-1/2/3, MLA and GQA layers, with MoE or a dense MLP.

The trainer's config.json leaves much out and is never rewritten, so a directory that was used twice holds a
stale one: what a layer is and how large comes from its own tensors; config.json only supplies what shapes can't
show (query heads of a square projection, experts per token, bases and eps), and is doubted when it contradicts
the tensors elsewhere.

Letters: h hidden, V vocabulary, I inner width, H heads, P head width, S state size, G groups, K kernel, R MIMO rank.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from inference.errors import (
    InvalidRequest,
    MissingTensor,
    TensorShapeMismatch,
    UnsupportedArchitecture,
    UnsupportedFormat,
)
from inference.modelling.families.checks import finish
from inference.modelling.families.config import MAX_LAYERS, CheckpointView, Confidence
from inference.modelling.families.config_values import noted_number
from inference.modelling.families.frame import layer_numbers
from inference.modelling.families.headers import STORED_DTYPES, matrix_shape, sample_of, vector_length
from inference.modelling.families.rope_config import read_rope
from inference.modelling.spec import (
    AttentionSpec,
    ChannelMixerSpec,
    Dtype,
    LayerSpec,
    Mamba1Spec,
    Mamba2Spec,
    Mamba3Spec,
    MLASpec,
    MLPSpec,
    ModelSpec,
    MoESpec,
    NormSpec,
    Piece,
    Source,
    TokenMixerSpec,
    concatenated,
    prefixed,
    tensor,
)

DT_RANGE = (0.001, 0.1)
"""dt is clamped to this after softplus."""
A_CLAMP = (1e-6, 1e6)
"""exp(A_log) is clamped to this."""
INNER_EPS = 1e-6
"""eps of the LayerNorm before a Mamba-2/3 mixer, of its gated norm and of bc_norm; config.json doesn't reach them."""
MAMBA1_STATE_CLAMP = 30.0
HEAD_DIM_GUESSES = (64, 128)
DEFAULT_TOP_K = 2
DEFAULT_THETA = 10000.0
DEFAULT_EPS = 1e-5
DEFAULT_MAX_POSITIONS = 4096

_HEAD_KEYS = ("num_attention_heads", "num_heads", "attention.num_heads")


def build_spec(view: CheckpointView) -> ModelSpec:
    """Read a checkpoint in oxidizr's naming (no ``model.`` prefix).

    Raises:
        UnsupportedArchitecture: No layers, no embedding, or a layer of no known kind.
        MissingTensor, TensorShapeMismatch: The tensors are incomplete, or contradict each other.
    """
    return _Reader(view).read()


@dataclass(frozen=True, slots=True)
class _Part:
    """A mixer and where its parameters come from, by their names within it."""

    spec: TokenMixerSpec | ChannelMixerSpec
    sources: Mapping[str, Source]


class _Reader:
    """One reading of one checkpoint: the view, and what holds for all layers."""

    def __init__(self, view: CheckpointView) -> None:
        self.view = view
        self.tensors = view.tensors
        self.config = view.config
        self.facts = view.facts
        if "embed_tokens.weight" not in self.tensors:
            raise UnsupportedArchitecture(
                f"no embedding: embed_tokens.weight is not among the {len(self.tensors)} tensors "
                f"({sample_of(self.tensors)}).",
                param="embed_tokens.weight",
            )
        self.vocab_size, self.hidden_size = self.matrix("embed_tokens.weight")
        self.names = self._names_by_layer()
        self.kinds = [self._kind(number) for number in range(len(self.names))]
        self.config_fits = self._compare_config()
        self.max_positions = self._max_positions()
        self.block_norm = NormSpec(
            "rms", noted_number(view, "norm.eps", ("rms_norm_eps",), DEFAULT_EPS, low=0.0, high=1.0)
        )

    # --- the whole ---

    def read(self) -> ModelSpec:
        layers: list[LayerSpec] = []
        parameters: dict[str, Source] = {"embed_tokens.weight": tensor("embed_tokens.weight")}
        for number in range(len(self.names)):
            layer, sources = self._layer(number)
            layers.append(layer)
            parameters |= prefixed(f"layers.{number}", sources)
        parameters["final_norm.weight"] = tensor("norm.weight")
        tied = self._tied()
        if not tied:
            parameters["lm_head.weight"] = tensor("lm_head.weight")
        spec = ModelSpec(
            format="oxidizr",
            model_type="oxidizr",
            hidden_size=self.hidden_size,
            vocab_size=self.vocab_size,
            max_position_embeddings=self.max_positions,
            layers=tuple(layers),
            final_norm=self.block_norm,
            dtype=self._dtype(),
            tie_word_embeddings=tied,
            parameters=parameters,
        )
        return finish(self.view, spec)

    def _names_by_layer(self) -> list[set[str]]:
        """Tensor names of each layer, without ``layers.N.``."""
        numbers = layer_numbers(self.tensors, "")
        if not numbers:
            raise UnsupportedArchitecture(
                f"no layers detected: no tensor name starts with layers.0. ({sample_of(self.tensors)}).", param="layers"
            )
        if numbers[-1] >= MAX_LAYERS:
            raise UnsupportedArchitecture(
                f"layer number {numbers[-1]} is out of range; at most {MAX_LAYERS} layers.", param="layers"
            )
        missing = sorted(set(range(numbers[-1] + 1)) - set(numbers))
        if missing:
            shown = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
            raise MissingTensor(
                f"layer numbers have gaps: nothing for layer {shown}, although layer {numbers[-1]} is there.",
                param=f"layers.{missing[0]}",
            )
        names: list[set[str]] = [set() for _ in numbers]
        for name in self.tensors:
            match = _LAYER_NAME.fullmatch(name)
            if match is not None:
                names[int(match[1])].add(match[2])
        return names

    def _kind(self, number: int) -> str:
        """Token mixer and channel mixer of one layer, from its own names; the first rule that matches wins."""
        names = self.names[number]
        for prefix, kind in (("mamba3.", "mamba3"), ("mamba2.", "mamba2")):
            if any(name.startswith(prefix) for name in names):
                return kind
        channel = "moe" if any(name.startswith("moe.") for name in names) else "mlp"
        # Two names for each kind: if one tensor is missing, the message shall name it rather than doubt the layer.
        if any(name.startswith(("self_attn.w_dkv.", "self_attn.w_uk.")) for name in names):
            return f"mla+{channel}"
        if any(name.startswith(("self_attn.q_proj.", "self_attn.k_proj.")) for name in names):
            return f"attention+{channel}"
        if any(name.startswith("mamba.") for name in names):
            return "mamba1"
        raise UnsupportedArchitecture(
            f"layer {number} is of no known kind; its tensors are {sample_of(names)}.", param=f"layers.{number}"
        )

    def _compare_config(self) -> bool:
        """Whether config.json agrees with the tensors; each contradiction becomes a warning."""
        agrees = True
        for keys, found in (
            (("hidden_size",), self.hidden_size),
            (("vocab_size",), self.vocab_size),
            (("num_layers", "num_hidden_layers"), len(self.names)),
        ):
            stated = self.config.optional_integer(*keys, low=0)
            if stated is not None and stated != found:
                agrees = False
                self.facts.warn(f"config.json says {keys[0]} {stated}, the tensors have {found}; the tensors are used.")
        recurrent = [number for number, kind in enumerate(self.kinds) if kind.startswith("mamba")]
        for key in ("mamba_layers", "hybrid_layers.ssm_layers"):
            stated_layers = sorted(set(self.config.integers(key)))
            if key in self.config and stated_layers != recurrent:
                agrees = False
                self.facts.warn(
                    f"config.json says {key} {_numbers(stated_layers)}, the tensors have Mamba layers "
                    f"{_numbers(recurrent)}; the tensors are used."
                )
        if not agrees:
            self.facts.warn(
                "config.json contradicts the tensors: it may belong to another model (the trainer never rewrites it), "
                "so what only it can tell is doubtful."
            )
        counts = Counter(self.kinds)
        self.facts.add("num_layers", len(self.kinds), "distinct layer numbers in the tensor names")
        self.facts.add(
            "layers",
            ", ".join(f"{count} × {kind}" for kind, count in counts.items()),
            "tensor names of each layer",
        )
        return agrees

    def _max_positions(self) -> int:
        keys = ("max_seq_len", "max_position_embeddings")
        stated = self.config.optional_integer(*keys, high=1 << 30)
        if stated is None:
            found = self.facts.add(
                "max_position_embeddings", DEFAULT_MAX_POSITIONS, "max_seq_len is not in config.json; default",
                Confidence.LOW,
            )  # fmt: skip
        else:
            found = self.facts.add("max_position_embeddings", stated, "config.json (max_seq_len)", self.trust)
        return int(found)

    def _tied(self) -> bool:
        """The trainer always writes lm_head.weight; without it, only an explicit word of config.json ties the head."""
        if "lm_head.weight" in self.tensors:
            return False
        if self.config.boolean("tie_word_embeddings", default=False):
            self.facts.add("tie_word_embeddings", True, "config.json, and there is no lm_head.weight")
            return True
        raise MissingTensor(
            "tensor lm_head.weight is missing from the checkpoint (config.json doesn't say tie_word_embeddings).",
            param="lm_head.weight",
        )

    def _dtype(self) -> Dtype:
        counts = Counter(info.dtype for info in self.tensors.values())
        stored = counts.most_common(1)[0][0]
        if stored not in STORED_DTYPES:
            raise UnsupportedFormat(
                f"most tensors are stored as {stored}; {', '.join(STORED_DTYPES)} can be read.", param="dtype"
            )
        evidence = f"all tensors are {stored}" if len(counts) == 1 else f"most tensors are {stored}"
        self.facts.add("dtype", STORED_DTYPES[stored], evidence)
        return STORED_DTYPES[stored]

    # --- layers ---

    def _layer(self, number: int) -> tuple[LayerSpec, dict[str, Source]]:
        base, kind = f"layers.{number}.", self.kinds[number]
        if kind.startswith("mamba"):
            part, norm, norm_sources = self._mamba(base, kind)
            assert isinstance(part.spec, Mamba1Spec | Mamba2Spec | Mamba3Spec)
            sources = prefixed("token_norm", norm_sources) | prefixed("token_mixer", part.sources)
            return LayerSpec(token_mixer=part.spec, token_norm=norm), sources
        token_kind, _, channel_kind = kind.partition("+")
        attention = self._mla(base + "self_attn.") if token_kind == "mla" else self._attention(base + "self_attn.")
        channel = self._moe(number, base + "moe.") if channel_kind == "moe" else self._mlp(base + "mlp.")
        assert isinstance(attention.spec, AttentionSpec | MLASpec)
        assert isinstance(channel.spec, MLPSpec | MoESpec)
        sources = {
            "token_norm.weight": tensor(base + "input_layernorm.weight"),
            "channel_norm.weight": tensor(base + "post_attention_layernorm.weight"),
        }
        sources |= prefixed("token_mixer", attention.sources) | prefixed("channel_mixer", channel.sources)
        layer = LayerSpec(
            token_mixer=attention.spec,
            token_norm=self.block_norm,
            channel_mixer=channel.spec,
            channel_norm=self.block_norm,
        )
        return layer, sources

    def _mamba(self, base: str, kind: str) -> tuple[_Part, NormSpec, dict[str, Source]]:
        if kind == "mamba1":
            return self._mamba1(base + "mamba."), self.block_norm, {"weight": tensor(base + "norm.weight")}
        norm = NormSpec("layer", INNER_EPS)
        sources = {leaf: tensor(f"{base}{kind}.norm.{leaf}") for leaf in ("weight", "bias")}
        mixer = f"{base}{kind}.mixer."
        return (self._mamba2(mixer) if kind == "mamba2" else self._mamba3(mixer)), norm, sources

    def _mamba1(self, base: str) -> _Part:
        inner, size = self.matrix(base + "a_log")
        spec = Mamba1Spec(
            intermediate_size=inner,
            state_size=size,
            conv_kernel=self.tensors.shape(base + "conv1d.weight")[-1],
            dt_rank=self.matrix(base + "dt_proj.weight")[1],
            positive_a=True,
            state_clamp=MAMBA1_STATE_CLAMP,
        )
        renamed = {"A_log": "a_log", "D": "d"}
        return self._plain(spec, base, renamed)

    def _mamba2(self, base: str) -> _Part:
        inner, heads, head_dim = self._heads_of_mamba(base)
        conv = self.tensors.shape(base + "conv1d.weight")
        if len(conv) != 3 or conv[0] <= inner or (conv[0] - inner) % 2:
            raise TensorShapeMismatch(
                f"{base}conv1d.weight has shape {list(conv)}; [I + 2·G·S, 1, K] with I = {inner} is needed.",
                param=base + "conv1d.weight",
            )
        groups, size = self._groups((conv[0] - inner) // 2, heads, base)
        spec = Mamba2Spec(
            intermediate_size=inner,
            num_heads=heads,
            head_dim=head_dim,
            state_size=size,
            num_groups=groups,
            conv_kernel=conv[2],
            norm_group_size=inner,
            gated_norm=NormSpec("rms", INNER_EPS),
            dt_min=DT_RANGE[0],
            dt_max=DT_RANGE[1],
            proj_bias=True,
            a_clamp=A_CLAMP,
            a_override=self._a_override(),
        )
        return self._plain(spec, base)

    def _mamba3(self, base: str) -> _Part:
        inner, heads, head_dim = self._heads_of_mamba(base)
        size = self.matrix(base + "b_bias")[1]
        rows = self.matrix(base + "in_proj.weight")[0]
        shared = rows - 2 * inner - heads  # 2GS
        if shared <= 0 or shared % (2 * size):
            raise TensorShapeMismatch(
                f"{base}in_proj.weight has {rows} rows; 2I + 2·G·S + H with I = {inner}, S = {size}, H = {heads} is "
                "needed.",
                param=base + "in_proj.weight",
            )
        groups = shared // (2 * size)
        if heads % groups:
            raise TensorShapeMismatch(
                f"{base}in_proj.weight has room for {groups} groups, which {heads} heads can't share evenly.",
                param=base + "in_proj.weight",
            )
        rank = 0
        if base + "mimo_x_up.weight" in self.tensors:
            wide, narrow = self.matrix(base + "mimo_x_up.weight")
            if narrow != head_dim or wide % narrow:
                raise TensorShapeMismatch(
                    f"{base}mimo_x_up.weight has shape {[wide, narrow]}; [{head_dim}·R, {head_dim}] is needed.",
                    param=base + "mimo_x_up.weight",
                )
            rank = wide // narrow
        complex_rope = base + "theta_proj.weight" in self.tensors
        if complex_rope and size % 2:
            raise TensorShapeMismatch(
                f"{base}theta_proj.weight rotates pairs, but the state size is {size}; it must be even.",
                param=base + "theta_proj.weight",
            )
        conv = self.tensors.shape(base + "conv1d.weight") if base + "conv1d.weight" in self.tensors else None
        spec = Mamba3Spec(
            intermediate_size=inner,
            num_heads=heads,
            head_dim=head_dim,
            state_size=size,
            num_groups=groups,
            conv_kernel=None if conv is None else conv[-1],
            complex_rope=complex_rope,
            mimo_rank=rank,
            gated_norm=NormSpec("rms", INNER_EPS),
            bc_norm=NormSpec("rms", INNER_EPS),
            dt_min=DT_RANGE[0],
            dt_max=DT_RANGE[1],
            a_clamp=A_CLAMP,
            a_override=self._a_override(),
        )
        return self._plain(spec, base)

    def _heads_of_mamba(self, base: str) -> tuple[int, int, int]:
        """I, H, P."""
        heads, inner = vector_length(self.tensors, base + "A_log"), vector_length(self.tensors, base + "norm.weight")
        if inner % heads:
            raise TensorShapeMismatch(
                f"{base}norm.weight has {inner} values, which {heads} heads (A_log) can't share evenly.",
                param=base + "norm.weight",
            )
        return inner, heads, inner // heads

    def _groups(self, product: int, heads: int, base: str) -> tuple[int, int]:
        """G and S of a Mamba-2 layer, of which shapes show only the product."""
        size = self.config.optional_integer("mamba2_state_size", "ssm.state_size")
        groups = self.config.optional_integer("mamba2_n_groups", "ssm.n_groups")
        if size is not None and product % size == 0:
            found = product // size
            evidence, confidence = f"{product} rows of B by mamba2_state_size {size} of config.json", self.trust
        elif groups is not None and product % groups == 0:
            found, evidence, confidence = groups, "config.json (mamba2_n_groups)", self.trust
        else:
            found, evidence, confidence = 1, "shapes show only groups × state size; default", Confidence.LOW
            if size is not None or groups is not None:
                self.facts.warn(
                    f"config.json (state size {size}, groups {groups}) doesn't fit the {product} rows of B in "
                    f"{base}conv1d.weight; one group is assumed."
                )
        found = int(self.facts.add("mamba2.num_groups", found, evidence, confidence))
        if product % found or heads % found:
            raise TensorShapeMismatch(
                f"{found} groups don't divide {product} rows of B and {heads} heads in {base}conv1d.weight; "
                "set mamba2.num_groups.",
                param=base + "conv1d.weight",
            )
        self.facts.add("mamba2.state_size", product // found, f"{product} rows of B in {found} groups", confidence)
        return found, product // found

    def _a_override(self) -> Literal["-(1..H)"] | None:
        found = self.facts.add("a_override", None, "A_log is used as it is stored")
        if found is None:
            return None
        if found == "-(1..H)":
            return "-(1..H)"
        raise InvalidRequest(
            f"a_override can't be {str(found)[:60]!r}; it must be '-(1..H)' or null.", param="a_override"
        )

    def _mla(self, base: str) -> _Part:
        rope_dim = self.matrix(base + "w_kr.weight")[0]
        rope_rows = self.matrix(base + "w_qr.weight")[0]
        heads = self._divided(rope_rows, rope_dim, f"{base}w_qr.weight", "rows of w_kr")
        nope = self._divided(self.matrix(base + "w_uk.weight")[0], heads, f"{base}w_uk.weight", "heads")
        value = self._divided(self.matrix(base + "w_uv.weight")[0], heads, f"{base}w_uv.weight", "heads")
        stated = self.config.optional_integer(*_HEAD_KEYS, low=0)
        if stated not in (None, heads):
            self.facts.warn(
                f"config.json says {stated} attention heads, {base}w_qr has rows for {heads}; {heads} are used."
            )
        self.facts.add("attention.num_heads", heads, "rows of w_qr by rows of w_kr")
        rope = read_rope(self.view, rope_dim, max_position_embeddings=self.max_positions, default_theta=DEFAULT_THETA)
        spec = MLASpec(
            num_heads=heads,
            kv_lora_rank=self.matrix(base + "w_dkv.weight")[0],
            q_lora_rank=self.matrix(base + "w_dq.weight")[0],
            qk_nope_head_dim=nope,
            qk_rope_head_dim=rope_dim,
            v_head_dim=value,
            scale=1.0 / math.sqrt(nope + rope_dim),
            rope=rope,
            q_rope_from_hidden=True,
        )
        sources = {
            "kv_a_proj.weight": concatenated(base + "w_dkv.weight", base + "w_kr.weight"),
            "k_b_proj.weight": tensor(base + "w_uk.weight"),
            "v_b_proj.weight": tensor(base + "w_uv.weight"),
            "q_a_proj.weight": tensor(base + "w_dq.weight"),
            "q_b_proj.weight": tensor(base + "w_uq.weight"),
            "q_rope_proj.weight": tensor(base + "w_qr.weight"),
            "o_proj.weight": tensor(base + "o_proj.weight"),
        }
        return _Part(spec, sources)

    def _attention(self, base: str) -> _Part:
        q_rows = self.matrix(base + "q_proj.weight")[0]
        k_rows = self.matrix(base + "k_proj.weight")[0]
        head_dim = self._head_dim(q_rows, k_rows, base)
        heads, kv_heads = q_rows // head_dim, k_rows // head_dim
        rope = read_rope(self.view, head_dim, max_position_embeddings=self.max_positions, default_theta=DEFAULT_THETA)
        spec = AttentionSpec(heads, kv_heads, head_dim, 1.0 / math.sqrt(head_dim), rope)
        sources = {
            "qkv_proj.weight": concatenated(*(f"{base}{part}_proj.weight" for part in "qkv")),
            "o_proj.weight": tensor(base + "o_proj.weight"),
        }
        return _Part(spec, sources)

    def _head_dim(self, q_rows: int, k_rows: int, base: str) -> int:
        """Width of a GQA head. The projections show only heads × width: config.json, an MLA layer or a guess tells."""

        def fits(candidate: int | None) -> bool:
            return (
                candidate is not None
                and q_rows % candidate == 0
                and k_rows % candidate == 0
                and (q_rows // candidate) % (k_rows // candidate) == 0
            )

        overrides = self.facts.overrides
        if "attention.head_dim" in overrides or "attention.num_heads" in overrides:
            return self._head_dim_by_hand(q_rows, fits, base)
        heads = self.config.optional_integer(*_HEAD_KEYS, low=0)
        by_heads = q_rows // heads if heads and q_rows % heads == 0 else None
        stated = self.config.optional_integer("head_dim", "attention.head_dim", low=0) or None
        latent = next((f"layers.{n}.self_attn." for n, kind in enumerate(self.kinds) if kind.startswith("mla")), None)
        by_latent = None
        if latent is not None:
            rows, shared = self.matrix(latent + "w_qr.weight")[0], self.matrix(latent + "w_kr.weight")[0]
            by_latent = self._divided(q_rows, self._divided(rows, shared, latent + "w_qr.weight", "rows of w_kr"),
                                      base + "q_proj.weight", "heads of the MLA layers")  # fmt: skip
        guess = next((guess for guess in HEAD_DIM_GUESSES if fits(guess)), None)
        for candidate, evidence, confidence in (
            (stated, "config.json (head_dim)", self.trust),
            (by_heads, f"{q_rows} rows of q_proj by {heads} heads of config.json", self.trust),
            (by_latent, "as many heads as the MLA layers", Confidence.MEDIUM),
            (guess, "guessed by divisibility; config.json doesn't tell", Confidence.LOW),
        ):
            if candidate is not None and fits(candidate):
                if confidence is Confidence.LOW:
                    self.facts.warn(f"head_dim {candidate} is doubtful ({evidence}); attention.head_dim can be set.")
                self.facts.add("attention.head_dim", candidate, evidence, confidence)
                self._note_heads(q_rows // candidate, k_rows // candidate, evidence, confidence)
                return candidate
        raise UnsupportedArchitecture(
            f"the number of attention heads can't be told: {base}q_proj.weight has {q_rows} rows, k_proj {k_rows}, and "
            f"config.json says {'nothing' if heads is None else f'{heads} heads'}; set attention.num_heads.",
            param="attention.num_heads",
        )

    def _head_dim_by_hand(self, q_rows: int, fits: Callable[[int | None], bool], base: str) -> int:
        given = self.facts.overrides.get("attention.head_dim")
        heads = self.facts.overrides.get("attention.num_heads")
        head_dim = given
        if head_dim is None and isinstance(heads, int) and heads > 0 and q_rows % heads == 0:
            head_dim = q_rows // heads
        if (
            not isinstance(head_dim, int)
            or head_dim < 1
            or not fits(head_dim)
            or heads not in (None, q_rows // head_dim)
        ):
            raise InvalidRequest(
                f"attention.num_heads {heads} and attention.head_dim {given} don't fit the {q_rows} rows of "
                f"{base}q_proj.weight and its k_proj.",
                param="attention.num_heads",
            )
        self.facts.add("attention.head_dim", head_dim, "rows of q_proj by the heads that were set")
        self._note_heads(q_rows // head_dim, None, "rows of q_proj by the head_dim that was set", Confidence.HIGH)
        return head_dim

    def _note_heads(self, heads: int, kv_heads: int | None, evidence: str, confidence: Confidence) -> None:
        self.facts.add("attention.num_heads", heads, evidence, confidence)
        if kv_heads is not None:
            self.facts.add("attention.num_kv_heads", kv_heads, "rows of k_proj by head_dim", confidence)

    def _mlp(self, base: str) -> _Part:
        return _Part(MLPSpec(self.matrix(base + "gate_proj.weight")[0]), _gated(base))

    def _moe(self, number: int, base: str) -> _Part:
        names = self.names[number]
        numbers = {int(match[1]) for match in map(_EXPERT_NAME.match, names) if match}
        count = max(numbers, default=0) + 1
        if len(numbers) != count:
            missing = next(expert for expert in range(count) if expert not in numbers)
            raise MissingTensor(
                f"{base}experts.{missing} is missing from the checkpoint.", param=f"{base}experts.{missing}"
            )
        has_shared = any(name.startswith("moe.shared_expert.") for name in names)
        shared = base + "shared_expert.gate_proj.weight"
        spec = MoESpec(
            num_experts=count,
            top_k=self._top_k(count),
            intermediate_size=self.matrix(f"{base}experts.0.gate_proj.weight")[0],
            shared_intermediate_size=self.matrix(shared)[0] if has_shared else 0,
        )
        expert = base + "experts.{e}."
        sources = {
            "router.weight": tensor(base + "router.gate.weight"),
            "experts.gate_up_proj": Source(
                (Piece(expert + "gate_proj.weight"), Piece(expert + "up_proj.weight")), num_experts=count
            ),
            "experts.down_proj": Source((Piece(expert + "down_proj.weight"),), num_experts=count),
        }
        if has_shared:
            sources |= prefixed("shared_expert", _gated(base + "shared_expert."))
        return _Part(spec, sources)

    def _top_k(self, experts: int) -> int:
        stated = self.config.optional_integer("experts_per_tok", "num_experts_per_tok", "moe.experts_per_tok", low=0)
        if stated is not None and 1 <= stated <= experts:
            found = self.facts.add("moe.top_k", stated, "config.json (experts_per_tok)", self.trust)
        else:
            default = min(DEFAULT_TOP_K, experts)
            evidence = "no tensor shows it; default"
            if stated is not None:
                evidence = f"config.json says {stated} of {experts} experts, which can't be; default"
            found = self.facts.add("moe.top_k", default, evidence, Confidence.LOW)
            if "moe.top_k" not in self.facts.overrides:
                self.facts.warn(
                    f"top_k {default} is a default ({evidence}); set moe.top_k if the model was trained otherwise."
                )
        found = int(found)
        if not 1 <= found <= experts:
            raise InvalidRequest(f"moe.top_k can't be {found}; there are {experts} experts.", param="moe.top_k")
        return found

    # --- helpers ---

    @property
    def trust(self) -> Confidence:
        """How sure a word of config.json is."""
        return Confidence.CERTAIN if self.config_fits else Confidence.LOW

    def matrix(self, name: str) -> tuple[int, int]:
        """Shape of a tensor that must be a matrix."""
        return matrix_shape(self.tensors, name)

    def _divided(self, value: int, by: int, name: str, what: str) -> int:
        if value % by:
            raise TensorShapeMismatch(f"{name} has {value} rows, which isn't a multiple of {by} ({what}).", param=name)
        return value // by

    def _plain(
        self, spec: Mamba1Spec | Mamba2Spec | Mamba3Spec, base: str, renamed: Mapping[str, str] | None = None
    ) -> _Part:
        """A mixer whose parameters are tensors of the same names, but for a few."""
        names = spec.parameter_shapes(self.hidden_size)
        return _Part(spec, {name: tensor(base + (renamed or {}).get(name, name)) for name in names})


_LAYER_NAME = re.compile(r"layers\.(\d{1,6})\.(.+)")
_EXPERT_NAME = re.compile(r"moe\.experts\.(\d{1,6})\.")


def _gated(base: str) -> dict[str, Source]:
    return {
        "gate_up_proj.weight": concatenated(base + "gate_proj.weight", base + "up_proj.weight"),
        "down_proj.weight": tensor(base + "down_proj.weight"),
    }


def _numbers(values: list[int]) -> str:
    return "[" + ", ".join(map(str, values[:12])) + (", …]" if len(values) > 12 else "]")
