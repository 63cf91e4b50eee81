"""Rules of merging: what is refused, and what the methods make of two changes."""

from __future__ import annotations

import pytest

from inference.errors import InvalidRequest
from inference.modelling.adapters.merging import MergeRule


@pytest.mark.parametrize(
    ("rule", "count", "message"),
    [
        (MergeRule(method="average"), 1, "method is 'average'"),
        (MergeRule(method="ties", density=0.0), 2, "density is 0"),
        (MergeRule(method="slerp", share=1.5), 2, "share is 1.5"),
        (MergeRule(method="slerp"), 3, "slerp mixes 2 adapters, not 3"),
    ],
)
def test_a_rule_that_cannot_be_followed_is_refused(rule: MergeRule, count: int, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        rule.check(count)


def test_rules_that_can_be_followed_pass() -> None:
    for rule, count in ((MergeRule(), 1), (MergeRule("ties", density=1.0), 5), (MergeRule("slerp", share=0.0), 2)):
        rule.check(count)
