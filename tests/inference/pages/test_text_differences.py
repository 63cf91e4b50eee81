"""Differences are marked word by word."""

from __future__ import annotations

from inference.pages.text_differences import Piece, compare


def test_equal_parts_are_the_same_on_both_sides() -> None:
    found = compare("one two three", "one four three")
    assert found.left == (Piece("same", "one "), Piece("other", "two "), Piece("same", "three"))
    assert found.right == (Piece("same", "one "), Piece("other", "four "), Piece("same", "three"))
    assert 0.6 < found.share < 0.7


def test_whole_texts_come_back() -> None:
    for left, right in (("", ""), ("", "a b"), (" a\n b", "a b"), ("x " * 50, "x " * 40 + "y")):
        found = compare(left, right)
        assert ("".join(piece.text for piece in found.left), "".join(piece.text for piece in found.right)) == (
            left, right,
        )  # fmt: skip
    assert compare("a", "a").share == 1.0


def test_only_the_first_words_are_compared() -> None:
    found = compare("a b c d", "a b x y", max_words=2)
    assert found.left == (Piece("same", "a b "), Piece("unread", "c d"))
    assert found.share == 1.0
