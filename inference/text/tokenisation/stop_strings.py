"""StopStrings: find any of several strings in text that arrives in pieces.

An Aho-Corasick automaton (Aho and Corasick 1975, https://doi.org/10.1145/360825.360855): one step per character
however many strings there are, and the depth of its state is the length of the longest end of the text
that may be the beginning of a stop string, which is what has to be held back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class StopStrings:
    """The automaton of a request's stop strings; immutable, so that choices can share it.

    A state is an integer; 0 is the state before any text.
    """

    def __init__(self, strings: Iterable[str]) -> None:
        self.strings = tuple(strings)
        self._edges: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._match = [0]  # length of the longest stop string that ends in this state
        for string in self.strings:
            self._insert(string)
        self._fail = [0] * len(self._edges)
        self._link()

    def __bool__(self) -> bool:
        return bool(self.strings)

    def step(self, state: int, char: str) -> int:
        """The state after one more character."""
        while state and char not in self._edges[state]:
            state = self._fail[state]
        return self._edges[state].get(char, 0)

    def held(self, state: int) -> int:
        """Number of characters at the end of the text that may become a stop string."""
        return self._depth[state]

    def match(self, state: int) -> int:
        """Length of the longest stop string that ends here; 0: none does."""
        return self._match[state]

    def _insert(self, string: str) -> None:
        state = 0
        for char in string:
            if char not in self._edges[state]:
                self._edges[state][char] = len(self._edges)
                self._edges.append({})
                self._depth.append(self._depth[state] + 1)
                self._match.append(0)
            state = self._edges[state][char]
        self._match[state] = len(string)

    def _link(self) -> None:
        """Set each state's longest proper suffix that is a state too, breadth first."""
        queue = deque(self._edges[0].values())
        while queue:
            state = queue.popleft()
            for char, target in self._edges[state].items():
                self._fail[target] = self.step(self._fail[state], char)
                self._match[target] = max(self._match[target], self._match[self._fail[target]])
                queue.append(target)
