"""Define the facts that a person can override, their meanings and their legal values.

A family notes what it found under these names (``Facts.add``), and uses the override in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from inference.errors import InvalidRequest
from inference.modelling.families.config import MAX_SIZE
from inference.modelling.families.config_keys import IGNORED_KEYS
from inference.modelling.families.registry import FAMILIES
from inference.modelling.specs.parts import ACTIVATIONS
from inference.values.tokenizer_spec import MAX_TEMPLATE_CHARS, VOCABULARIES

MAX_SHORT_CHARS = 1024
"""Of a string that fits into a line."""


@dataclass(frozen=True, slots=True)
class FactRule:
    """A fact that can be set by hand.

    Attributes:
        meaning: For people, one line.
        low, high: Closed range of a number.
        choices: All legal strings; empty: any of at most ``max_chars``.
        nullable: Whether null is a value ("none of it").
        used_by: Which checkpoints look at it.
    """

    meaning: str
    kind: Literal["integer", "number", "string", "boolean"]
    low: float = 1
    high: float = MAX_SIZE
    choices: tuple[str, ...] = ()
    nullable: bool = False
    used_by: str = "all"
    max_chars: int = MAX_SHORT_CHARS


CHAT_TEMPLATE = "chat_template"
TOKENIZER_FROM = "tokenizer_from"

FACTS: Mapping[str, FactRule] = {
    "model_type": FactRule("which family reads the tensors", "string", choices=tuple(sorted(FAMILIES))),
    "vocabulary": FactRule(
        f"tokenizer: {', '.join(VOCABULARIES)}, 'files' (the directory's own), 'none' (token ids only), or the path "
        "of a tokenizer.json, .tiktoken, tekken.json, tokenizer.model or .gguf file",
        "string",
    ),
    TOKENIZER_FROM: FactRule(
        "another registered model, by its name, whose tokenizer files are used in place of this one's", "string"
    ),
    CHAT_TEMPLATE: FactRule(
        "chat template: Jinja source that writes messages as a prompt", "string", max_chars=MAX_TEMPLATE_CHARS
    ),
    "max_position_embeddings": FactRule("longest context in tokens", "integer", high=1 << 30),
    "rope.theta": FactRule("base of the rotary embedding", "number", low=1.001, high=1e15),
    "norm.eps": FactRule("eps of the block norms and the final norm", "number", low=0.0, high=1.0),
    "activation": FactRule("activation of the MLPs", "string", choices=ACTIVATIONS, used_by="huggingface"),
    "attention.num_heads": FactRule("query heads of an attention layer", "integer", high=1 << 16),
    "attention.head_dim": FactRule("width of an attention head", "integer", high=1 << 16),
    "moe.top_k": FactRule("routed experts used for each token", "integer", high=1 << 16),
    "mamba2.num_groups": FactRule(
        "groups G of B and C in the Mamba-2 layers", "integer", high=1 << 16, used_by="oxidizr"
    ),
    "a_override": FactRule(
        "replace the stored A_log by A = -(1, 2, …, H): for checkpoints whose trainer did not store what it used",
        "string",
        choices=("-(1..H)",),
        nullable=True,
        used_by="oxidizr",
    ),
    IGNORED_KEYS: FactRule(
        "keys of config.json, separated by commas, that would be refused and don't change the arithmetic", "string"
    ),
    "tie_word_embeddings": FactRule("the output head is the embedding", "boolean", used_by="huggingface"),
}
"""Fact names to rules. The names are those that families use in ``Facts.add``."""

ALIASES: Mapping[str, str] = {
    "vocab": "vocabulary",
    "tokenizer_vocab": "vocabulary",
    "rope_theta": "rope.theta",
    "rms_norm_eps": "norm.eps",
    "eps": "norm.eps",
    "num_heads": "attention.num_heads",
    "num_attention_heads": "attention.num_heads",
    "head_dim": "attention.head_dim",
    "experts_per_tok": "moe.top_k",
    "num_experts_per_tok": "moe.top_k",
    "top_k": "moe.top_k",
    "max_seq_len": "max_position_embeddings",
}
"""Names that people know from config files."""


def canonical_name(fact: str) -> str:
    """The name under which a fact is kept; a name that isn't known stays as it is."""
    return ALIASES.get(fact, fact)


def facts_to_set(format_: str | None = None) -> list[dict[str, Any]]:
    """Return the facts that a person may set, for forms.

    Args:
        format_: Leave out facts that only other formats use; None: all.
    """
    return [
        {
            "name": name,
            "meaning": rule.meaning,
            "kind": rule.kind,
            "low": rule.low if rule.kind in ("integer", "number") else None,
            "high": rule.high if rule.kind in ("integer", "number") else None,
            "choices": list(rule.choices),
            "nullable": rule.nullable,
            "is_long": rule.max_chars > MAX_SHORT_CHARS,
        }
        for name, rule in FACTS.items()
        if format_ is None or rule.used_by in ("all", format_)
    ]


def check_overrides(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides under their canonical names, each of a legal value.

    Raises:
        InvalidRequest: An unknown name, two spellings of one fact, or a value outside the rule.
    """
    checked: dict[str, Any] = {}
    for given, value in overrides.items():
        name = canonical_name(given)
        rule = FACTS.get(name)
        if rule is None:
            raise InvalidRequest(
                f"{given[:60]!r} is not a fact that can be set; known are {', '.join(FACTS)}.", param=given[:60]
            )
        if name in checked:
            raise InvalidRequest(f"{name} is set twice, once as {given}.", param=name)
        checked[name] = _checked(name, rule, value)
    return checked


def _checked(name: str, rule: FactRule, value: Any) -> Any:
    if value is None and rule.nullable:
        return None
    if rule.kind == "boolean":
        if isinstance(value, bool):
            return value
        raise _illegal(name, value, "true or false")
    if rule.kind == "string":
        if isinstance(value, str) and len(value) > rule.max_chars:
            raise InvalidRequest(f"{name} has {len(value)} characters; the limit is {rule.max_chars}.", param=name)
        if isinstance(value, str) and value and (not rule.choices or value in rule.choices):
            return value
        raise _illegal(name, value, "one of " + ", ".join(rule.choices) if rule.choices else rule.meaning)
    whole = rule.kind == "integer"
    expected = f"{'a whole number' if whole else 'a number'} from {rule.low:g} to {rule.high:g}"
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise _illegal(name, value, expected)
    if not rule.low <= value <= rule.high:  # also refuses NaN
        raise _illegal(name, value, expected)
    return value if whole else float(value)


def _illegal(name: str, value: Any, expected: str) -> InvalidRequest:
    return InvalidRequest(f"{name} can't be {str(value)[:60]!r}; it must be {expected}.", param=name)
