"""Grammar: the form that a whole output must have. Plain values; standard library only.

``inference.text.grammars`` compiles one and follows it token by token.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from inference.errors import InvalidSamplingParams, shown

GrammarKind = Literal["json_schema", "json_object", "regex", "lark", "gbnf", "choice"]
_NAMES = {"regex": "regular expression", "lark": "Lark grammar", "gbnf": "GBNF grammar"}

MAX_DEPTH = 100
"""Of a schema's lists and objects; JSON text of a request may nest deeper than Python's stack."""
MAX_CHOICES = 10_000
MAX_BYTES = 256 << 10
"""Of a grammar's text, UTF-8."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """One grammar as a client gave it.

    Attributes:
        value: ``json_schema``: the schema (object or boolean); ``json_object``: None; ``regex``: an expression that
            the whole output matches, ``lark``: a Lark grammar with the rule ``start``, both in the form that
            https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md describes; ``gbnf``: a
            grammar in llama.cpp's notation; ``choice``: the possible outputs, a tuple of strings.
        param: The request's field that it came in, for errors.
    """

    kind: GrammarKind
    value: Any = None
    param: str = field(default="grammar", compare=False)

    def __post_init__(self) -> None:
        if self.kind not in get_args(GrammarKind):
            raise InvalidSamplingParams(
                f"{self.param} has the kind {str(self.kind)[:40]!r}; known are {', '.join(get_args(GrammarKind))}.",
                param=self.param,
            )
        problem = self._problem()
        if problem is not None:
            raise InvalidSamplingParams(f"{self.param}: {problem}", param=self.param)

    def _problem(self) -> str | None:
        value = self.value
        if self.kind == "json_object":
            return None if value is None else "json_object takes no value."
        if self.kind == "json_schema":
            if not isinstance(value, dict | bool):
                return f"a JSON schema must be an object or a boolean, got {shown(value)}."
            if value is False:
                return "the schema false matches no text."
            return f"the schema nests deeper than {MAX_DEPTH} levels." if _is_deeper(value, MAX_DEPTH) else None
        if self.kind == "choice":
            if not isinstance(value, tuple) or not value or not all(isinstance(item, str) for item in value):
                return "choices must be a list with at least one string."
            if len(value) > MAX_CHOICES:
                return f"there are {len(value):,} choices, at most {MAX_CHOICES:,} are allowed."
            return None if all(value) else "an empty string can't be a choice."
        if not isinstance(value, str) or not value:
            return f"a {_NAMES[self.kind]} must be a non-empty string."
        return None

    @property
    def text(self) -> str:
        """The value as one text: what its size is measured by."""
        return self.value if isinstance(self.value, str) else json.dumps(self.value, ensure_ascii=False)

    @property
    def digest(self) -> bytes:
        """Equal for equal grammars only."""
        return hashlib.sha256(f"{self.kind}\0{self.text}".encode("utf-8", "surrogatepass")).digest()

    def to_dict(self) -> dict[str, Any]:
        value = list(self.value) if isinstance(self.value, tuple) else self.value
        return {"kind": self.kind, "value": value, "param": self.param}

    @classmethod
    def from_dict(cls, payload: object) -> Grammar:
        """Read ``to_dict``'s form.

        Raises:
            InvalidSamplingParams: It isn't one.
        """
        if isinstance(payload, cls):
            return payload
        if (
            not isinstance(payload, Mapping)
            or not payload.keys() <= {"kind", "value", "param"}
            or "kind" not in payload
        ):
            raise InvalidSamplingParams("grammar must be an object with the members kind and value.", param="grammar")
        value = payload.get("value")
        if payload["kind"] == "choice" and isinstance(value, Sequence) and not isinstance(value, str):
            value = tuple(value)
        return cls(payload["kind"], value, str(payload.get("param", "grammar")))


def check_size(num_bytes: int, param: str, *, most: int = MAX_BYTES) -> None:
    """Refuse a grammar, or the text of one, that has more than ``most`` bytes.

    Raises:
        InvalidSamplingParams: It has more.
    """
    if num_bytes > most:
        raise InvalidSamplingParams(
            f"{param} has {num_bytes:,} bytes, at most {most:,} are compiled; shorten it.", param=param
        )


def _is_deeper(value: object, most: int) -> bool:
    level: list[object] = [value]
    for _ in range(most):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return True
