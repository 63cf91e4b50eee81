"""Checkpoints of the oxidizr trainer: any mix of Mamba-1/2/3, MLA and GQA layers, with MoE or a dense MLP.

The trainer leaves much out of config.json and never rewrites it, so a directory that was used twice holds a stale
file. The kind and the sizes of a layer therefore come from its tensors. Only what shapes can't show comes from
config.json: query heads of a square projection, experts per token, bases and eps. Where config.json contradicts the
tensors elsewhere, these values get a low confidence.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from inference.errors import MissingTensor, UnsupportedArchitecture, UnsupportedFormat
from inference.modelling.families.checks import finish
from inference.modelling.families.config import MAX_LAYERS, CheckpointView, Confidence
from inference.modelling.families.config_key_tables import COMMON, NO_WINDOW, ROPE, Table, harmless, used
from inference.modelling.families.config_keys import Members, Only
from inference.modelling.families.config_values import number_with_evidence
from inference.modelling.families.decoder_layout import layer_numbers
from inference.modelling.families.headers import STORED_DTYPES, matrix_shape, sample_of
from inference.modelling.families.oxidizr_layers import LayerReader
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.parts import Dtype, NormSpec, prefixed
from inference.modelling.specs.sources import Source, tensor

TRAINER_SIZES: Table = harmless(
    "the tensors show it, and the trainer may leave a stale file",
    "mamba2_num_heads", "mamba2_head_dim", "mamba2_chunk_size", "mamba2_expand", "mamba2_conv_kernel",
    "mamba3_enabled", "mamba3_complex_rope", "mamba3_mimo_rank", "mamba3_use_conv", "kv_latent_dim", "q_latent_dim",
    "d_rope", "num_experts", "shared_expert_enabled", "intermediate_size", "num_key_value_heads", "num_kv_heads",
    "kv_heads", "name",
)  # fmt: skip

OXIDIZR: Table = {
    **COMMON,
    **ROPE,
    **TRAINER_SIZES,
    **used(
        "num_attention_heads", "num_heads", "head_dim", "mamba_layers", "mamba2_state_size", "mamba2_n_groups",
        "experts_per_tok", "num_experts_per_tok", "rms_norm_eps",
    ),
    "hidden_act": Only(("silu", "swish"), "the trainer has no other activation"),
    "sliding_window": NO_WINDOW,
    "vision": Only((), "only text is read"),
    "audio": Only((), "only text is read"),
    "attention": Members(
        {
            **used("num_heads", "head_dim"),
            **harmless("the tensors show it", "num_kv_heads", "kv_latent_dim", "q_latent_dim", "d_rope"),
            "rope_theta": Only((10000, 10000.0), "another base has to be rope_theta at the top level"),
            "rope_scaling": Only((), "scaling has to be rope_scaling at the top level"),
            "sliding_window": NO_WINDOW,
            "use_alibi": Only((False,), "the trainer rotates"),
        }
    ),
    "ssm": Members(
        {
            **used("state_size", "n_groups"),
            **harmless(
                "the tensors show it", "variant", "num_heads", "head_dim", "chunk_size", "conv_kernel", "expand",
                "complex_rope", "mimo_rank", "use_conv",
            ),
        }
    ),
    "moe": Members(
        {
            **used("experts_per_tok"),
            **harmless("the tensors show it", "num_experts", "shared_expert", "intermediate_size"),
            **harmless("training only", "load_balance_alpha", "z_loss_alpha"),
        }
    ),
    "hybrid_layers": Members(used("ssm_layers") | harmless("the tensors show it", "attention_layers")),
}  # fmt: skip

CONFIG_KEYS: Mapping[str, Table] = {
    "oxidizr": OXIDIZR,
}  # fmt: skip

DEFAULT_EPS = 1e-5
DEFAULT_MAX_POSITIONS = 4096

_LAYER_NAME = re.compile(r"layers\.(\d{1,6})\.(.+)")


def build_spec(view: CheckpointView) -> ModelSpec:
    """Read a checkpoint in oxidizr's naming (no ``model.`` prefix).

    Raises:
        UnsupportedArchitecture: No layers, no embedding, or a layer of no known kind.
        MissingTensor, TensorShapeMismatch: The tensors are incomplete, or contradict each other.
    """
    return _Reader(view).read()


class _Reader:
    """Reads one checkpoint: what holds for all layers here, single layers by ``LayerReader``."""

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
        self.vocab_size, self.hidden_size = matrix_shape(self.tensors, "embed_tokens.weight")
        self.names = self._names_by_layer()
        self.kinds = [self._kind(number) for number in range(len(self.names))]
        self.config_fits = self._compare_config()
        self.max_positions = self._max_positions()
        self.block_norm = NormSpec(
            "rms", number_with_evidence(view, "norm.eps", ("rms_norm_eps",), DEFAULT_EPS, low=0.0, high=1.0)
        )

    def read(self) -> ModelSpec:
        layers: list[LayerSpec] = []
        parameters: dict[str, Source] = {"embed_tokens.weight": tensor("embed_tokens.weight")}
        reader = LayerReader(
            self.view,
            names=self.names,
            kinds=self.kinds,
            hidden_size=self.hidden_size,
            max_positions=self.max_positions,
            block_norm=self.block_norm,
            trust=self.trust,
        )
        for number in range(len(self.names)):
            layer, sources = reader.layer(number)
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
        numbers = layer_numbers(self.tensors, "layers.")
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
        # Two names for each kind: if one tensor is missing, the message names it rather than the layer.
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
                "so values that only it has are doubtful."
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
        """Whether the head is the embedding: without lm_head.weight, config.json has to state it."""
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

    @property
    def trust(self) -> Confidence:
        """Confidence of a value that only config.json has."""
        return Confidence.CERTAIN if self.config_fits else Confidence.LOW


def _numbers(values: list[int]) -> str:
    return "[" + ", ".join(map(str, values[:12])) + (", …]" if len(values) > 12 else "]")
