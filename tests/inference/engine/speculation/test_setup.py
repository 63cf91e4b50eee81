"""make_speculator: each method needs its parts, and refuses by name without them."""

from __future__ import annotations

import pytest

from inference.engine.speculation.draft_runner import DraftRunner
from inference.engine.speculation.proposer import NgramProposer
from inference.errors import InvalidRequest
from inference.values.speculative_options import SpeculativeOptions
from tests.inference.engine.speculation.fakes import always, fake_engine


@pytest.mark.parametrize(("draft_kind", "proposer"), [(None, NgramProposer), ("paged", DraftRunner)])
def test_each_method_has_its_proposer(draft_kind, proposer):
    assert isinstance(fake_engine("paged", draft_kind=draft_kind)._speculator._proposer, proposer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (SpeculativeOptions("draft", "small"), "needs a loaded draft model"),
        (always("mtp"), "mtp needs the model's loaded head"),
    ],
)
def test_a_missing_part_is_named(options, message):
    with pytest.raises(InvalidRequest, match=message):
        fake_engine("paged", options=options)


def test_recurrent_layers_need_a_spare_slot():
    with pytest.raises(InvalidRequest, match="num_spare_slots is 0"):
        fake_engine("slots", num_spare_slots=0)
