"""GBNF, llama.cpp's notation of grammars, read into a tree.

The notation: https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md and parse_rule … parse_sequence of
https://github.com/ggml-org/llama.cpp/blob/master/src/llama-grammar.cpp.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MAX_DEPTH = 64
"""Of groups in groups."""
MAX_REPEATS = 2000
"""llama.cpp's own bound."""
_SIGNS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]"}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}

Ranges = tuple[tuple[int, int], ...]
"""Code points, both ends included, in order, apart from each other."""
ANY: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))


class GBNFError(ValueError):
    """The grammar is wrong; the message says where."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of ``ranges``."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Sequence:
    """One item behind the other; without items: the empty text."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the items."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """An item ``low`` to ``high`` times; None: without an end."""

    item: Node
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Rule:
    """Whatever the rule of that name is."""

    name: str


Node = Chars | Sequence | Choice | Repeat | Rule


def parse_gbnf(text: str) -> dict[str, Node]:
    """The rules by name; ``root`` is one of them.

    Raises:
        GBNFError: It isn't GBNF, a rule is missing, or it names tokens (``<think>``), which is not supported.
    """
    parser = _Parser(text)
    rules = parser.rules()
    if "root" not in rules:
        raise GBNFError("there is no rule named root")
    for name, line in parser.used.items():
        if name not in rules:
            raise GBNFError(f"line {line}: there is no rule named {name[:80]!r}")
    return rules


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The same characters as ``Ranges``."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return tuple(found)


def _complement(ranges: Ranges) -> Ranges:
    found, at = [], 0
    for low, high in (*merged((*ranges, (0xD800, 0xDFFF))), (0x110000, 0x110000)):
        if low > at:
            found.append((at, low - 1))
        at = high + 1
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Character:
    code: int
    is_escaped: bool


class _Parser:
    """Reads from left to right.

    Attributes:
        used: Names that rules refer to, and the line where each comes first.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self.used: dict[str, int] = {}

    def rules(self) -> dict[str, Node]:
        """Bodies by name; a later rule of the same name replaces the earlier one, as in llama.cpp."""
        found: dict[str, Node] = {}
        self._skip(newlines=True)
        while self._at < len(self._text):
            name = self._name()
            self._skip(newlines=False)
            if not self._text.startswith("::=", self._at):
                raise self._error("expected ::= behind the name of a rule")
            self._at += 3
            self._skip(newlines=True)
            found[name] = self._alternatives(is_nested=False)
            if self._peek() not in ("", "\r", "\n"):
                raise self._error("expected the end of the line")
            self._skip(newlines=True)
        return found

    # --- what a rule is made of ----------------------------------------------------------------

    def _alternatives(self, *, is_nested: bool) -> Node:
        found = [self._sequence(is_nested=is_nested)]
        while self._peek() == "|":
            self._at += 1
            self._skip(newlines=True)
            found.append(self._sequence(is_nested=is_nested))
        return found[0] if len(found) == 1 else Choice(tuple(found))

    def _sequence(self, *, is_nested: bool) -> Node:
        found: list[Node] = []
        item: Node
        while True:
            next_one = self._peek()
            if next_one == '"':
                item = self._literal()
            elif next_one == "[":
                item = self._character_class()
            elif next_one == "(":
                item = self._group()
            elif next_one == ".":
                self._at += 1
                item = Chars(ANY)
            elif next_one and _is_word(next_one):
                line = self._line()
                name = self._name()
                self.used.setdefault(name, line)
                item = Rule(name)
            elif next_one in ("<", "!"):
                raise self._error("single tokens (<…>) are not supported; write their text")
            else:
                return found[0] if len(found) == 1 else Sequence(tuple(found))
            self._skip(newlines=is_nested)
            found.append(self._repeated(item, newlines=is_nested))

    def _group(self) -> Node:
        self._at += 1
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"groups nest deeper than {MAX_DEPTH} levels")
        self._skip(newlines=True)
        inner = self._alternatives(is_nested=True)
        if self._peek() != ")":
            raise self._error("expected )")
        self._at += 1
        self._depth -= 1
        return inner

    def _repeated(self, item: Node, *, newlines: bool) -> Node:
        """The item with what stands behind it, and the space behind that."""
        sign = self._peek()
        if sign in _SIGNS:
            self._at += 1
            item = Repeat(item, *_SIGNS[sign])
        elif sign == "{":
            item = Repeat(item, *self._counts())
        else:
            return item
        self._skip(newlines=newlines)
        if self._peek() in ("{", *_SIGNS):
            raise self._error("an item is repeated twice; put it into a group")
        return item

    def _counts(self) -> tuple[int, int | None]:
        self._at += 1
        self._skip(newlines=True)
        low = self._integer()
        self._skip(newlines=True)
        high: int | None = low
        if self._peek() == ",":
            self._at += 1
            self._skip(newlines=True)
            high = self._integer() if self._peek().isascii() and self._peek().isdigit() else None
            self._skip(newlines=True)
        if self._peek() != "}":
            raise self._error("expected }")
        self._at += 1
        if high is not None and high < low:
            raise self._error(f"{{{low},{high}}} counts backwards")
        return low, high

    # --- characters ----------------------------------------------------------------------------

    def _literal(self) -> Node:
        self._at += 1
        found: list[Node] = []
        while (character := self._character()) != _Character(ord('"'), False):
            found.append(Chars(((character.code, character.code),)))
        return found[0] if len(found) == 1 else Sequence(tuple(found))

    def _character_class(self) -> Node:
        self._at += 1
        is_negated = self._peek() == "^"
        self._at += is_negated
        found: list[tuple[int, int]] = []
        while (character := self._character()) != _Character(ord("]"), False):
            low = high = character.code
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("", "]"):
                self._at += 1
                high = self._character().code
                if high < low:
                    raise self._error(f"the range {chr(low)!r} to {chr(high)!r} goes backwards")
            found.append((low, high))
        ranges = merged(found)
        if is_negated:
            ranges = _complement(ranges)
        if not found or not ranges:
            raise self._error("a character class is empty")
        return Chars(ranges)

    def _character(self) -> _Character:
        sign = self._peek()
        if not sign:
            raise self._error("a string or a character class does not end")
        self._at += 1
        if sign != "\\":
            return _Character(self._checked(ord(sign)), False)
        escape = self._peek()
        self._at += 1
        if escape and escape in _ESCAPES:
            return _Character(ord(_ESCAPES[escape]), True)
        width = _HEX_DIGITS.get(escape)
        if width is None:
            raise self._error(f"unknown escape \\{escape}")
        digits = self._text[self._at : self._at + width]
        if len(digits) != width or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
            raise self._error(f"\\{escape} needs {width} hexadecimal digits")
        self._at += width
        return _Character(self._checked(int(digits, 16)), True)

    def _checked(self, code: int) -> int:
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise self._error(f"U+{code:04X} is no character")
        return code

    # --- signs ---------------------------------------------------------------------------------

    def _name(self) -> str:
        start = self._at
        while self._peek() and _is_word(self._peek()):
            self._at += 1
        if self._at == start:
            raise self._error("expected the name of a rule")
        return self._text[start : self._at]

    def _integer(self) -> int:
        start = self._at
        while self._peek().isascii() and self._peek().isdigit():
            self._at += 1
        digits = self._text[start : self._at]
        if not digits:
            raise self._error("expected a number")
        if len(digits) > 6 or int(digits) > MAX_REPEATS:
            raise self._error(f"an item may be repeated at most {MAX_REPEATS:,} times")
        return int(digits)

    def _skip(self, *, newlines: bool) -> None:
        """Spaces and comments; line ends only where they mean nothing."""
        while sign := self._peek():
            if sign == "#":
                while self._peek() not in ("", "\r", "\n"):
                    self._at += 1
            elif sign in " \t" or (newlines and sign in "\r\n"):
                self._at += 1
            else:
                return

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _line(self) -> int:
        return self._text.count("\n", 0, self._at) + 1

    def _error(self, message: str) -> GBNFError:
        return GBNFError(f"line {self._line()}: {message}, near {self._text[self._at : self._at + 20]!r}")


def _is_word(sign: str) -> bool:
    return sign.isascii() and (sign.isalnum() or sign in "-_")
