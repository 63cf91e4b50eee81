"""Equal pictures have equal ids, different ones none in common, and no token has a picture's."""

import numpy as np

from inference.engine.prefix_cache.identity import identity_ids
from inference.engine.prefix_cache.tree import chained
from inference.engine.request import ImageSpan

PIXELS = np.zeros((2, 2, 3), dtype=np.uint8)


def span(start: int, count: int, digest: bytes) -> ImageSpan:
    return ImageSpan(start, count, digest, PIXELS)


def test_ids_follow_the_digest_and_not_the_place():
    tokens = [1, 9, 9, 9, 2, 9, 9, 9, 3]
    same = identity_ids(tokens, [span(1, 3, b"a"), span(5, 3, b"a")])
    assert same[1:4] == same[5:8] and [same[0], same[4], same[8]] == [1, 2, 3]
    other = identity_ids(tokens, [span(1, 3, b"b"), span(5, 3, b"a")])
    assert not set(other[1:4]) & set(same[1:4]) and other[5:8] == same[5:8]
    assert len(set(same[1:4])) == 3 and min(same[1:4]) >= 1 << 62 and max(same[1:4]) < 1 << 63


def test_a_prefix_of_a_picture_has_the_prefix_of_its_ids():
    assert identity_ids([9] * 4, [span(0, 4, b"a")])[:2] == identity_ids([9] * 2, [span(0, 2, b"a")])


def test_the_tree_hashes_them():
    assert chained(b"", identity_ids([9] * 2, [span(0, 2, b"a")])) != chained(b"", [9, 9])


def test_a_prompt_without_pictures_is_itself():
    assert identity_ids((1, 2), ()) == [1, 2]
