"""Grouped experts against the row-by-row definition, and the rules of routing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.modelling.layers.moe import MixtureOfExperts, choose_experts
from inference.modelling.specs.layers import MoESpec

H = 12


@st.composite
def moe_specs(draw) -> MoESpec:
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    per_group = draw(st.integers(2, 4))
    kept = draw(st.integers(1, groups))
    shared = draw(st.sampled_from([0, 5]))
    return MoESpec(
        num_experts=groups * per_group,
        top_k=draw(st.integers(1, kept * per_group)),
        intermediate_size=draw(st.integers(1, 6)),
        activation=draw(st.sampled_from(["silu", "relu2", "gelu_tanh"])),
        gated=draw(st.booleans()),
        scoring=draw(st.sampled_from(["softmax", "sigmoid", "sqrt_softplus"])),
        normalise_top_k=draw(st.booleans()),
        normalise_eps=draw(st.sampled_from([0.0, 1e-20])),
        routed_scaling_factor=draw(st.sampled_from([1.0, 2.5])),
        num_expert_groups=groups,
        top_k_groups=kept,
        group_score=draw(st.sampled_from(["max", "top2"])),
        correction_bias=draw(st.booleans()),
        shared_intermediate_size=shared,
        shared_gate=bool(shared) and draw(st.booleans()),
    )


def make_layer(spec: MoESpec, seed: int = 0) -> MixtureOfExperts:
    layer = MixtureOfExperts(spec, H)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in layer.parameters():
            value.copy_(torch.randn(value.shape, generator=generator) * 0.5)
    assert {name: tuple(value.shape) for name, value in layer.named_parameters()} == spec.parameter_shapes(H)
    return layer


def defined(layer: MixtureOfExperts, hidden: torch.Tensor) -> torch.Tensor:
    """The layer, row by row and expert by expert."""
    spec, results = layer.spec, []
    for row in hidden:
        logits = (layer.router.weight.float() @ row.float()).tolist()
        scores = scores_of(logits, spec)
        bias = [0.0] * len(scores) if layer.router.correction_bias is None else layer.router.correction_bias.tolist()
        ranking = [score + extra for score, extra in zip(scores, bias, strict=True)]
        chosen = choose_for_row(ranking, spec)
        total = sum(scores[expert] for expert in chosen) + spec.normalise_eps if spec.normalise_top_k else 1.0
        result = torch.zeros_like(row, dtype=torch.float32)
        for expert in chosen:
            weight = scores[expert] / total * spec.routed_scaling_factor
            result += weight * layer.experts.run(expert, row.unsqueeze(0))[0].float()
        if layer.shared_expert is not None:
            result += layer._shared(row.unsqueeze(0))[0].float()
        results.append(result.to(hidden.dtype))
    return torch.stack(results)


def scores_of(logits: list[float], spec: MoESpec) -> list[float]:
    values = torch.tensor(logits, dtype=torch.float32)
    functions = {
        "softmax": lambda: values.softmax(0),
        "sigmoid": values.sigmoid,
        "sqrt_softplus": lambda: (1 + values.exp()).log().sqrt(),
    }
    scores: list[float] = functions[spec.scoring]().tolist()
    return scores


def choose_for_row(ranking: list[float], spec: MoESpec) -> list[int]:
    """``choose_experts`` for one row, in plain Python; Python's sort keeps ties in order of number."""
    size = spec.num_experts // spec.num_expert_groups
    groups = [ranking[start : start + size] for start in range(0, spec.num_experts, size)]
    best = [max(group) if spec.group_score == "max" else sum(sorted(group)[-2:]) for group in groups]
    kept = sorted(range(len(groups)), key=lambda group: -best[group])[: spec.top_k_groups]
    candidates = [expert for expert in range(spec.num_experts) if expert // size in kept]
    return sorted(candidates, key=lambda expert: -ranking[expert])[: spec.top_k]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(moe_specs(), st.integers(1, 9), st.integers(0, 1000))
def test_grouped_experts_are_the_definition(spec, rows, seed):
    layer = make_layer(spec, seed)
    hidden = torch.randn(rows, H, generator=torch.Generator().manual_seed(seed + 1))
    with torch.inference_mode():
        found = layer(hidden)
        wanted = defined(layer, hidden)
    # Sums in float32 err in proportion to their largest terms, whatever is left of these.
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5 * max(1.0, float(wanted.abs().max())))


def test_of_equal_scores_the_lowest_numbers_win():
    spec = MoESpec(num_experts=64, top_k=3, intermediate_size=1)
    _, chosen = choose_experts(torch.zeros(2, 64), spec)
    assert chosen.tolist() == [[0, 1, 2]] * 2
    logits = torch.zeros(1, 64)
    logits[0, 40:] = 1.0
    assert choose_experts(logits, spec)[1].tolist() == [[40, 41, 42]]


def test_equal_groups_go_to_the_lowest_too():
    spec = MoESpec(8, 2, 1, num_expert_groups=4, top_k_groups=1, scoring="sigmoid", group_score="top2")
    assert choose_experts(torch.zeros(1, 8), spec)[1].tolist() == [[0, 1]]


def test_correction_bias_chooses_but_does_not_weigh():
    spec = MoESpec(4, 1, 1, scoring="sigmoid", normalise_top_k=False, correction_bias=True)
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    weights, chosen = choose_experts(logits, spec, torch.tensor([0.0, 0.0, 0.0, 5.0]))
    assert chosen.tolist() == [[3]]
    assert weights.item() == pytest.approx(torch.tensor(-1.0).sigmoid().item())


def test_experts_outside_the_best_groups_are_out_whatever_their_score():
    spec = MoESpec(6, 2, 1, num_expert_groups=2, top_k_groups=1, group_score="top2", scoring="sigmoid")
    # The best single expert is number 0, but the second group has the better pair.
    logits = torch.tensor([[3.0, -5.0, -5.0, 1.0, 1.5, -5.0]])
    assert sorted(choose_experts(logits, spec)[1][0].tolist()) == [3, 4]
    best_single = MoESpec(6, 2, 1, num_expert_groups=2, top_k_groups=1, group_score="max", scoring="sigmoid")
    assert 0 in choose_experts(logits, best_single)[1][0].tolist()


def test_softmax_over_the_chosen_equals_normalised_softmax_over_all():
    spec = MoESpec(5, 2, 1)
    logits = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    weights, chosen = choose_experts(logits, spec)
    torch.testing.assert_close(weights, logits.gather(1, chosen).softmax(-1))


def test_each_chosen_expert_runs_once_per_step(monkeypatch):
    layer = make_layer(MoESpec(4, 2, 3))
    ran: list[int] = []
    run = layer.experts.run
    monkeypatch.setattr(layer.experts, "run", lambda expert, hidden: ran.append(expert) or run(expert, hidden))
    with torch.inference_mode():
        layer(torch.randn(50, H, generator=torch.Generator().manual_seed(0)))
    assert sorted(ran) == sorted(set(ran))
    assert len(ran) == 4


def test_a_row_is_the_same_alone_and_in_a_batch():
    layer = make_layer(MoESpec(4, 2, 3, shared_intermediate_size=4, shared_gate=True))
    hidden = torch.randn(20, H, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        alone = torch.cat([layer(row.unsqueeze(0)) for row in hidden])
        torch.testing.assert_close(layer(hidden), alone, rtol=0, atol=1e-5)


def test_the_router_stays_in_float32_in_a_bfloat16_network():
    layer = make_layer(MoESpec(4, 2, 3)).bfloat16()
    layer.router.float()
    with torch.inference_mode():
        assert layer.router(torch.randn(3, H).bfloat16()).dtype == torch.float32
        assert layer(torch.randn(3, H).bfloat16()).dtype == torch.bfloat16
    assert set(layer.router.float32_parameters) == {"weight", "bias", "correction_bias", "expert_scale"}


def test_each_choice_is_scored_among_the_experts_near_it():
    """Worked by hand: 3 and 2.5 are within a fifth of 3; then, without 3, 2.5 and 2.1 are within a fifth of 2.5."""
    spec = MoESpec(4, 2, 5, scoring="sparse_mixer", mixer_width=0.2)
    weights, chosen = choose_experts(torch.tensor([[2.5, -1.0, 3.0, 2.1]]), spec)
    assert chosen.tolist() == [[2, 0]]
    first = torch.tensor([3.0, 2.5]).softmax(0)[0]
    second = torch.tensor([2.5, 2.1]).softmax(0)[0]
    torch.testing.assert_close(weights, torch.stack((first, second)).unsqueeze(0))


def test_experts_may_be_chosen_by_logits_with_a_bias():
    """Sigmoids of large logits are close to each other: with the bias on them, the third would be chosen."""
    logits, bias = torch.tensor([[6.0, 5.0, 4.0]]), torch.tensor([0.0, 0.0, 0.5])
    spec = MoESpec(3, 1, 5, scoring="sigmoid", correction_bias=True, normalise_top_k=False)
    assert choose_experts(logits, spec, bias)[1].tolist() == [[2]]
    weights, chosen = choose_experts(logits, replace(spec, ranks_logits=True), bias)
    assert chosen.tolist() == [[0]]
    torch.testing.assert_close(weights, logits[:, :1].sigmoid())


def test_a_score_below_the_floor_loses_to_experts_of_other_groups() -> None:
    spec = MoESpec(4, 2, 8, scoring="sigmoid", num_expert_groups=2, top_k_groups=1, group_score="top2")
    logits, bias = torch.tensor([[5.0, -5.0, 1.0, -3.0]]), torch.tensor([0.5, -0.5, 0.0, -0.3])
    assert choose_experts(logits, spec, bias)[1].tolist() == [[0, 1]]
    assert choose_experts(logits, replace(spec, group_floor=0.0), bias)[1].tolist() == [[0, 2]]


def test_scaled_inputs_give_the_sum_over_the_chosen() -> None:
    layer = make_layer(MoESpec(5, 2, 6, gated=False, activation="relu", scales_input=True))
    hidden = torch.randn(7, H, generator=torch.Generator().manual_seed(3))
    weights, chosen = layer.router.choose(layer.router(hidden))
    for row, found in enumerate(layer(hidden)):
        parts = [
            layer.experts.run(int(e), (hidden[row] * w)[None])[0]
            for w, e in zip(weights[row], chosen[row], strict=True)
        ]
        assert torch.allclose(found, sum(parts), atol=1e-5)
