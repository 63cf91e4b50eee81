"""Layers of oxidizr checkpoints: the spec of each mixer from the shapes of its tensors, and its sources.

What shapes can't show (query heads of a square projection, groups, experts per token) comes from config.json or from
a default, with the evidence and confidence of each value.

Letters: h hidden, V vocabulary, I inner width, H heads, P head width, S state size, G groups, K kernel, R MIMO rank.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from inference.errors import InvalidRequest, MissingTensor, TensorShapeMismatch, UnsupportedArchitecture
from inference.modelling.families.config import CheckpointView, Confidence
from inference.modelling.families.headers import matrix_shape, vector_length
from inference.modelling.families.rope_config import read_rope
from inference.modelling.families.state_space import conv_shape
from inference.modelling.spec import LayerSpec
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.layers import (
    AttentionSpec,
    ChannelMixerSpec,
    Mamba1Spec,
    Mamba2Spec,
    MLPSpec,
    MoESpec,
    TokenMixerSpec,
)
from inference.modelling.specs.linear import Mamba3Spec
from inference.modelling.specs.parts import NormSpec, prefixed
from inference.modelling.specs.sources import Piece, Source, concatenated, tensor

DT_RANGE = (0.001, 0.1)
"""dt is clamped to this after softplus."""
A_CLAMP = (1e-6, 1e6)
"""exp(A_log) is clamped to this."""
INNER_EPS = 1e-6
"""eps of the LayerNorm before a Mamba-2/3 mixer, of its gated norm and of bc_norm; config.json doesn't reach them."""
MAMBA1_STATE_CLAMP = 30.0
HEAD_DIM_CANDIDATES = (64, 128)
"""Usual widths of a head, tried in this order where neither config.json nor an MLA layer has it."""
DEFAULT_TOP_K = 2
DEFAULT_THETA = 10000.0

_HEAD_KEYS = ("num_attention_heads", "num_heads", "attention.num_heads")
_EXPERT_NAME = re.compile(r"moe\.experts\.(\d{1,6})\.")


@dataclass(frozen=True, slots=True)
class _Mixer:
    """A mixer and where its parameters come from, by their names within it."""

    spec: TokenMixerSpec | ChannelMixerSpec
    sources: Mapping[str, Source]


class LayerReader:
    """Reads one layer after the other.

    Args:
        names: Tensor names of each layer, without ``layers.N.``.
        kinds: Kind of each layer: ``mamba1``, ``mamba2``, ``mamba3``, or ``attention`` or ``mla`` with ``+mlp`` or
            ``+moe``.
        hidden_size: h.
        max_positions: The model's context.
        block_norm: Norm before the mixers of Mamba-1, attention, MLP and MoE.
        trust: Confidence of a value that only config.json has.
    """

    def __init__(
        self,
        view: CheckpointView,
        *,
        names: Sequence[Collection[str]],
        kinds: Sequence[str],
        hidden_size: int,
        max_positions: int,
        block_norm: NormSpec,
        trust: Confidence,
    ) -> None:
        self._view = view
        self._tensors = view.tensors
        self._config = view.config
        self._facts = view.facts
        self._names = names
        self._kinds = kinds
        self._hidden_size = hidden_size
        self._max_positions = max_positions
        self._block_norm = block_norm
        self._trust = trust

    def layer(self, number: int) -> tuple[LayerSpec, dict[str, Source]]:
        """Spec of one layer, and sources of its parameters by their names within it."""
        base, kind = f"layers.{number}.", self._kinds[number]
        if kind.startswith("mamba"):
            part, norm, norm_sources = self._mamba(base, kind)
            assert isinstance(part.spec, Mamba1Spec | Mamba2Spec | Mamba3Spec)
            sources = prefixed("token_norm", norm_sources) | prefixed("token_mixer", part.sources)
            return LayerSpec(token_mixer=part.spec, token_norm=norm), sources
        mixer_kind, _, channel_kind = kind.partition("+")
        attention = self._mla(base + "self_attn.") if mixer_kind == "mla" else self._attention(base + "self_attn.")
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
            token_norm=self._block_norm,
            channel_mixer=channel.spec,
            channel_norm=self._block_norm,
        )
        return layer, sources

    def _mamba(self, base: str, kind: str) -> tuple[_Mixer, NormSpec, dict[str, Source]]:
        if kind == "mamba1":
            return self._mamba1(base + "mamba."), self._block_norm, {"weight": tensor(base + "norm.weight")}
        norm = NormSpec("layer", INNER_EPS)
        sources = {leaf: tensor(f"{base}{kind}.norm.{leaf}") for leaf in ("weight", "bias")}
        mixer = f"{base}{kind}.mixer."
        return (self._mamba2(mixer) if kind == "mamba2" else self._mamba3(mixer)), norm, sources

    def _mamba1(self, base: str) -> _Mixer:
        inner, size = self._matrix(base + "a_log")
        spec = Mamba1Spec(
            intermediate_size=inner,
            state_size=size,
            conv_kernel=conv_shape(self._view, base + "conv1d.weight")[1],
            dt_rank=self._matrix(base + "dt_proj.weight")[1],
            positive_a=True,
            state_clamp=MAMBA1_STATE_CLAMP,
        )
        renamed = {"A_log": "a_log", "D": "d"}
        return self._from_same_names(spec, base, renamed)

    def _mamba2(self, base: str) -> _Mixer:
        inner, heads, head_dim = self._heads_of_mamba(base)
        conv = self._tensors.shape(base + "conv1d.weight")
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
        return self._from_same_names(spec, base)

    def _mamba3(self, base: str) -> _Mixer:
        inner, heads, head_dim = self._heads_of_mamba(base)
        size = self._matrix(base + "b_bias")[1]
        rows = self._matrix(base + "in_proj.weight")[0]
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
        if base + "mimo_x_up.weight" in self._tensors:
            wide, narrow = self._matrix(base + "mimo_x_up.weight")
            if narrow != head_dim or wide % narrow:
                raise TensorShapeMismatch(
                    f"{base}mimo_x_up.weight has shape {[wide, narrow]}; [{head_dim}·R, {head_dim}] is needed.",
                    param=base + "mimo_x_up.weight",
                )
            rank = wide // narrow
        complex_rope = base + "theta_proj.weight" in self._tensors
        if complex_rope and size % 2:
            raise TensorShapeMismatch(
                f"{base}theta_proj.weight rotates pairs, but the state size is {size}; it must be even.",
                param=base + "theta_proj.weight",
            )
        conv = self._tensors.shape(base + "conv1d.weight") if base + "conv1d.weight" in self._tensors else None
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
        return self._from_same_names(spec, base)

    def _heads_of_mamba(self, base: str) -> tuple[int, int, int]:
        """I, H, P."""
        heads, inner = vector_length(self._tensors, base + "A_log"), vector_length(self._tensors, base + "norm.weight")
        if inner % heads:
            raise TensorShapeMismatch(
                f"{base}norm.weight has {inner} values, which {heads} heads (A_log) can't share evenly.",
                param=base + "norm.weight",
            )
        return inner, heads, inner // heads

    def _groups(self, product: int, heads: int, base: str) -> tuple[int, int]:
        """G and S of a Mamba-2 layer, of which shapes show only the product."""
        size = self._config.optional_integer("mamba2_state_size", "ssm.state_size")
        groups = self._config.optional_integer("mamba2_n_groups", "ssm.n_groups")
        if size is not None and product % size == 0:
            found = product // size
            evidence, confidence = f"{product} rows of B by mamba2_state_size {size} of config.json", self._trust
        elif groups is not None and product % groups == 0:
            found, evidence, confidence = groups, "config.json (mamba2_n_groups)", self._trust
        else:
            found, evidence, confidence = 1, "shapes show only groups × state size; default", Confidence.LOW
            if size is not None or groups is not None:
                self._facts.warn(
                    f"config.json (state size {size}, groups {groups}) doesn't fit the {product} rows of B in "
                    f"{base}conv1d.weight; one group is assumed."
                )
        found = int(self._facts.add("mamba2.num_groups", found, evidence, confidence))
        if product % found or heads % found:
            raise TensorShapeMismatch(
                f"{found} groups don't divide {product} rows of B and {heads} heads in {base}conv1d.weight; "
                "set mamba2.num_groups.",
                param=base + "conv1d.weight",
            )
        self._facts.add("mamba2.state_size", product // found, f"{product} rows of B in {found} groups", confidence)
        return found, product // found

    def _a_override(self) -> Literal["-(1..H)"] | None:
        found = self._facts.add("a_override", None, "A_log is used as it is stored")
        if found is None:
            return None
        if found == "-(1..H)":
            return "-(1..H)"
        raise InvalidRequest(
            f"a_override can't be {str(found)[:60]!r}; it must be '-(1..H)' or null.", param="a_override"
        )

    def _mla(self, base: str) -> _Mixer:
        rope_dim = self._matrix(base + "w_kr.weight")[0]
        rope_rows = self._matrix(base + "w_qr.weight")[0]
        heads = self._divided(rope_rows, rope_dim, f"{base}w_qr.weight", "rows of w_kr")
        nope = self._divided(self._matrix(base + "w_uk.weight")[0], heads, f"{base}w_uk.weight", "heads")
        value = self._divided(self._matrix(base + "w_uv.weight")[0], heads, f"{base}w_uv.weight", "heads")
        stated = self._config.optional_integer(*_HEAD_KEYS, low=0)
        if stated not in (None, heads):
            self._facts.warn(
                f"config.json says {stated} attention heads, {base}w_qr has rows for {heads}; {heads} are used."
            )
        self._facts.add("attention.num_heads", heads, "rows of w_qr by rows of w_kr")
        rope = read_rope(self._view, rope_dim, max_position_embeddings=self._max_positions, default_theta=DEFAULT_THETA)
        spec = MLASpec(
            num_heads=heads,
            kv_lora_rank=self._matrix(base + "w_dkv.weight")[0],
            q_lora_rank=self._matrix(base + "w_dq.weight")[0],
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
        return _Mixer(spec, sources)

    def _attention(self, base: str) -> _Mixer:
        q_rows = self._matrix(base + "q_proj.weight")[0]
        k_rows = self._matrix(base + "k_proj.weight")[0]
        head_dim = self._head_dim(q_rows, k_rows, base)
        heads, kv_heads = q_rows // head_dim, k_rows // head_dim
        rope = read_rope(self._view, head_dim, max_position_embeddings=self._max_positions, default_theta=DEFAULT_THETA)
        spec = AttentionSpec(heads, kv_heads, head_dim, 1.0 / math.sqrt(head_dim), rope)
        sources = {
            "qkv_proj.weight": concatenated(*(f"{base}{part}_proj.weight" for part in "qkv")),
            "o_proj.weight": tensor(base + "o_proj.weight"),
        }
        return _Mixer(spec, sources)

    def _head_dim(self, q_rows: int, k_rows: int, base: str) -> int:
        """Width of a GQA head, from config.json, an MLA layer or a usual width: q_proj shows only heads × width."""

        def fits(candidate: int | None) -> bool:
            return (
                candidate is not None
                and q_rows % candidate == 0
                and k_rows % candidate == 0
                and (q_rows // candidate) % (k_rows // candidate) == 0
            )

        overrides = self._facts.overrides
        if "attention.head_dim" in overrides or "attention.num_heads" in overrides:
            return self._head_dim_by_hand(q_rows, fits, base)
        heads = self._config.optional_integer(*_HEAD_KEYS, low=0)
        by_heads = q_rows // heads if heads and q_rows % heads == 0 else None
        stated = self._config.optional_integer("head_dim", "attention.head_dim", low=0) or None
        latent = next((f"layers.{n}.self_attn." for n, kind in enumerate(self._kinds) if kind.startswith("mla")), None)
        by_latent = None
        if latent is not None:
            rows, shared = self._matrix(latent + "w_qr.weight")[0], self._matrix(latent + "w_kr.weight")[0]
            by_latent = self._divided(q_rows, self._divided(rows, shared, latent + "w_qr.weight", "rows of w_kr"),
                                      base + "q_proj.weight", "heads of the MLA layers")  # fmt: skip
        usual = next((width for width in HEAD_DIM_CANDIDATES if fits(width)), None)
        for candidate, evidence, confidence in (
            (stated, "config.json (head_dim)", self._trust),
            (by_heads, f"{q_rows} rows of q_proj by {heads} heads of config.json", self._trust),
            (by_latent, "as many heads as the MLA layers", Confidence.MEDIUM),
            (usual, "a usual width that divides the rows; not in config.json", Confidence.LOW),
        ):
            if candidate is not None and fits(candidate):
                if confidence is Confidence.LOW:
                    self._facts.warn(f"head_dim {candidate} is doubtful ({evidence}); attention.head_dim can be set.")
                self._facts.add("attention.head_dim", candidate, evidence, confidence)
                self._record_heads(q_rows // candidate, k_rows // candidate, evidence, confidence)
                return candidate
        raise UnsupportedArchitecture(
            f"the number of attention heads is unknown: {base}q_proj.weight has {q_rows} rows, k_proj {k_rows}, and "
            f"config.json says {'nothing' if heads is None else f'{heads} heads'}; set attention.num_heads.",
            param="attention.num_heads",
        )

    def _head_dim_by_hand(self, q_rows: int, fits: Callable[[int | None], bool], base: str) -> int:
        given = self._facts.overrides.get("attention.head_dim")
        heads = self._facts.overrides.get("attention.num_heads")
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
        self._facts.add("attention.head_dim", head_dim, "rows of q_proj by the heads that were set")
        self._record_heads(q_rows // head_dim, None, "rows of q_proj by the head_dim that was set", Confidence.HIGH)
        return head_dim

    def _record_heads(self, heads: int, kv_heads: int | None, evidence: str, confidence: Confidence) -> None:
        self._facts.add("attention.num_heads", heads, evidence, confidence)
        if kv_heads is not None:
            self._facts.add("attention.num_kv_heads", kv_heads, "rows of k_proj by head_dim", confidence)

    def _mlp(self, base: str) -> _Mixer:
        return _Mixer(MLPSpec(self._matrix(base + "gate_proj.weight")[0]), _gated(base))

    def _moe(self, number: int, base: str) -> _Mixer:
        names = self._names[number]
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
            intermediate_size=self._matrix(f"{base}experts.0.gate_proj.weight")[0],
            shared_intermediate_size=self._matrix(shared)[0] if has_shared else 0,
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
        return _Mixer(spec, sources)

    def _top_k(self, experts: int) -> int:
        stated = self._config.optional_integer("experts_per_tok", "num_experts_per_tok", "moe.experts_per_tok", low=0)
        if stated is not None and 1 <= stated <= experts:
            found = self._facts.add("moe.top_k", stated, "config.json (experts_per_tok)", self._trust)
        else:
            default = min(DEFAULT_TOP_K, experts)
            evidence = "no tensor shows it; default"
            if stated is not None:
                evidence = f"config.json says {stated} of {experts} experts, which can't be; default"
            found = self._facts.add("moe.top_k", default, evidence, Confidence.LOW)
            if "moe.top_k" not in self._facts.overrides:
                self._facts.warn(
                    f"top_k {default} is a default ({evidence}); set moe.top_k if the model was trained otherwise."
                )
        found = int(found)
        if not 1 <= found <= experts:
            raise InvalidRequest(f"moe.top_k can't be {found}; there are {experts} experts.", param="moe.top_k")
        return found

    def _matrix(self, name: str) -> tuple[int, int]:
        return matrix_shape(self._tensors, name)

    def _divided(self, value: int, by: int, name: str, what: str) -> int:
        if value % by:
            raise TensorShapeMismatch(f"{name} has {value} rows, which isn't a multiple of {by} ({what}).", param=name)
        return value // by

    def _from_same_names(
        self, spec: Mamba1Spec | Mamba2Spec | Mamba3Spec, base: str, renamed: Mapping[str, str] | None = None
    ) -> _Mixer:
        """A mixer whose parameters are tensors of the same names, those in ``renamed`` excepted."""
        names = spec.parameter_shapes(self._hidden_size)
        return _Mixer(spec, {name: tensor(base + (renamed or {}).get(name, name)) for name in names})


def _gated(base: str) -> dict[str, Source]:
    return {
        "gate_up_proj.weight": concatenated(base + "gate_proj.weight", base + "up_proj.weight"),
        "down_proj.weight": tensor(base + "down_proj.weight"),
    }
