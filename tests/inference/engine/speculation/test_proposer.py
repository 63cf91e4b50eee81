"""NgramProposer."""

from __future__ import annotations

from inference.engine.running_request import Request
from inference.engine.sampling.sampling_state import SamplingState
from inference.engine.speculation.proposer import NgramProposer
from inference.values.sampling_params import SamplingParams
from tests.inference.engine.fakes import request


def running(name, tokens):
    source = request(name, tokens)
    return Request(source, 0, 20, frozenset(), list(tokens), SamplingState(SamplingParams(), [], tokens, []))


def test_each_request_continues_its_own_text():
    proposer = NgramProposer(2)
    first, second, third = running("a", [1, 2, 3, 1, 2]), running("b", [1, 2, 9, 1, 2]), running("c", [1, 2, 3])
    assert [proposer.can_propose(item) for item in (first, second, third)] == [True, True, False]
    assert proposer.propose({first: 2, second: 1, third: 4}) == {first: [3, 1], second: [9]}
    first.token_ids += [3, 9]
    assert not proposer.can_propose(first)


def test_a_forgotten_request_begins_anew():
    proposer = NgramProposer(2)
    item = running("a", [1, 2, 3, 1, 2])
    assert proposer.can_propose(item)
    proposer.forget(item)
    proposer.forget(item)
    assert proposer._indices == {}
    assert proposer.propose({item: 3}) == {item: [3, 1, 2]}
