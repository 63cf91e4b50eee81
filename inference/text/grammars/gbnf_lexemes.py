"""From GBNF's tree to Lark with the same meaning.

GBNF is a grammar over characters. Lark's rules are over lexemes (regular expressions), of which llguidance always takes
as much text as they can
(https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md#terminals-vs-rules): with a lexeme ``[a-z]+``,
nothing matches ``[a-z]+ "end"``. Long lexemes are what makes it fast, though. So the largest regular parts become
lexemes first, and those are taken apart, in the end down to single characters, where taking as much as they can could
go wrong: where a character that may follow a complete lexeme could also continue it, or another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from inference.text.grammars.gbnf import (
    Chars,
    Choice,
    GBNFError,
    Node,
    Ranges,
    Repeat,
    Rule,
    Sequence,
    merged,
    parse_gbnf,
)

MAX_POSITIONS = 300
"""Characters of one lexeme, repetitions written out. Larger parts stay rules."""
MAX_LEXEMES = 300


def gbnf_to_lark(text: str) -> str:
    """A GBNF grammar in Lark.

    Raises:
        GBNFError: It isn't GBNF, or it is too large.
    """
    rules = parse_gbnf(text)
    split: set[Node] = set()
    try:
        while True:
            grammar = _Lexemes(rules, split)
            conflict = grammar.conflict()
            if conflict is None:
                return grammar.lark()
            split.add(conflict)
    except RecursionError:
        raise GBNFError("its rules go too deep; write a simpler one") from None


# --- lexemes as automata ---------------------------------------------------------------------------


@dataclass(slots=True)
class _Automaton:
    """Positions of a regular expression (Glushkov's construction): which may come first, last and behind which.

    https://en.wikipedia.org/wiki/Glushkov%27s_construction_algorithm
    """

    chars: list[Ranges] = field(default_factory=list)
    follow: list[set[int]] = field(default_factory=list)
    first: set[int] = field(default_factory=set)
    last: set[int] = field(default_factory=set)
    is_nullable: bool = True

    def build(self, node: Node, rules: Mapping[str, Node]) -> None:
        self.first, self.last, self.is_nullable = self._add(node, rules)

    def _add(self, node: Node, rules: Mapping[str, Node]) -> tuple[set[int], set[int], bool]:
        if isinstance(node, Chars):
            self.chars.append(node.ranges)
            self.follow.append(set())
            return {len(self.chars) - 1}, {len(self.chars) - 1}, False
        if isinstance(node, Rule):
            return self._add(rules[node.name], rules)
        if isinstance(node, Choice):
            parts = [self._add(item, rules) for item in node.items]
            return (
                set().union(*(part[0] for part in parts)),
                set().union(*(part[1] for part in parts)),
                any(part[2] for part in parts),
            )
        if isinstance(node, Sequence):
            found: tuple[set[int], set[int], bool] = (set(), set(), True)
            for item in node.items:
                found = self._joined(found, self._add(item, rules))
            return found
        found = (set(), set(), True)
        for number in range(max(node.low, node.high or 0, 1) if node.high != 0 else 0):
            first, last, is_nullable = self._add(node.item, rules)
            if node.high is None:
                # Each copy may come again: as good as the last one alone, which it is where low is 0 or 1.
                for position in last:
                    self.follow[position] |= first
            found = self._joined(found, (first, last, is_nullable or number >= node.low))
        return found

    def _joined(
        self, left: tuple[set[int], set[int], bool], right: tuple[set[int], set[int], bool]
    ) -> tuple[set[int], set[int], bool]:
        for position in left[1]:
            self.follow[position] |= right[0]
        return (
            left[0] | right[0] if left[2] else left[0],
            left[1] | right[1] if right[2] else right[1],
            left[2] and right[2],
        )

    def continued(self, other: _Automaton) -> Iterator[Ranges]:
        """Characters with which ``other`` can go on behind a text that is complete here."""
        seen: set[tuple[int, int]] = set()
        waiting = [(own, its) for own in self.first for its in other.first]
        while waiting:
            own, its = pair = waiting.pop()
            if pair in seen or not _meet(self.chars[own], other.chars[its]):
                continue
            seen.add(pair)
            if own in self.last:
                for position in other.follow[its]:
                    yield other.chars[position]
            waiting += [(mine, next_one) for mine in self.follow[own] for next_one in other.follow[its]]


def _meet(left: Ranges, right: Ranges) -> bool:
    return any(low <= other_high and other_low <= high for low, high in left for other_low, other_high in right)


# --- the grammar over lexemes ----------------------------------------------------------------------


class _Lexemes:
    """A choice of lexemes: the largest regular parts, but none of ``split``."""

    def __init__(self, rules: Mapping[str, Node], split: set[Node]) -> None:
        self._rules = rules
        self._split = split
        self._sizes = _regular_sizes(rules)
        self._automata: dict[Node, _Automaton] = {}
        self._reached: dict[str, Node] = {}
        self._collect(Rule("root"))

    def lark(self) -> str:
        self._names = {node: f"T{number}" for number, node in enumerate(self._automata)}
        self._rule_names = {name: f"r{number}" for number, name in enumerate(self._reached)}
        lines = [f"start: {self._written(Rule('root'))}"]
        lines += [f"{self._rule_names[name]}: {self._written(node)}" for name, node in self._reached.items()]
        lines += [f"{name}: /{self._expression(node)}/" for node, name in self._names.items()]
        return "\n".join(lines) + "\n"

    def conflict(self) -> Node | None:
        """A lexeme to take apart; None: all can stay."""
        follow = self._follow_chars()
        for node, automaton in self._automata.items():
            behind = follow.get(node, ())
            for other, its in self._automata.items():
                if any(_meet(ranges, behind) for ranges in automaton.continued(its)):
                    return other if isinstance(node, Chars) else node
        return None

    def _is_lexeme(self, node: Node) -> bool:
        return isinstance(node, Chars) or (node not in self._split and 0 < _size(node, self._sizes) <= MAX_POSITIONS)

    def _collect(self, node: Node) -> None:
        if self._is_lexeme(node):
            if node not in self._automata:
                if len(self._automata) >= MAX_LEXEMES:
                    raise GBNFError(f"it has more than {MAX_LEXEMES} different parts; write a simpler one")
                self._automata[node] = _Automaton()
                self._automata[node].build(node, self._rules)
        elif isinstance(node, Rule):
            if node.name not in self._reached:
                self._reached[node.name] = self._rules[node.name]
                self._collect(self._rules[node.name])
        else:
            for item in _items(node):
                self._collect(item)

    # --- what may follow -----------------------------------------------------------------------

    def _follow_chars(self) -> dict[Node, Ranges]:
        """Per lexeme, the characters that may come behind it."""
        first: dict[str, tuple[Ranges, bool]] = dict.fromkeys(self._reached, ((), False))
        is_changed = True
        while is_changed:
            is_changed = False
            for name, node in self._reached.items():
                found = self._first(node, first)
                if found != first[name]:
                    first[name], is_changed = found, True
        rules: dict[str, Ranges] = dict.fromkeys(self._reached, ())
        lexemes: dict[Node, Ranges] = {}
        while True:
            before = dict(rules)
            self._expand(Rule("root"), (), first, rules, lexemes)
            for name, node in self._reached.items():
                self._expand(node, rules[name], first, rules, lexemes)
            if rules == before:
                return lexemes

    def _first(self, node: Node, rules: Mapping[str, tuple[Ranges, bool]]) -> tuple[Ranges, bool]:
        """Characters that a node can begin with, and whether it can be empty."""
        if node in self._automata:
            automaton = self._automata[node]
            return merged(pair for at in automaton.first for pair in automaton.chars[at]), automaton.is_nullable
        if isinstance(node, Rule):
            return rules[node.name]
        if isinstance(node, Choice):
            parts = [self._first(item, rules) for item in node.items]
            return merged(pair for part in parts for pair in part[0]), any(part[1] for part in parts)
        if isinstance(node, Repeat):
            ranges, is_nullable = self._first(node.item, rules)
            return (() if node.high == 0 else ranges), is_nullable or node.low == 0
        found: Ranges = ()
        for item in _items(node):
            ranges, is_nullable = self._first(item, rules)
            found = merged((*found, *ranges))
            if not is_nullable:
                return found, False
        return found, True

    def _expand(
        self,
        node: Node,
        behind: Ranges,
        first: Mapping[str, tuple[Ranges, bool]],
        rules: dict[str, Ranges],
        lexemes: dict[Node, Ranges],
    ) -> None:
        """Tell the parts of a node what may follow them."""
        if node in self._automata:
            lexemes[node] = merged((*lexemes.get(node, ()), *behind))
        elif isinstance(node, Rule):
            rules[node.name] = merged((*rules[node.name], *behind))
        elif isinstance(node, Repeat):
            again = self._first(node.item, first)[0] if node.high is None or node.high > 1 else ()
            self._expand(node.item, merged((*behind, *again)), first, rules, lexemes)
        elif isinstance(node, Choice):
            for item in node.items:
                self._expand(item, behind, first, rules, lexemes)
        else:
            for item in reversed(_items(node)):
                self._expand(item, behind, first, rules, lexemes)
                ranges, is_nullable = self._first(item, first)
                behind = merged((*ranges, *behind)) if is_nullable else ranges

    # --- as text -------------------------------------------------------------------------------

    def _written(self, node: Node) -> str:
        if node in self._names:
            return self._names[node]
        if isinstance(node, Rule):
            return self._rule_names[node.name]
        if isinstance(node, Repeat):
            return f"({self._written(node.item)}){_counts(node)}" if node.high != 0 else '""'
        if isinstance(node, Choice):
            return f"({' | '.join(self._written(item) for item in node.items)})"
        return " ".join(self._written(item) for item in _items(node)) or '""'

    def _expression(self, node: Node) -> str:
        if isinstance(node, Chars):
            return "[" + "".join(f"\\u{{{low:x}}}-\\u{{{high:x}}}" for low, high in node.ranges) + "]"
        if isinstance(node, Rule):
            return self._expression(self._rules[node.name])
        if isinstance(node, Repeat):
            return f"(?:{self._expression(node.item)}){_counts(node)}" if node.high != 0 else ""
        if isinstance(node, Choice):
            return f"(?:{'|'.join(self._expression(item) for item in node.items)})"
        return "".join(self._expression(item) for item in _items(node))


def _counts(node: Repeat) -> str:
    sign = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((node.low, node.high))
    if sign is not None:
        return sign
    return f"{{{node.low},{'' if node.high is None else node.high}}}"


def _items(node: Node) -> tuple[Node, ...]:
    if isinstance(node, Sequence | Choice):
        return node.items
    return (node.item,) if isinstance(node, Repeat) else ()


def _regular_sizes(rules: Mapping[str, Node]) -> dict[str, int]:
    """Characters of each rule that is a regular expression, those that it refers to written out."""
    sizes: dict[str, int] = {}
    while True:
        found = {
            name: size
            for name, node in rules.items()
            if name not in sizes and 0 < (size := _size(node, sizes)) <= MAX_POSITIONS
        }
        if not found:
            return sizes
        sizes |= found


def _size(node: Node, sizes: Mapping[str, int]) -> int:
    """Characters of a regular node; 0: it isn't one, or it is always empty."""
    if isinstance(node, Chars):
        return 1
    if isinstance(node, Rule):
        return sizes.get(node.name, 0)
    parts = [_size(item, sizes) for item in _items(node)]
    if isinstance(node, Repeat):
        return parts[0] * max(node.low, node.high or 0, 1) if node.high != 0 else 0
    empty = [item for item, size in zip(_items(node), parts, strict=True) if size == 0]
    return 0 if any(item != Sequence(()) for item in empty) else sum(parts)
