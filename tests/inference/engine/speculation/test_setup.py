"""make_speculator: each method needs its parts, and refuses by name without them."""

from __future__ import annotations

import pytest
import torch

from bench.prefix_cache import MODELS
from bench.speculation import head_spec
from inference.engine.speculation.draft_runner import DraftRunner
from inference.engine.speculation.policy import DraftingCosts
from inference.engine.speculation.proposer import NgramProposer
from inference.engine.speculation.setup import Speculation, drafting_costs
from inference.errors import InvalidRequest
from inference.modelling.prediction_head import PredictionHead
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


def test_a_pass_costs_the_share_of_the_weights_that_it_reads():
    spec = MODELS["mamba2-130m"]()
    assert drafting_costs(Speculation(always("ngram")), spec) == DraftingCosts(0.0, has_recurrence=True)
    with torch.device("meta"):
        head = PredictionHead(head_spec(spec))
    costs = drafting_costs(Speculation(always("mtp"), head=head), spec)
    shared = spec.vocab_size * spec.hidden_size
    own = head.spec.num_parameters()
    assert costs.pass_cost == pytest.approx((own + shared) / spec.num_parameters(), rel=0.01)
    assert 0.3 < costs.pass_cost < 0.4
    assert not drafting_costs(Speculation(always("ngram")), MODELS["llama-135m"]()).has_recurrence
