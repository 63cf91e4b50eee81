"""Read values of config.json and record each as a fact with its evidence and confidence.

A value that config.json leaves out is the family's default, and its fact states that. An operator's override is
checked like a value of config.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inference.errors import CorruptCheckpoint, TensorShapeMismatch, UnsupportedArchitecture
from inference.modelling.families.config import MAX_SIZE, CheckpointConfig, CheckpointView, Confidence
from inference.modelling.specs.parts import NormSpec

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
"""Names in transformers (``ACT2FN``) to names in a spec; three spellings of the tanh approximation are one function."""


def number_with_evidence(
    view: CheckpointView,
    fact: str,
    keys: Sequence[str],
    default: float,
    *,
    low: float,
    high: float,
    config: CheckpointConfig | None = None,
) -> float:
    """A number of config.json (or of ``config``, a part of it) or its default, recorded as a fact."""
    config = config or view.config
    value = config.number(*keys, default=default, low=low, high=high)
    used = view.facts.add(fact, value, *_origin(config, keys))
    return override_checked(fact, used, low=low, high=high)


def integer_with_evidence(
    view: CheckpointView, fact: str, keys: Sequence[str], default: int, *, low: int = 1, high: int = MAX_SIZE
) -> int:
    value = view.config.integer(*keys, default=default, low=low, high=high)
    used = view.facts.add(fact, value, *_origin(view.config, keys))
    return int(override_checked(fact, used, low=low, high=high, whole=True))


def override_checked(fact: str, value: object, *, low: float, high: float, whole: bool = False) -> float:
    """Check the number of a fact; an operator's override may have any type and size.

    Raises:
        CorruptCheckpoint: Not a number (``whole``: an integer) from ``low`` to ``high``.
    """
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not low <= value <= high:
        expected = "a whole number" if whole else "a number"
        raise CorruptCheckpoint(
            f"{fact} is set to {str(value)[:60]!r}; it must be {expected} from {low:g} to {high:g}.", param=fact
        )
    return value


def check_size(view: CheckpointView, found: int, evidence: str, *keys: str) -> None:
    """Compare a size that shapes gave with config.json's, if it is stated.

    Args:
        evidence: Where ``found`` comes from.
        keys: Spellings of the size in config.json.

    Raises:
        TensorShapeMismatch: The two differ: the files are of two models, or one of them is damaged.
    """
    stated = view.config.optional_integer(*keys, low=0)
    if stated not in (None, found):
        key = next(key for key in keys if key in view.config)
        raise TensorShapeMismatch(
            f"config.json says {key} {stated}, but the tensors have {found} ({evidence}); correct config.json.",
            param=key,
        )


def _origin(config: CheckpointConfig, keys: Sequence[str]) -> tuple[str, Confidence]:
    """Evidence and confidence of a value under one of the keys, or of the default in its place."""
    if config.get(*keys) is None:
        return f"{keys[0]} is not in config.json; default", Confidence.LOW
    return "config.json", Confidence.CERTAIN


def rms_norm(view: CheckpointView, *keys: str, default: float = 1e-6, offset: float = 0.0) -> NormSpec:
    eps = number_with_evidence(view, "norm.eps", keys or ("rms_norm_eps",), default, low=0.0, high=1.0)
    return NormSpec("rms", eps, offset)


def layer_norm(
    view: CheckpointView, *keys: str, default: float = 1e-5, offset: float = 0.0, has_bias: bool = True
) -> NormSpec:
    eps = number_with_evidence(view, "norm.eps", keys or ("layer_norm_eps",), default, low=0.0, high=1.0)
    return NormSpec("layer", eps, offset, has_bias=has_bias)


def activation(view: CheckpointView, key: str = "hidden_act", *, default: str = "silu") -> str:
    """Activation of the MLP, by its name in a spec.

    Raises:
        UnsupportedArchitecture: A name that isn't known.
    """
    name = view.config.string(key, default=default)
    if name not in ACTIVATION_NAMES:
        raise UnsupportedArchitecture(
            f"config.json: {key} {name[:60]!r} is not a supported activation; supported are "
            f"{', '.join(sorted(ACTIVATION_NAMES))}.",
            param=key,
        )
    return str(view.facts.add("activation", ACTIVATION_NAMES[name], *_origin(view.config, (key,))))
