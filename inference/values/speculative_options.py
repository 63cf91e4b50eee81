"""SpeculativeOptions: how tokens are drafted for a model, checked in one place. Standard library only.

The options are a JSON object in a model's settings, and a line in ``--speculative``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, cast

from inference.errors import InvalidRequest

METHODS = ("ngram", "draft", "mtp")
DEFAULT_NUM_TOKENS = {"ngram": 8, "draft": 4, "mtp": 2}
_NUMBERS = {"k": "num_tokens", "max_num_seqs": "max_num_seqs", "min_match": "min_match"}
_FORMER_NAMES = {"max_requests": "max_num_seqs"}
"""Former names of options, which are still read; stored settings of models may have them."""
_FORMS = 'it must be "ngram", "mtp" or "draft:MODEL", followed by ",k=NUMBER" if wanted'


@dataclass(frozen=True, slots=True)
class SpeculativeOptions:
    """How to draft the next tokens, which the model then verifies several at a time. The text doesn't change.

    Attributes:
        method: ``ngram`` drafts the tokens that followed an earlier occurrence of the text's last tokens; ``draft``
            drafts with a smaller model; ``mtp`` with the model's own head for multi-token prediction.
        draft_model: Served name of the smaller model, which needs the same vocabulary.
        num_tokens: Maximum draft tokens of a request in a step, 1 to 64; 0: see
            ``DEFAULT_NUM_TOKENS``.
        max_num_seqs: Maximum requests that draft in a step, 1 to 256; with recurrent layers each takes the memory of
            one more state.
        min_match: Tokens that must agree for ``ngram`` to draft, 1 to 8.
        is_adaptive: Measure the speedup, and draft less or not at all without one.
    """

    method: Literal["ngram", "draft", "mtp"]
    draft_model: str = ""
    num_tokens: int = 0
    max_num_seqs: int = 8
    min_match: int = 2
    is_adaptive: bool = True

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InvalidRequest(
                f"speculative method is {str(self.method)[:60]!r}; it must be one of {', '.join(METHODS)}.",
                param="speculative",
            )
        if not isinstance(self.draft_model, str) or bool(self.draft_model) != (self.method == "draft"):
            problem = "needs draft_model" if self.method == "draft" else "takes no draft_model"
            raise InvalidRequest(f"speculative method {self.method} {problem}, a served name.", param="speculative")
        for name, low, high in (("num_tokens", 0, 64), ("max_num_seqs", 1, 256), ("min_match", 1, 8)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise InvalidRequest(
                    f"speculative {name} is {str(value)[:60]}; it must be an integer from {low} to {high}.",
                    param="speculative",
                )
        if not isinstance(self.is_adaptive, bool):
            raise InvalidRequest("speculative is_adaptive must be true or false.", param="speculative")

    @property
    def max_draft_tokens(self) -> int:
        """``num_tokens``, or the method's default."""
        return self.num_tokens or DEFAULT_NUM_TOKENS[self.method]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object: the options that differ from their default."""
        defaults = {item.name: item.default for item in fields(self)}
        return {name: value for name, value in asdict(self).items() if value != defaults[name]}

    @classmethod
    def from_dict(cls, payload: Any) -> SpeculativeOptions:
        """Read a JSON object.

        Raises:
            InvalidRequest: ``payload`` isn't an object, or an option is unknown or out of range.
        """
        if not isinstance(payload, Mapping) or "method" not in payload:
            raise InvalidRequest(
                'speculative must be an object with a method, such as {"method": "ngram"}.', param="speculative"
            )
        known = [item.name for item in fields(cls)]
        payload = {_FORMER_NAMES.get(name, name): value for name, value in payload.items()}
        for name in payload:
            if name not in known:
                raise InvalidRequest(
                    f"{str(name)[:60]!r} is not an option of speculative; the options are {', '.join(known)}.",
                    param="speculative",
                )
        return cls(**cast("dict[str, Any]", payload))

    def to_line(self) -> str:
        """Return the line that ``parse`` reads."""
        line = f"draft:{self.draft_model}" if self.method == "draft" else self.method
        given = self.to_dict()
        line += "".join(f",{name}={given[member]}" for name, member in _NUMBERS.items() if member in given)
        return line if self.is_adaptive else f"{line},adaptive=off"

    @classmethod
    def parse(cls, text: str) -> SpeculativeOptions:
        """Read a line: ``ngram``, ``mtp`` or ``draft:MODEL``, then options such as ``,k=6``.

        The options are k (``num_tokens``), max_num_seqs, min_match and adaptive (``on`` or ``off``).

        Raises:
            InvalidRequest: The line has another form.
        """
        head, *rest = text.split(",")
        method, colon, model = head.partition(":")
        values: dict[str, Any] = {"method": method.strip()}
        if colon:
            values["draft_model"] = model.strip()
        for part in rest:
            name, _, value = (word.strip() for word in part.partition("="))
            name = _FORMER_NAMES.get(name, name)
            if name == "adaptive" and value in ("on", "off"):
                values["is_adaptive"] = value == "on"
            elif name in _NUMBERS and value.isdecimal() and len(value) < 6 and int(value) > 0:
                values[_NUMBERS[name]] = int(value)
            else:
                raise InvalidRequest(f"speculative has {part.strip()[:60]!r}; {_FORMS}.", param="speculative")
        if values["method"] not in METHODS:
            raise InvalidRequest(f"speculative is {text[:60]!r}; {_FORMS}.", param="speculative")
        return cls(**values)
