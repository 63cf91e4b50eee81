"""Differences are marked word by word."""

from __future__ import annotations

import time

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
    assert (found.share, found.is_same, found.percent) == (1.0, False, 99)


def test_only_equal_texts_are_wholly_the_same() -> None:
    words = [f"w{number}" for number in range(300)]
    found = compare(" ".join(words), " ".join([*words[:150], "other", *words[151:]]))
    assert (found.is_same, found.percent) == (False, 99)
    assert (compare("a b", "a b").is_same, compare("a b", "a b").percent) == (True, 100)
    assert compare("a", "b").percent == 0


def test_common_ends_stay_the_same_around_words_that_come_often() -> None:
    left, right = ("| " * 300 + cells + " |" * 300 for cells in ("one two", "three"))
    found = compare(left, right)
    assert [piece.kind for piece in found.left] == ["same", "other", "same"]
    assert [piece.text for piece in found.right] == ["| " * 300, "three ", "| " * 299 + "|"]


def test_tables_with_other_cells_take_no_long_time() -> None:
    left, right = ("".join(f"| {name}{row} | {name}x{row} |\n" for row in range(300)) for name in "ab")
    begun_s = time.process_time()
    compare(left, right)
    assert time.process_time() - begun_s < 1.0


def test_a_comparison_is_kept() -> None:
    assert compare("kept one", "kept two") is compare("kept one", "kept two")
