"""Control tokens in a text: as a regular expression finds them, and fast however many there are."""

from __future__ import annotations

import re
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from inference.text.tokenisation.chat_template import ChatTemplate
from inference.text.tokenisation.control_tokens import ControlTokens

texts = st.text(alphabet="<|ab>", max_size=30)


@settings(max_examples=500, deadline=None)
@given(tokens=st.lists(st.text(alphabet="<|ab>", max_size=6), max_size=12), text=texts)
def test_found_as_by_a_regular_expression(tokens: list[str], text: str) -> None:
    found = ControlTokens(tokens)
    longest_first = sorted(filter(None, tokens), key=len, reverse=True)
    expected = re.split("(" + "|".join(map(re.escape, longest_first)) + ")", text) if longest_first else [text]
    assert found.split(text) == expected
    assert bool(found) == bool(longest_first)


@settings(max_examples=300, deadline=None)
@given(tokens=st.lists(st.text(alphabet="<ab>", min_size=1, max_size=5), max_size=8), text=texts, data=st.data())
def test_the_longest_token_before_a_place(tokens: list[str], text: str, data: st.DataObject) -> None:
    end = data.draw(st.integers(0, len(text)))
    begin = data.draw(st.integers(0, end))
    expected = max((len(token) for token in tokens if text[begin:end].endswith(token)), default=0)
    assert ControlTokens(tokens).match_before(text, begin, end) == expected


def test_many_tokens_cost_a_message_no_more_than_few() -> None:
    """A published vocabulary has 6,400 ``<unused…>``; all alternatives were tried at each ``<``: 27 s for 240,000."""
    few, many = ControlTokens(["<unused1>"]), ControlTokens(f"<unused{number}>" for number in range(20_000))
    text = "<unused " * 20_000
    seconds = []
    for tokens in (few, many):
        began = time.thread_time()
        assert tokens.split(text) == [text]
        seconds.append(time.thread_time() - began)
    assert seconds[1] < 20 * seconds[0] + 0.05


def test_a_message_of_a_model_with_many_control_tokens_is_rendered_within_its_limits() -> None:
    template = ChatTemplate(
        "{{ messages[0].content }}",
        special_tokens={},
        control_tokens=[f"<{number}>" for number in range(50_000)],
        max_model_len=4096,
    )
    began = time.thread_time()
    pieces = template.render([{"role": "user", "content": "<" * 20_000 + "<7>"}])
    assert time.thread_time() - began < 2.0  # 50 s with a regular expression
    assert pieces == [("<" * 20_000, True), ("<7>", False)]
    template.close()
