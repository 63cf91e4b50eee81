"""Check every key of config.json against its family's table: used, harmless, or refused by name.

A key that nothing reads may change the arithmetic: the text would be fluent and wrong. So a key has to be in the
table of its ``model_type`` (``CONFIG_KEYS`` of the family), and an operator can leave others out by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from inference.errors import CorruptCheckpoint, InvalidRequest, TensorShapeMismatch, UnsupportedArchitecture
from inference.modelling.families.checks import OTHER_PARTS
from inference.modelling.families.config import CheckpointConfig, CheckpointView

IGNORED_KEYS = "config.ignored_keys"
"""The fact by which an operator leaves keys out: their names, separated by commas."""
_MAX_SHOWN = 8
_CONFIGS = ("", "text_config.", "llm_config.", "thinker_config.", "thinker_config.text_config.")
"""Where a class may have left names of its own, which start with an underscore."""
_GROUPED = ("rope_parameters", "rope_scaling", "per_layer_config")
"""Keys under which transformers 5 may write one object for each layer type, or for each layer."""
_OTHER_FORMS = ("rope_parameters", "rope_scaling", "quantization_config", "compression_config", "embd_layer")
"""Keys that published files give as strings or lists, too; the code that reads them refuses what it can't read."""


@dataclass(frozen=True, slots=True)
class Used:
    """The family reads the value, or compares it with the tensors."""


@dataclass(frozen=True, slots=True)
class Alias(Used):
    """Another name of a setting that the family reads; both names may be there, but with one value.

    Attributes:
        of: The other names, in the same object; with dots those of members of an object in it.
    """

    of: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Harmless:
    """Any value is fine; the reason says why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Only:
    """Only these values are served; a list may hold nothing else, and null always means "not given"."""

    values: tuple[Any, ...]
    reason: str

    def allows(self, value: Any) -> bool:
        """Whether the value, or each member of a list, is one of those that are served."""
        if value in self.values:
            return True
        return isinstance(value, list) and bool(value) and all(item in self.values for item in value)


@dataclass(frozen=True, slots=True)
class Biases:
    """True or false, and the tensors agree: biases are there exactly if the value says so.

    Attributes:
        owners: Pattern of the layers' names, without ``.bias``; a model without such layers agrees with any value.
    """

    owners: str


@dataclass(frozen=True, slots=True)
class Members:
    """An object, each member of which has a rule of its own.

    Attributes:
        of_type: Gives the rules by the ``model_type`` that the object states; None: they are ``rules`` for all.
    """

    rules: Mapping[str, Rule]
    of_type: Callable[[str], Mapping[str, Rule]] | None = None

    def rules_of(self, value: Mapping[str, Any]) -> Mapping[str, Rule]:
        """The rules of the members of ``value``."""
        stated = value.get("model_type")
        return self.rules if self.of_type is None or not isinstance(stated, str) else self.of_type(stated)


Rule = Used | Harmless | Only | Biases | Members
USED = Used()


def check_config_keys(view: CheckpointView, model_type: str, rules: Mapping[str, Rule]) -> None:
    """Refuse keys of config.json that aren't in the table, or have a value that isn't served.

    Raises:
        UnsupportedArchitecture: A key isn't known, or its value isn't served.
        TensorShapeMismatch: A flag contradicts the biases that are there.
        CorruptCheckpoint: A key has no object, but its members are read; or two names of one setting have two values.
        InvalidRequest: A key that the operator leaves out isn't one that would be refused.
    """
    ignored = {name for name in re.split(r"[,\s]+", str(view.facts.overrides.get(IGNORED_KEYS) or "")) if name}
    unknown: list[str] = []
    left_out: set[str] = set()
    for name, contradiction in _contradictions(view.config.values, rules):
        if name not in ignored:
            raise contradiction
        left_out.add(name)
    for name, value, rule in _entries(view.config.values, rules):
        refused = _refusal(view, model_type, name, value, rule)
        if rule is not None and refused is None:
            continue
        if name in ignored:
            left_out.add(name)
        elif refused is not None:
            raise refused
        else:
            unknown.append(name)
    if left_out != ignored:
        raise InvalidRequest(
            f"{IGNORED_KEYS} names {', '.join(sorted(ignored - left_out))[:200]}, which would not be refused; remove "
            "those names.",
            param=IGNORED_KEYS,
        )
    if unknown:
        raise _unknown(model_type, unknown)
    if left_out:
        view.facts.add(IGNORED_KEYS, ",".join(sorted(left_out)), "")
        view.facts.warn(f"config.json: {', '.join(sorted(left_out))} are left out by the operator.")


def _entries(
    values: Mapping[str, Any], rules: Mapping[str, Rule], prefix: str = ""
) -> Iterator[tuple[str, Any, Rule | None]]:
    """Name, value and rule of each key that says something; members of objects under dotted names."""
    for key, value in values.items():
        # Names with an underscore are the writing class's own; null means "not given".
        if value is None or (key.startswith("_") and prefix in _CONFIGS):
            continue
        rule = rules.get(key)
        if isinstance(rule, Members) and isinstance(value, Mapping):
            for group in _groups(key, value):
                yield from _entries(group, rule.rules_of(group), f"{prefix}{key}.")
        else:
            yield prefix + key, value, rule


def _groups(key: str, value: Mapping[str, Any]) -> Collection[Mapping[str, Any]]:
    """The objects to check: the value itself, or those in it where there is one for each layer type or layer."""
    is_grouped = key in _GROUPED and value and all(isinstance(part, Mapping) for part in value.values())
    return value.values() if is_grouped else (value,)


def _contradictions(
    values: Mapping[str, Any], rules: Mapping[str, Rule], prefix: str = ""
) -> Iterator[tuple[str, CorruptCheckpoint]]:
    """Further names of settings whose values are others than those of the first names; null means "not given"."""
    config = CheckpointConfig(values)
    for key in values:
        rule, value = rules.get(key), config.get(key)
        if isinstance(rule, Members) and isinstance(value, Mapping):
            for group in _groups(key, value):
                yield from _contradictions(group, rule.rules_of(group), f"{prefix}{key}.")
        elif isinstance(rule, Alias) and value is not None:
            for other in rule.of:
                if config.get(other, default=value) != value:
                    yield (
                        prefix + key,
                        CorruptCheckpoint(
                            f"config.json: {prefix}{key} is {str(value)[:60]!r}, but {prefix}{other} is "
                            f"{str(config.get(other))[:60]!r}; they are two names of one setting. Remove the one that "
                            "the model wasn't trained with.",
                            param=prefix + key,
                        ),
                    )


def _refusal(
    view: CheckpointView, model_type: str, name: str, value: Any, rule: Rule | None
) -> UnsupportedArchitecture | TensorShapeMismatch | CorruptCheckpoint | None:
    """The error that a known key's value is; None: it is fine."""
    if isinstance(rule, Only) and not rule.allows(value):
        allowed = " or ".join(str(item).lower() if isinstance(item, bool) else repr(item) for item in rule.values)
        return UnsupportedArchitecture(
            f"config.json: {name} is {str(value)[:60]!r}; {model_type} is served only with {allowed or 'null'}: "
            f"{rule.reason}. {_remedy([name])}",
            param=name,
        )
    if isinstance(rule, Biases) and isinstance(value, bool):
        found = _has_biases(view.tensors, rule.owners)
        if found not in (None, value):
            return TensorShapeMismatch(
                f"config.json says {name} {str(value).lower()}, but the tensors have {'such' if found else 'no such'} "
                f"biases ({rule.owners}.bias). {_remedy([name])}",
                param=name,
            )
    # The readers look for members, find none in another value, and would go on with the defaults.
    if isinstance(rule, Members) and name.rpartition(".")[2] not in _OTHER_FORMS:
        members = ", ".join(sorted(rule.rules)[:_MAX_SHOWN]) + (", …" if len(rule.rules) > _MAX_SHOWN else "")
        return CorruptCheckpoint(
            f"config.json: {name} is {str(value)[:60]!r}; it must be an object (of {members}), or be left out.",
            param=name,
        )
    return None


def _has_biases(names: Collection[str], owners: str) -> bool | None:
    """Whether the layers that ``owners`` names have biases; None: there are no such layers."""
    pattern = re.compile(rf"(?:{owners})$")

    def occurs(leaf: str) -> bool:
        return any(
            name.endswith(leaf)
            and pattern.search(name, 0, len(name) - len(leaf))
            and not OTHER_PARTS.names.search(name)
            for name in names
        )

    if occurs(".bias"):
        return True
    return False if occurs(".weight") else None


def _unknown(model_type: str, names: list[str]) -> UnsupportedArchitecture:
    shown = ", ".join(name[:60] for name in names[:_MAX_SHOWN]) + (", …" if len(names) > _MAX_SHOWN else "")
    return UnsupportedArchitecture(
        f"config.json has {len(names)} keys that {model_type} isn't known to have, which may change what it computes: "
        f"{shown}. {_remedy(names[:_MAX_SHOWN])}",
        param=names[0][:100],
    )


def _remedy(names: list[str]) -> str:
    """How to leave keys out; a person has to know that they don't matter."""
    return (
        "If the model computes the same without, leave it out: "
        f"--override {IGNORED_KEYS}={','.join(name[:60] for name in names)}, or the same under overrides in [[models]]."
    )
