"""SpeculativeOptions as a line and as JSON."""

from __future__ import annotations

import pytest

from inference.errors import InvalidRequest
from inference.values.speculative_options import SpeculativeOptions


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("ngram", SpeculativeOptions("ngram")),
        ("ngram,k=6", SpeculativeOptions("ngram", num_tokens=6)),
        ("mtp", SpeculativeOptions("mtp")),
        ("mtp,k=1", SpeculativeOptions("mtp", num_tokens=1)),
        ("draft:small/one", SpeculativeOptions("draft", "small/one")),
        ("draft:small, k=3", SpeculativeOptions("draft", "small", num_tokens=3)),
        ("ngram,max_num_seqs=2,min_match=3,adaptive=off", SpeculativeOptions("ngram", "", 0, 2, 3, False)),
    ],
)
def test_options_are_read_from_a_line_and_from_json(text, options):
    assert SpeculativeOptions.parse(text) == options
    assert SpeculativeOptions.from_dict(options.to_dict()) == options
    assert SpeculativeOptions.parse(options.to_line()) == options


@pytest.mark.parametrize(
    "text", ["", "eagle", "ngram,k=0", "ngram,k=x", "ngram,n=3", "draft", "ngram:small", "mtp:small", "ngram,k=65"]
)
def test_a_wrong_line_is_refused(text):
    with pytest.raises(InvalidRequest) as caught:
        SpeculativeOptions.parse(text)
    assert caught.value.param == "speculative"


@pytest.mark.parametrize(
    "payload",
    [
        None,
        "ngram",
        {},
        {"method": "eagle"},
        {"method": ["ngram"]},
        {"method": "draft"},
        {"method": "draft", "draft_model": 7},
        {"method": "ngram", "draft_model": "x"},
        {"method": "ngram", "num_tokens": True},
        {"method": "ngram", "num_tokens": 65},
        {"method": "ngram", "max_num_seqs": 0},
        {"method": "ngram", "min_match": 1.5},
        {"method": "ngram", "is_adaptive": 1},
        {"method": "ngram", "depth": 2},
    ],
)
def test_wrong_json_is_refused(payload):
    with pytest.raises(InvalidRequest) as caught:
        SpeculativeOptions.from_dict(payload)
    assert caught.value.param == "speculative"


def test_the_former_name_of_an_option_is_still_read():
    wanted = SpeculativeOptions("ngram", max_num_seqs=2)
    assert SpeculativeOptions.from_dict({"method": "ngram", "max_requests": 2}) == wanted
    assert SpeculativeOptions.parse("ngram,max_requests=2") == wanted
    assert wanted.to_dict() == {"method": "ngram", "max_num_seqs": 2}
