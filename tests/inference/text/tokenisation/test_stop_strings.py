"""StopStrings: the automaton, character by character."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference.text.tokenisation.stop_strings import StopStrings

TEXT = st.text("ab", max_size=12)


def states(stops: StopStrings, text: str) -> list[int]:
    found, state = [], 0
    for char in text:
        state = stops.step(state, char)
        found.append(state)
    return found


def test_the_longest_stop_string_that_ends_here_is_the_match() -> None:
    stops = StopStrings(["b", "ab", "bc"])
    assert [stops.match(state) for state in states(stops, "aabc")] == [0, 0, 2, 2]


def test_characters_that_may_become_a_stop_string_are_held() -> None:
    stops = StopStrings(["aab"])
    assert [stops.held(state) for state in states(stops, "aaaxa")] == [1, 2, 2, 0, 1]


def test_without_strings_nothing_matches() -> None:
    stops = StopStrings([])
    assert not stops and bool(StopStrings(["x"]))
    assert states(stops, "ab") == [0, 0]


@given(st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4), TEXT)
def test_every_state_agrees_with_a_search_of_the_text(strings: list[str], text: str) -> None:
    stops = StopStrings(strings)
    for end, state in enumerate(states(stops, text), start=1):
        seen = text[:end]
        assert stops.match(state) == max((len(item) for item in strings if seen.endswith(item)), default=0)
        prefixes = {item[:length] for item in strings for length in range(1, len(item) + 1)}
        assert stops.held(state) == max((len(item) for item in prefixes if seen.endswith(item)), default=0)
