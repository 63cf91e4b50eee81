"""What the HuggingFace families share: reading config.json in both namings, and naming the sources of parameters.

Everything here works on names, shapes and numbers of headers; no torch, no Django. A family composes
these functions into a ``ModelSpec`` and ends with ``finish``, which checks every source against the
shape that its parameter must have.

The config keys are those of transformers 5 (``rope_parameters``, ``dtype``) and of the files on the
hub that were written before it (``rope_theta``, ``rope_scaling``, ``torch_dtype``).
Source: https://github.com/huggingface/transformers/blob/main/src/transformers/modeling_rope_utils.py
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from inference.errors import (
    CorruptCheckpoint,
    MissingTensor,
    TensorShapeMismatch,
    UnsupportedArchitecture,
    UnsupportedFormat,
)
from inference.modelling.config import MAX_LAYERS, CheckpointConfig, CheckpointView, Confidence, TensorTable
from inference.modelling.spec import (
    AttentionSpec,
    ChannelMixerSpec,
    Dtype,
    LayerSpec,
    MLPSpec,
    ModelSpec,
    MoESpec,
    NormSpec,
    Piece,
    RopeScaling,
    RopeSpec,
    Shape,
    Source,
    TokenMixerSpec,
    concatenated,
    tensor,
)

STORED_DTYPES: Mapping[str, Dtype] = {"F32": "float32", "F64": "float32", "BF16": "bfloat16", "F16": "float16"}
"""safetensors' spelling to the dtype that a spec knows."""

ACTIVATION_NAMES: Mapping[str, str] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}
"""transformers' names (``ACT2FN``) to ours; its three spellings of the tanh approximation are one function."""

_IGNORED_TENSORS = re.compile(r"rotary_emb\.inv_freq$|\.masked_bias$|\.attn\.bias$")
_MAX_NAMES_SHOWN = 5


# --- the frame: prefix, layers, embedding, head ------------------------------------------------


@dataclass(frozen=True, slots=True)
class Frame:
    """What every decoder has around its layers.

    Attributes:
        prefix: What stands before ``layers.N.`` in the tensor names: ``model.``, ``backbone.`` or nothing.
        embedding: Name of the embedding's tensor.
        num_layers: Layers to build.
    """

    prefix: str
    embedding: str
    head: str | None
    num_layers: int
    hidden_size: int
    vocab_size: int
    dtype: Dtype
    max_position_embeddings: int

    def layer(self, number: int) -> str:
        """Start of the tensor names of one layer, with the dot."""
        return f"{self.prefix}layers.{number}."


def read_frame(
    view: CheckpointView,
    *,
    prefixes: Sequence[str] = ("model.", ""),
    embeddings: Sequence[str] = ("embed_tokens.weight",),
    layer_keys: Sequence[str] = ("num_hidden_layers", "num_layers"),
    tied_by_default: bool = False,
    extra_layers_allowed: bool = False,
    default_max_position_embeddings: int = 4096,
) -> Frame:
    """Find the prefix, count the layers, read the sizes of embedding and head.

    Args:
        view: The checkpoint.
        prefixes: Candidates, in order of preference.
        embeddings: Candidates for the embedding's name after the prefix.
        layer_keys: Config keys for the number of layers.
        tied_by_default: Whether the head is the embedding when config.json doesn't say.
        extra_layers_allowed: Layers beyond the config's number are something else (multi-token prediction
            modules of DeepSeek) and left out, rather than a contradiction.
        default_max_position_embeddings: When config.json has none.

    Raises:
        UnsupportedArchitecture: No embedding under any of the names.
        MissingTensor: Layers are missing from the sequence 0, 1, 2 ….
        TensorShapeMismatch: The embedding isn't a matrix, or the head has another shape.
    """
    tensors, facts, config = view.tensors, view.facts, view.config
    found = [(p, p + e) for p in prefixes for e in embeddings if p + e in tensors]
    if not found:
        wanted = " or ".join(p + e for p in prefixes for e in embeddings)
        raise UnsupportedArchitecture(
            f"no embedding: {wanted} is not among the {len(tensors)} tensors ({_sample(tensors)}).", param=wanted
        )
    prefix, embedding = found[0]
    vocab_size, hidden_size = matrix_shape(tensors, embedding)
    for key, value in (("hidden_size", hidden_size), ("vocab_size", vocab_size)):
        stated = config.optional_integer(key)
        if stated is not None and stated != value:
            facts.warn(f"config.json says {key} {stated}, but {embedding} has shape {[vocab_size, hidden_size]}.")
    num_layers = _count_layers(view, prefix, layer_keys, extra_layers_allowed)
    head = _find_head(view, prefix, embedding, tied_by_default)
    dtype = _stored_dtype(view, embedding)
    max_positions = config.optional_integer("max_position_embeddings", "max_seq_len", high=1 << 30)
    if max_positions is None:
        max_positions = default_max_position_embeddings
        evidence, confidence = "not in config.json; the family's default", Confidence.LOW
    else:
        evidence, confidence = "config.json", Confidence.CERTAIN
    max_positions = int(
        _noted(view, "max_position_embeddings", max_positions, evidence, confidence, low=1, high=1 << 30)
    )
    return Frame(prefix, embedding, head, num_layers, hidden_size, vocab_size, dtype, max_positions)


def layer_numbers(tensors: TensorTable, prefix: str) -> list[int]:
    """The N of all ``{prefix}layers.N.…`` names, sorted."""
    pattern = re.compile(re.escape(prefix) + r"layers\.(\d{1,6})\.")
    return sorted({int(match[1]) for match in map(pattern.match, tensors) if match})


def _count_layers(view: CheckpointView, prefix: str, keys: Sequence[str], extra_allowed: bool) -> int:
    numbers = layer_numbers(view.tensors, prefix)
    if not numbers:
        raise UnsupportedArchitecture(
            f"no layers: no tensor name starts with {prefix}layers.0. ({_sample(view.tensors)}).",
            param=f"{prefix}layers",
        )
    present = numbers[-1] + 1
    if present > MAX_LAYERS:
        raise CorruptCheckpoint(
            f"layer number {numbers[-1]} is out of range; at most {MAX_LAYERS} layers.", param="layers"
        )
    if len(numbers) != present:
        missing = next(number for number in range(present) if number not in set(numbers))
        raise MissingTensor(
            f"layer {missing} is missing: no tensor name starts with {prefix}layers.{missing}., although layer "
            f"{numbers[-1]} is there.",
            param=f"{prefix}layers.{missing}",
        )
    stated = view.config.optional_integer(*keys, high=MAX_LAYERS)
    if stated is None or stated == present:
        evidence = "distinct layer numbers in the tensor names"
        view.facts.add("num_layers", present, evidence if stated is None else f"config.json and {evidence}")
        return present
    if stated > present:
        raise MissingTensor(
            f"config.json says {stated} layers, but the tensors end at layer {present - 1}; a shard is missing, or "
            "config.json is from another model.",
            param=f"{prefix}layers.{present}",
        )
    if extra_allowed:
        view.facts.add("num_layers", stated, "config.json; the layers after them are prediction modules, left out")
        return stated
    view.facts.warn(f"config.json says {stated} layers, but the tensors have {present}; all {present} are used.")
    view.facts.add("num_layers", present, f"tensor names, against {stated} in config.json", Confidence.MEDIUM)
    return present


def _find_head(view: CheckpointView, prefix: str, embedding: str, tied_by_default: bool) -> str | None:
    """Name of the head's tensor; None: the embedding is the head."""
    config, facts, tensors = view.config, view.facts, view.tensors
    name = "lm_head.weight"
    if name not in tensors and prefix + name in tensors:
        name = prefix + name
    written = "tie_word_embeddings" in config
    tied = config.boolean("tie_word_embeddings", default=tied_by_default)
    if name not in tensors:
        confidence = Confidence.CERTAIN if tied else Confidence.HIGH
        facts.add("tie_word_embeddings", True, "there is no lm_head.weight", confidence)
        return None
    evidence = "config.json" if written else f"{name} is there, and config.json says nothing else"
    if facts.add("tie_word_embeddings", tied, evidence, Confidence.CERTAIN if written else Confidence.MEDIUM):
        return None
    if tensors.shape(name) != tensors.shape(embedding):
        raise TensorShapeMismatch(
            f"{name} has shape {list(tensors.shape(name))}, but {embedding} has {list(tensors.shape(embedding))}.",
            param=name,
        )
    return name


def _stored_dtype(view: CheckpointView, embedding: str) -> Dtype:
    stored = view.tensors[embedding].dtype
    if stored not in STORED_DTYPES:
        raise UnsupportedFormat(
            f"{embedding} is stored as {stored}; {', '.join(STORED_DTYPES)} can be read.", param=embedding
        )
    dtype = STORED_DTYPES[stored]
    view.facts.add("dtype", dtype, f"{embedding} is stored as {stored}")
    return dtype


# --- numbers and names from config.json --------------------------------------------------------


def is_null(config: CheckpointConfig, key: str) -> bool:
    """Whether the key is there with the value null, which says "off" where an absent key says "default"."""
    return key in config.values and config.values[key] is None


def rms_norm(
    view: CheckpointView, *keys: str, default: float = 1e-6, offset: float = 0.0, fact: str = "norm.eps"
) -> NormSpec:
    """RMSNorm with the config's eps."""
    eps = noted_number(view, fact, keys or ("rms_norm_eps",), default, low=0.0, high=1.0)
    return NormSpec("rms", eps, offset)


def noted_number(
    view: CheckpointView, fact: str, keys: Sequence[str], default: float, *, low: float, high: float
) -> float:
    """A number of config.json, or a default that the facts mention."""
    if view.config.get(*keys) is None:
        evidence = f"{keys[0]} is not in config.json; default"
        return _noted(view, fact, default, evidence, Confidence.LOW, low=low, high=high)
    stated = view.config.number(*keys, low=low, high=high)
    return _noted(view, fact, stated, "config.json", Confidence.CERTAIN, low=low, high=high)


def noted_integer(
    view: CheckpointView, fact: str, keys: Sequence[str], default: int, *, low: int = 1, high: int = 1 << 24
) -> int:
    """An integer of config.json, or a default that the facts mention."""
    if view.config.get(*keys) is None:
        evidence = f"{keys[0]} is not in config.json; default"
        return int(_noted(view, fact, default, evidence, Confidence.LOW, low=low, high=high))
    stated = view.config.integer(*keys, low=low, high=high)
    return int(_noted(view, fact, stated, "config.json", Confidence.CERTAIN, low=low, high=high))


def _noted(
    view: CheckpointView, fact: str, value: float, evidence: str, confidence: Confidence, *, low: float, high: float
) -> float:
    """Note a number; an operator's override is checked like a value of config.json."""
    used = view.facts.add(fact, value, evidence, confidence)
    whole = isinstance(value, int)
    if isinstance(used, bool) or not isinstance(used, int if whole else int | float) or not low <= used <= high:
        wanted = "a whole number" if whole else "a number"
        raise CorruptCheckpoint(
            f"{fact} is set to {str(used)[:60]!r}; it must be {wanted} from {low:g} to {high:g}.", param=fact
        )
    return used


def activation(view: CheckpointView, *keys: str, default: str = "silu") -> str:
    """The MLP's activation in our spelling.

    Raises:
        UnsupportedArchitecture: A name that isn't known.
    """
    keys = keys or ("hidden_act",)
    name = view.config.string(*keys, default=default)
    if name not in ACTIVATION_NAMES:
        raise UnsupportedArchitecture(
            f"config.json: {keys[0]} {name[:60]!r} is not a supported activation; supported are "
            f"{', '.join(sorted(ACTIVATION_NAMES))}.",
            param=keys[0],
        )
    stated = view.config.get(*keys) is not None
    evidence, confidence = ("config.json", Confidence.CERTAIN) if stated else ("default", Confidence.LOW)
    return str(view.facts.add("activation", ACTIVATION_NAMES[name], evidence, confidence))


def layer_types(view: CheckpointView, num_layers: int, allowed: Sequence[str]) -> tuple[str, ...] | None:
    """config.json's ``layer_types``, one of ``allowed`` for each layer; None when the key is absent.

    Raises:
        CorruptCheckpoint: Not one entry for each layer.
        UnsupportedArchitecture: An entry that the family doesn't have.
    """
    if "layer_types" not in view.config:
        return None
    types = view.config.strings("layer_types")
    if len(types) != num_layers:
        raise CorruptCheckpoint(
            f"config.json: layer_types has {len(types)} entries for {num_layers} layers.", param="layer_types"
        )
    for kind in types:
        if kind not in allowed:
            raise UnsupportedArchitecture(
                f"config.json: layer type {kind[:60]!r} is not supported here; supported are {', '.join(allowed)}.",
                param="layer_types",
            )
    return types


def window_of_each_layer(types: Sequence[str], window: int | None) -> tuple[int | None, ...]:
    """The window for the layers of type ``sliding_attention``, None for the others."""
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def sliding_window(view: CheckpointView, *, default: int | None = None) -> int | None:
    """The window in positions; null and 0 mean none.

    Args:
        view: The checkpoint.
        default: When the key is absent.
    """
    config = view.config
    if "sliding_window" not in config.values:
        if default is not None:
            view.facts.add(
                "attention.sliding_window", default, "sliding_window is not in config.json; default", Confidence.LOW
            )
        return default
    if config.get("sliding_window") is None:
        return None
    return config.integer("sliding_window", low=0, high=1 << 30) or None


# --- rope --------------------------------------------------------------------------------------


def read_rope(
    view: CheckpointView,
    head_dim: int,
    *,
    max_position_embeddings: int,
    default_theta: float = 10000.0,
    default_partial: float = 1.0,
    interleaved: bool = False,
    layer_type: str | None = None,
    renamed_types: Mapping[str, str] | None = None,
    default_original: int | None = None,
) -> RopeSpec:
    """The rotary embedding that config.json describes, in either naming.

    Args:
        view: The checkpoint.
        head_dim: Width of the (rotary part of the) head, before ``partial_rotary_factor``.
        max_position_embeddings: The model's context.
        default_theta: When config.json has none.
        default_partial: Rotated share of the head when config.json has none.
        interleaved: Adjacent pairs rather than halves.
        layer_type: Look under this key when ``rope_parameters`` has one object for each layer type.
        renamed_types: A family's own names for scaling kinds (Phi-3's ``su``).
        default_original: The trained context when config.json has none (the model's context otherwise).

    Raises:
        UnsupportedArchitecture: An unknown kind of scaling, or an odd number of rotated values.
        CorruptCheckpoint: A number is out of range, or a list has the wrong length.
    """
    rope = _rope_values(view.config, layer_type)
    theta_given = "rope_theta" in rope
    theta = rope.number("rope_theta", low=1.001, high=1e15, default=default_theta)
    theta = _noted(
        view,
        "rope.theta" if layer_type is None else f"rope.theta.{layer_type}",
        theta,
        "config.json" if theta_given else "rope_theta is not in config.json; default",
        Confidence.CERTAIN if theta_given else Confidence.LOW,
        low=1.001,
        high=1e15,
    )
    partial = rope.number("partial_rotary_factor", "rotary_percent", low=0.0, high=1.0, default=default_partial)
    rotary_dim = int(head_dim * partial)
    if rotary_dim < 2 or rotary_dim % 2:
        raise UnsupportedArchitecture(
            f"config.json: {rotary_dim} of {head_dim} values of a head are rotated (partial_rotary_factor "
            f"{partial:g}); an even number from 2 on is needed.",
            param="partial_rotary_factor",
        )
    kind = rope.string("rope_type", "type", default="default")
    kind = (renamed_types or {}).get(kind, kind)
    scaling = _rope_scaling(rope, kind, rotary_dim, max_position_embeddings, default_original)
    if scaling is not None:
        view.facts.add("rope.scaling", kind, "config.json")
    return RopeSpec(theta, rotary_dim, interleaved, scaling, max_position_embeddings)


def _rope_values(config: CheckpointConfig, layer_type: str | None) -> CheckpointConfig:
    """One flat object of all rope keys: the nested ones, filled up with those of the top level."""
    nested: Any = config.get("rope_parameters", "rope_scaling", default={})
    if not isinstance(nested, Mapping):
        raise CorruptCheckpoint(
            f"config.json: rope_parameters is {str(nested)[:60]!r}; it must be an object.", param="rope_parameters"
        )
    if layer_type is not None and isinstance(nested.get(layer_type), Mapping):
        nested = nested[layer_type]
    elif nested and all(isinstance(value, Mapping) or value is None for value in nested.values()):
        kinds = [value for value in nested.values() if isinstance(value, Mapping)]
        if layer_type is not None or any(value != kinds[0] for value in kinds):
            raise CorruptCheckpoint(
                f"config.json: rope_parameters has one object for each of {', '.join(map(str, nested))}, "
                f"none for {layer_type or 'all layers'}.",
                param="rope_parameters",
            )
        nested = kinds[0] if kinds else {}
    values = {str(key): value for key, value in nested.items() if value is not None}
    for key in ("rope_theta", "partial_rotary_factor", "rotary_percent"):
        if key not in values and config.get(key) is not None:
            values[key] = config.get(key)
    # The top level's value wins: Phi-3 keeps the trained context there, and so does transformers.
    trained = config.get("original_max_position_embeddings", default=values.get("original_max_position_embeddings"))
    if trained is not None:
        values["original_max_position_embeddings"] = trained
    return CheckpointConfig(values)


RopeKind = Literal["linear", "llama3", "yarn", "longrope", "dynamic"]


def _rope_scaling(
    rope: CheckpointConfig, kind: str, rotary_dim: int, max_positions: int, default_original: int | None
) -> RopeScaling | None:
    if kind in ("default", "none", ""):
        return None
    if kind not in ("linear", "llama3", "yarn", "longrope", "dynamic"):
        raise UnsupportedArchitecture(
            f"config.json: rope type {kind[:60]!r} is not supported; supported are default, linear, dynamic, llama3, "
            "yarn, longrope.",
            param="rope_type",
        )
    original = rope.integer(
        "original_max_position_embeddings", default=default_original or max_positions, low=2, high=1 << 30
    )
    # Without a factor, yarn and longrope stretch from the trained context to the model's.
    default_factor = max_positions / original if kind in ("yarn", "longrope") else None
    factor = rope.number("factor", default=default_factor, low=1e-6, high=1e6)
    common: dict[str, Any] = {"factor": factor, "original_max_position_embeddings": original}
    if kind == "llama3":
        low = rope.number("low_freq_factor", default=1.0, low=1e-6, high=1e6)
        high = rope.number("high_freq_factor", default=4.0, low=1e-6, high=1e6)
        if high <= low:
            raise CorruptCheckpoint(
                f"config.json: high_freq_factor {high:g} must be above low_freq_factor {low:g}.",
                param="high_freq_factor",
            )
        return RopeScaling("llama3", low_freq_factor=low, high_freq_factor=high, **common)
    if kind == "yarn":
        return RopeScaling(
            "yarn",
            # 0 means "not given" in transformers for both.
            beta_fast=rope.number("beta_fast", default=32.0, low=0.0, high=1e6) or 32.0,
            beta_slow=rope.number("beta_slow", default=1.0, low=0.0, high=1e6) or 1.0,
            mscale=_optional_number(rope, "mscale"),
            mscale_all_dim=_optional_number(rope, "mscale_all_dim"),
            attention_factor=_optional_number(rope, "attention_factor"),
            truncate=rope.boolean("truncate", default=True),
            **common,
        )
    if kind == "longrope":
        lists = {name: rope.numbers(name) for name in ("short_factor", "long_factor")}
        for name, values in lists.items():
            if len(values) != rotary_dim // 2 or min(values) <= 0:
                raise CorruptCheckpoint(
                    f"config.json: {name} has {len(values)} values; {rotary_dim // 2} positive ones are needed.",
                    param=name,
                )
        return RopeScaling(
            "longrope",
            short_factor=lists["short_factor"],
            long_factor=lists["long_factor"],
            attention_factor=_optional_number(rope, "attention_factor"),
            **common,
        )
    if kind == "dynamic" and rotary_dim < 4:
        raise UnsupportedArchitecture(
            f"rope type dynamic needs at least 4 rotated values in a head, not {rotary_dim}.", param="rope_type"
        )
    return RopeScaling(cast("RopeKind", kind), **common)


def _optional_number(config: CheckpointConfig, key: str) -> float | None:
    return None if config.get(key) is None else config.number(key, low=-1e6, high=1e6)


def yarn_softmax_multiplier(rope: RopeSpec) -> float:
    """Factor of DeepSeek's softmax scale: the square of YaRN's magnitude correction over all dimensions.

    Source: https://arxiv.org/abs/2309.00071, section 3.4, as transformers' DeepSeek modules apply it (for any
    scaling that has ``mscale_all_dim``).
    """
    scaling = rope.scaling
    if scaling is None or not scaling.mscale_all_dim or scaling.factor <= 1:
        return 1.0
    return float((0.1 * scaling.mscale_all_dim * math.log(scaling.factor) + 1.0) ** 2)


# --- attention ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """Query heads, key/value heads, and the width of each."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


def read_heads(
    view: CheckpointView,
    layer: str,
    hidden_size: int,
    *,
    attention: str = "self_attn.",
    default_head_dim: int | None = None,
) -> HeadSizes:
    """Head counts and width, from config.json and from the projections of one attention layer.

    Shapes win over config.json, with a warning; what neither says is guessed and noted as such.

    Args:
        view: The checkpoint.
        layer: Start of the layer's tensor names, with the dot.
        hidden_size: h.
        attention: The attention's part of the names, with the dot.
        default_head_dim: The family's width when config.json has none (h / heads otherwise).

    Raises:
        TensorShapeMismatch: The projections can't be split into the heads that config.json states.
        UnsupportedArchitecture: No way to know the head count.
    """
    base = layer + attention
    fused = base + "qkv_proj.weight"
    if fused in view.tensors:
        return _fused_heads(view, fused, base, default_head_dim)
    q_rows = matrix_shape(view.tensors, base + "q_proj.weight")[0]
    k_rows = matrix_shape(view.tensors, base + "k_proj.weight")[0]
    head_dim = _head_dim(view, base, q_rows, hidden_size, k_rows, default_head_dim)
    if q_rows % head_dim or k_rows % head_dim:
        raise TensorShapeMismatch(
            f"head_dim {head_dim} divides neither evenly: {base}q_proj.weight has {q_rows} rows, k_proj {k_rows}.",
            param=base + "q_proj.weight",
        )
    heads = _agreed(view, "attention.num_heads", ("num_attention_heads", "num_heads"), q_rows // head_dim, "q_proj")
    kv_heads = _agreed(
        view, "attention.num_kv_heads", ("num_key_value_heads", "num_kv_heads"), k_rows // head_dim, "k_proj"
    )
    return _checked_heads(HeadSizes(heads, kv_heads, head_dim), base)


def _head_dim(view: CheckpointView, base: str, q_rows: int, hidden_size: int, k_rows: int, default: int | None) -> int:
    config, facts = view.config, view.facts
    name = "attention.head_dim"
    norm = view.tensors.get(base + "q_norm.weight")
    heads = config.optional_integer("num_attention_heads", "num_heads", high=1 << 16)
    stated = config.optional_integer("head_dim", high=1 << 16)
    if name in facts.overrides:
        return int(_noted(view, name, 1, "", Confidence.LOW, low=1, high=1 << 16))
    if norm is not None and len(norm.shape) == 1 and norm.shape[0] < q_rows and q_rows % norm.shape[0] == 0:
        if stated is not None and stated != norm.shape[0]:
            facts.warn(f"config.json says head_dim {stated}, but {base}q_norm.weight has {norm.shape[0]} values.")
        return int(facts.add(name, norm.shape[0], f"length of {base}q_norm.weight"))
    if stated is None and heads is not None and default is not None and q_rows == heads * default:
        return int(facts.add(name, default, f"the family's default; {heads} heads give q_proj's {q_rows} rows"))
    if heads is not None and q_rows % heads == 0:
        found = q_rows // heads
        if stated is not None and stated != found:
            facts.warn(
                f"config.json says head_dim {stated}, but {base}q_proj.weight has {q_rows} rows for {heads} heads: "
                f"{found} is used."
            )
            return int(facts.add(name, found, f"q_proj's {q_rows} rows by {heads} heads", Confidence.MEDIUM))
        evidence = "config.json" if stated is not None else f"q_proj's {q_rows} rows by {heads} heads"
        return int(facts.add(name, found, evidence))
    if stated is not None and q_rows % stated == 0:
        if heads is not None:
            facts.warn(f"config.json says {heads} heads, but {base}q_proj.weight has {q_rows} rows.")
        return int(facts.add(name, stated, "config.json"))
    if heads is not None:
        raise TensorShapeMismatch(
            f"config.json says {heads} attention heads, but {base}q_proj.weight has {q_rows} rows.",
            param=base + "q_proj.weight",
        )
    for guess in (64, 128):
        if q_rows % guess == 0 and k_rows % guess == 0:
            facts.warn(f"head_dim is a guess ({guess}); set attention.head_dim if the output is nonsense.")
            return int(facts.add(name, guess, "guessed by divisibility; not in config.json", Confidence.LOW))
    raise UnsupportedArchitecture(
        f"num_attention_heads is not in config.json and {base}q_proj.weight ({q_rows} rows) doesn't tell it; add it.",
        param="num_attention_heads",
    )


def _agreed(view: CheckpointView, name: str, keys: Sequence[str], found: int, tensor_name: str) -> int:
    """The number that the shapes give; config.json's contradiction becomes a warning."""
    stated = view.config.optional_integer(*keys, high=1 << 16)
    if stated == found:
        return int(view.facts.add(name, found, f"config.json and the rows of {tensor_name}"))
    evidence, confidence = f"rows of {tensor_name} by head_dim", Confidence.HIGH
    if stated is not None:
        view.facts.warn(f"config.json says {keys[0]} {stated}, but {tensor_name} has rows for {found}.")
        evidence, confidence = f"{evidence}, against {stated} in config.json", Confidence.MEDIUM
    view.facts.add(name, found, evidence, confidence)
    return found


def _fused_heads(view: CheckpointView, fused: str, base: str, default_head_dim: int | None) -> HeadSizes:
    """Heads of a projection that holds q, k and v: (heads + 2 · kv heads) · head_dim rows."""
    config, facts = view.config, view.facts
    rows = matrix_shape(view.tensors, fused)[0]
    q_width = matrix_shape(view.tensors, base + "o_proj.weight")[1]
    kv_width = (rows - q_width) // 2
    heads = config.integer("num_attention_heads", "num_heads", high=1 << 16)
    head_dim = config.optional_integer("head_dim", high=1 << 16) or default_head_dim
    if head_dim is None or head_dim * heads != q_width:
        if q_width % heads:
            raise TensorShapeMismatch(
                f"config.json says {heads} attention heads, but {base}o_proj.weight has {q_width} columns.",
                param=base + "o_proj.weight",
            )
        if head_dim is not None:
            facts.warn(f"config.json says head_dim {head_dim}, but {q_width} columns of o_proj are {heads} heads.")
        head_dim = q_width // heads
    facts.add("attention.head_dim", head_dim, f"{q_width} columns of o_proj by {heads} heads")
    if kv_width <= 0 or (rows - q_width) % 2 or kv_width % head_dim:
        raise TensorShapeMismatch(
            f"{fused} has {rows} rows; {heads} heads of {head_dim} and the same for keys and values don't fit.",
            param=fused,
        )
    facts.add("attention.num_heads", heads, "config.json")
    kv_heads = _agreed(
        view, "attention.num_kv_heads", ("num_key_value_heads", "num_kv_heads"), kv_width // head_dim, "qkv_proj"
    )
    return _checked_heads(HeadSizes(heads, kv_heads, head_dim), base)


def _checked_heads(sizes: HeadSizes, base: str) -> HeadSizes:
    if sizes.num_heads % sizes.num_kv_heads:
        raise TensorShapeMismatch(
            f"{sizes.num_heads} query heads can't share {sizes.num_kv_heads} key/value heads ({base[:-1]}).",
            param=base + "k_proj.weight",
        )
    return sizes


def attention_spec(
    view: CheckpointView,
    layer: str,
    heads: HeadSizes,
    rope: RopeSpec | None,
    *,
    attention: str = "self_attn.",
    scale: float | None = None,
    qk_norm: NormSpec | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    output: str = "o_proj",
) -> AttentionSpec:
    """The spec of one layer; biases are there if their tensors are. ``scale`` None: 1 / sqrt(head_dim)."""
    base = layer + attention
    names = ("qkv_proj",) if base + "qkv_proj.weight" in view.tensors else ("q_proj", "k_proj", "v_proj")
    return AttentionSpec(
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        scale=heads.head_dim**-0.5 if scale is None else scale,
        rope=rope,
        qkv_bias=any(f"{base}{name}.bias" in view.tensors for name in names),
        o_bias=f"{base}{output}.bias" in view.tensors,
        qk_norm=qk_norm,
        sliding_window=sliding_window,
        softcap=softcap,
    )


def attention_sources(
    view: CheckpointView, spec: AttentionSpec, layer: str, *, attention: str = "self_attn.", output: str = "o_proj"
) -> dict[str, Source]:
    """Sources of an ``AttentionSpec``'s parameters: separate or fused projections."""
    base = layer + attention
    fused = base + "qkv_proj.weight" in view.tensors
    names = ("qkv_proj",) if fused else ("q_proj", "k_proj", "v_proj")
    sources = {"qkv_proj.weight": concatenated(*(f"{base}{name}.weight" for name in names))}
    if spec.qkv_bias:
        sources["qkv_proj.bias"] = concatenated(*(f"{base}{name}.bias" for name in names))
    sources["o_proj.weight"] = tensor(f"{base}{output}.weight")
    if spec.o_bias:
        sources["o_proj.bias"] = tensor(f"{base}{output}.bias")
    if spec.qk_norm is not None and not spec.qk_norm.weightless:
        sources["q_norm.weight"] = tensor(base + "q_norm.weight")
        sources["k_norm.weight"] = tensor(base + "k_norm.weight")
    return sources


# --- MLP and experts ---------------------------------------------------------------------------


def mlp_spec(
    view: CheckpointView, layer: str, activation_name: str, *, mlp: str = "mlp.", gated: bool = True
) -> MLPSpec:
    """Width from ``down_proj``'s columns, biases by presence."""
    base = layer + mlp
    width = matrix_shape(view.tensors, base + "down_proj.weight")[1]
    stated = view.config.optional_integer("intermediate_size")
    if stated is not None and stated != width and mlp == "mlp.":
        view.facts.warn(f"config.json says intermediate_size {stated}, but {base}down_proj.weight has {width} columns.")
    return MLPSpec(width, activation_name, gated, bias=base + "down_proj.bias" in view.tensors)


def mlp_sources(view: CheckpointView, spec: MLPSpec, layer: str, *, mlp: str = "mlp.") -> dict[str, Source]:
    """Sources of an ``MLPSpec``'s parameters: separate or fused gate and up."""
    base = layer + mlp
    sources: dict[str, Source] = {}
    kinds = ("weight", "bias") if spec.bias else ("weight",)
    for kind in kinds:
        if not spec.gated:
            sources[f"up_proj.{kind}"] = tensor(f"{base}up_proj.{kind}")
        elif f"{base}gate_up_proj.{kind}" in view.tensors:
            sources[f"gate_up_proj.{kind}"] = tensor(f"{base}gate_up_proj.{kind}")
        else:
            sources[f"gate_up_proj.{kind}"] = concatenated(f"{base}gate_proj.{kind}", f"{base}up_proj.{kind}")
        sources[f"down_proj.{kind}"] = tensor(f"{base}down_proj.{kind}")
    return sources


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """How a family calls its experts' matrices (per-expert files); stacked files have one spelling."""

    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


def count_experts(view: CheckpointView, base: str, *, down: str = "down_proj") -> tuple[int, int]:
    """(number of experts, width of each) of the experts under ``base`` (``…experts.``), stacked or not.

    Raises:
        MissingTensor: Neither form is there, or an expert is missing.
    """
    stacked = base + "down_proj"
    if stacked in view.tensors:
        shape = view.tensors.shape(stacked)
        if len(shape) != 3:
            raise TensorShapeMismatch(f"{stacked} has shape {list(shape)}; three axes are needed.", param=stacked)
        return shape[0], shape[2]
    pattern = re.compile(re.escape(base) + r"(\d{1,6})\." + re.escape(down) + r"\.weight$")
    numbers = sorted(int(match[1]) for match in map(pattern.match, view.tensors) if match)
    if not numbers:
        raise MissingTensor(f"no experts: neither {stacked} nor {base}0.{down}.weight is there.", param=stacked)
    if len(numbers) != numbers[-1] + 1:
        missing = next(number for number in range(numbers[-1]) if number not in set(numbers))
        raise MissingTensor(f"tensor {base}{missing}.{down}.weight is missing.", param=f"{base}{missing}.{down}.weight")
    return len(numbers), matrix_shape(view.tensors, f"{base}0.{down}.weight")[1]


def expert_sources(
    view: CheckpointView, base: str, num_experts: int, *, gated: bool = True, names: ExpertNames | None = None
) -> dict[str, Source]:
    """Sources of ``experts.*``: ``{base}gate_up_proj`` stacked out × in, or one tensor for each expert."""
    names = names or ExpertNames()
    up_name = "gate_up_proj" if gated else "up_proj"
    if base + "down_proj" in view.tensors:
        return {f"experts.{up_name}": tensor(base + up_name), "experts.down_proj": tensor(base + "down_proj")}
    ups = (names.gate, names.up) if gated else (names.up,)
    pieces = tuple(Piece(f"{base}{{e}}.{name}.weight") for name in ups)
    return {
        f"experts.{up_name}": Source(pieces, num_experts),
        "experts.down_proj": Source((Piece(f"{base}{{e}}.{names.down}.weight"),), num_experts),
    }


def moe_sources(
    view: CheckpointView,
    spec: MoESpec,
    base: str,
    *,
    router: str = "gate",
    shared: str = "shared_expert.",
    names: ExpertNames | None = None,
) -> dict[str, Source]:
    """Sources of a ``MoESpec``'s parameters under ``base`` (``…mlp.``), experts stacked or one by one."""
    sources = {"router.weight": tensor(f"{base}{router}.weight")}
    if spec.correction_bias:
        sources["router.correction_bias"] = tensor(f"{base}{router}.e_score_correction_bias")
    sources |= expert_sources(view, base + "experts.", spec.num_experts, gated=spec.gated, names=names)
    if spec.shared_intermediate_size:
        dense = MLPSpec(spec.shared_intermediate_size, spec.activation, spec.gated)
        sources |= prefixed("shared_expert", mlp_sources(view, dense, base, mlp=shared))
    if spec.shared_gate:
        sources["shared_expert_gate.weight"] = tensor(f"{base}shared_expert_gate.weight")
    return sources


def agree_on_experts(view: CheckpointView, found: int, *keys: str) -> int:
    """The number of experts that the tensors have; config.json's contradiction becomes a warning."""
    stated = view.config.optional_integer(*keys)
    if stated is not None and stated != found:
        view.facts.warn(f"config.json says {keys[0]} {stated}, but the tensors have {found} experts.")
    view.facts.add("moe.num_experts", found, "expert tensors")
    return found


def check_routing(spec: MoESpec) -> MoESpec:
    """The spec, if its routing can be carried out.

    Raises:
        CorruptCheckpoint: More experts are to be chosen than there are, or the groups don't divide them.
    """
    experts, groups = spec.num_experts, spec.num_expert_groups
    if spec.top_k > experts:
        raise CorruptCheckpoint(
            f"config.json: num_experts_per_tok is {spec.top_k}, but there are {experts} experts.",
            param="num_experts_per_tok",
        )
    if experts % groups or spec.top_k_groups > groups:
        raise CorruptCheckpoint(
            f"config.json: {experts} experts in {groups} groups, {spec.top_k_groups} of them chosen, is impossible.",
            param="n_group",
        )
    if spec.top_k > spec.top_k_groups * (experts // groups):
        raise CorruptCheckpoint(
            f"config.json: {spec.top_k_groups} groups of {experts // groups} experts don't hold the "
            f"{spec.top_k} that num_experts_per_tok asks for.",
            param="topk_group",
        )
    if spec.group_score == "top2" and groups > 1 and experts // groups < 2:
        raise CorruptCheckpoint(f"config.json: {groups} groups of one expert each can't be scored.", param="n_group")
    return spec


# --- putting it together -----------------------------------------------------------------------


def llama_layer(token_mixer: TokenMixerSpec, channel_mixer: ChannelMixerSpec, norm: NormSpec) -> LayerSpec:
    """The pre-norm layer of Llama: norm, attention, norm, MLP or MoE."""
    return LayerSpec(token_mixer=token_mixer, token_norm=norm, channel_mixer=channel_mixer, channel_norm=norm)


def llama_layer_sources(
    number: int, layer: str, token_mixer: Mapping[str, Source], channel_mixer: Mapping[str, Source]
) -> dict[str, Source]:
    """Sources of a ``llama_layer``'s parameters, under their full names.

    Args:
        number: The layer's.
        layer: Start of its tensor names.
        token_mixer: Sources by name within the mixer.
        channel_mixer: The same.
    """
    name = f"layers.{number}"
    return {
        f"{name}.token_norm.weight": tensor(f"{layer}input_layernorm.weight"),
        f"{name}.channel_norm.weight": tensor(f"{layer}post_attention_layernorm.weight"),
        **prefixed(f"{name}.token_mixer", token_mixer),
        **prefixed(f"{name}.channel_mixer", channel_mixer),
    }


def prefixed(prefix: str, sources: Mapping[str, Source]) -> dict[str, Source]:
    """The same sources under longer parameter names."""
    return {f"{prefix}.{name}": source for name, source in sources.items()}


def frame_sources(frame: Frame, *, final_norm: str = "norm") -> dict[str, Source]:
    """Embedding, final norm (RMS) and head."""
    sources = {
        "embed_tokens.weight": tensor(frame.embedding),
        "final_norm.weight": tensor(f"{frame.prefix}{final_norm}.weight"),
    }
    if frame.head is not None:
        sources["lm_head.weight"] = tensor(frame.head)
    return sources


def source_shape(source: Source, tensors: TensorTable) -> Shape:
    """The shape that a source gives, from headers alone; the steps are those of ``Piece``.

    Raises:
        MissingTensor: A tensor isn't there.
        TensorShapeMismatch: A step doesn't fit the tensor, or the pieces don't fit each other.
    """
    names = list(source.tensor_names())
    for name in names:
        tensors.shape(name)
    first: Shape | None = None
    for expert in range(source.num_experts or 1):
        number = None if source.num_experts is None else expert
        shapes = [_piece_shape(piece, tensors, number) for piece in source.pieces]
        if any(shape[1:] != shapes[0][1:] or not shape for shape in shapes) and len(shapes) > 1:
            raise TensorShapeMismatch(
                f"{' and '.join(names[: len(shapes)])} have shapes {' and '.join(str(list(s)) for s in shapes)}; they "
                "can't be put together.",
                param=names[0],
            )
        found = (sum(shape[0] for shape in shapes), *shapes[0][1:]) if len(shapes) > 1 else shapes[0]
        if first is not None and found != first:
            raise TensorShapeMismatch(
                f"expert {expert} has shape {list(found)} where expert 0 has {list(first)} ({source.pieces[0].name}).",
                param=source.pieces[0].name,
            )
        first = found
    assert first is not None
    return first if source.num_experts is None else (source.num_experts, *first)


def _piece_shape(piece: Piece, tensors: TensorTable, expert: int | None) -> Shape:
    name = piece.name if expert is None else piece.name.replace("{e}", str(expert))
    shape = tensors.shape(name)
    bad = TensorShapeMismatch(f"{name} has shape {list(shape)}, which its use doesn't allow.", param=name)
    if piece.index is not None:
        index = expert if piece.index == -1 and expert is not None else piece.index
        if len(shape) < 2 or not 0 <= index < shape[0]:
            raise bad
        shape = shape[1:]
    if piece.transpose:
        if len(shape) < 2:
            raise bad
        shape = (*shape[:-2], shape[-1], shape[-2])
    if piece.rows is not None:
        if not shape or not 0 <= piece.rows[0] < piece.rows[1] <= shape[0]:
            raise bad
        shape = (piece.rows[1] - piece.rows[0], *shape[1:])
    if piece.per_group is not None:
        size, begin, end = piece.per_group
        if not shape or shape[0] % size:
            raise bad
        shape = (shape[0] // size * (end - begin), *shape[1:])
    if piece.stride is not None:
        if not shape:
            raise bad
        shape = (len(range(piece.stride[0], shape[0], piece.stride[1])), *shape[1:])
    if piece.reshape is not None:
        if math.prod(piece.reshape) != math.prod(shape):
            raise bad
        shape = piece.reshape
    return shape


def decoder_spec(
    view: CheckpointView,
    frame: Frame,
    model_type: str,
    layers: Sequence[LayerSpec],
    layer_sources: Mapping[str, Source],
    final_norm: NormSpec,
    *,
    unused: str | None = None,
    embedding_multiplier: float = 1.0,
    logits_multiplier: float = 1.0,
    logits_softcap: float | None = None,
    final_norm_name: str = "norm",
) -> ModelSpec:
    """The whole model from its frame and layers, checked by ``finish``."""
    spec = ModelSpec(
        format="huggingface",
        model_type=model_type,
        hidden_size=frame.hidden_size,
        vocab_size=frame.vocab_size,
        max_position_embeddings=frame.max_position_embeddings,
        layers=tuple(layers),
        final_norm=final_norm,
        dtype=frame.dtype,
        tie_word_embeddings=frame.head is None,
        embedding_multiplier=embedding_multiplier,
        logits_multiplier=logits_multiplier,
        logits_softcap=logits_softcap,
        parameters={**frame_sources(frame, final_norm=final_norm_name), **layer_sources},
    )
    return finish(view, spec, unused=unused)


def finish(view: CheckpointView, spec: ModelSpec, *, unused: str | None = None) -> ModelSpec:
    """Check the finished spec against the headers, and warn of tensors that nothing reads.

    Args:
        view: The checkpoint.
        spec: What the family made.
        unused: Pattern of names that the family leaves out on purpose.

    Raises:
        MissingTensor: A tensor that a parameter is made of isn't there.
        TensorShapeMismatch: A parameter would have another shape than the spec needs.
        UnsupportedFormat: A tensor is stored in a dtype that isn't read.
    """
    shapes = spec.parameter_shapes()
    assert shapes.keys() == spec.parameters.keys(), sorted(shapes.keys() ^ spec.parameters.keys())
    read: set[str] = set()
    for name, wanted in shapes.items():
        source = spec.parameters[name]
        found = source_shape(source, view.tensors)
        names = list(source.tensor_names())
        if found != wanted:
            raise TensorShapeMismatch(
                f"{' + '.join(names[:3])}{' …' if len(names) > 3 else ''} has shape {list(found)}, but config.json and "
                f"the other tensors ask for {list(wanted)} ({name}).",
                param=names[0],
            )
        for item in names:
            if view.tensors[item].dtype not in STORED_DTYPES:
                raise UnsupportedFormat(
                    f"{item} is stored as {view.tensors[item].dtype}; {', '.join(STORED_DTYPES)} can be read.",
                    param=item,
                )
        read.update(names)
    skip = re.compile(unused) if unused else None
    left = [
        name
        for name in view.tensors
        if name not in read
        and not _IGNORED_TENSORS.search(name)
        and not (skip and skip.search(name))
        and not (spec.tie_word_embeddings and name.endswith("lm_head.weight"))
    ]
    if left:
        view.facts.warn(f"{len(left)} tensors are not used: {_shown(left)}.")
    return spec


def matrix_shape(tensors: TensorTable, name: str) -> tuple[int, int]:
    """(rows, columns) of a tensor that has to be a matrix.

    Raises:
        MissingTensor: It isn't there.
        TensorShapeMismatch: It isn't a matrix.
    """
    shape = tensors.shape(name)
    if len(shape) != 2 or min(shape) < 1:
        raise TensorShapeMismatch(f"{name} has shape {list(shape)}; a matrix is needed.", param=name)
    return shape[0], shape[1]


def _shown(names: Sequence[str]) -> str:
    shown = ", ".join(name[:80] for name in names[:_MAX_NAMES_SHOWN])
    return shown + (", …" if len(names) > _MAX_NAMES_SHOWN else "")


def _sample(tensors: TensorTable) -> str:
    return _shown(sorted(tensors)) if len(tensors) else "there are none"
