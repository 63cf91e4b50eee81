"""Grouped experts and the router's choice against PyTorch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.modelling.backends.backend import NativeBackend
from inference.modelling.backends.native.packing import NativePacked, pack_native
from inference.modelling.layers.moe import Experts, Router, choose_experts
from inference.modelling.specs.layers import MoESpec


def native(dtype: torch.dtype) -> NativeBackend:
    return NativeBackend(torch.device("cpu"), dtype)


def choose_natively(
    logits: torch.Tensor, spec: MoESpec, bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    router = Router(spec, 1)
    router.correction_bias = None if bias is None else torch.nn.Parameter(bias, requires_grad=False)
    native(torch.float32).bind(router)
    return router.choose(logits)


def make(spec: MoESpec, hidden_size: int, dtype: torch.dtype, seed: int = 0) -> Experts:
    experts = Experts(spec, hidden_size)
    generator = torch.Generator().manual_seed(seed)
    for name, value in list(experts.named_parameters()):
        noise = torch.randn(value.shape, generator=generator) * value.shape[-1] ** -0.5
        setattr(experts, name, torch.nn.Parameter(noise.to(dtype), requires_grad=False))
    return experts


def routed(rows: int, spec: MoESpec, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weights, chosen = torch.rand(rows, spec.num_experts, generator=generator).topk(spec.top_k)
    return weights.contiguous(), chosen.contiguous()


def exact(experts: Experts, hidden: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Float64 with the matrices as they are, before they are packed."""
    wide = Experts(experts.spec, hidden.shape[1])
    for name, value in experts.named_parameters():
        setattr(wide, name, torch.nn.Parameter(value.double(), requires_grad=False))
    parts = [
        sum(weights[row, j].double() * wide.run(int(chosen[row, j]), hidden[row : row + 1].double())[0]
            for j in range(chosen.shape[1]))
        for row in range(len(hidden))
    ]  # fmt: skip
    return torch.stack(parts)


SPECS = {
    "gated": MoESpec(num_experts=6, top_k=2, intermediate_size=40),
    "plain": MoESpec(num_experts=3, top_k=3, intermediate_size=33, activation="relu2", gated=False),
    "wide": MoESpec(num_experts=2, top_k=1, intermediate_size=300, activation="gelu_tanh"),
}
TOLERANCES = {"float32": 2e-5, "bfloat16": 2e-2, "int8": 3e-2, "int4": 0.25}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize(
    ("form", "dtype"),
    [("float32", torch.float32), ("bfloat16", torch.bfloat16), ("int8", torch.float32), ("int4", torch.bfloat16)],
)
def test_grouped_experts(name: str, form: str, dtype: torch.dtype) -> None:
    spec = SPECS[name]
    experts = make(spec, 70, dtype)
    hidden = torch.randn(41, 70, generator=torch.Generator().manual_seed(5)).to(dtype)
    weights, chosen = routed(41, spec)
    expected = exact(experts, hidden, weights, chosen)
    if form in ("int8", "int4"):
        for leaf, value in list(experts.named_parameters()):
            experts.accept(leaf, native(dtype).quantise(value.detach(), form), dtype)
    else:
        assert native(dtype).pack(experts)
    assert all(isinstance(packed, NativePacked) for packed in experts.packed.values())
    by_one = experts(hidden, weights, chosen)
    native(dtype).bind(experts)
    found = experts(hidden, weights, chosen)
    assert found.dtype == dtype
    error = (found.double() - expected).norm() / expected.norm()
    assert error < TOLERANCES[form]
    # Expert by expert with the same packed matrices.
    torch.testing.assert_close(found, by_one, **({"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else
                                                 {"rtol": 0.05, "atol": 0.05}))  # fmt: skip
    alone = torch.cat([experts(hidden[i : i + 1], weights[i : i + 1], chosen[i : i + 1]) for i in range(41)])
    assert torch.equal(alone, found)
    assert experts(hidden[:0], weights[:0], chosen[:0]).shape == (0, 70)


def test_many_rows_for_one_expert() -> None:
    spec = MoESpec(num_experts=4, top_k=1, intermediate_size=64)
    experts = make(spec, 48, torch.float32)
    hidden = torch.randn(530, 48, generator=torch.Generator().manual_seed(5))
    weights, chosen = torch.ones(530, 1), torch.full((530, 1), 2)
    plain = experts(hidden, weights, chosen)
    native(torch.float32).pack(experts)
    native(torch.float32).bind(experts)
    torch.testing.assert_close(experts(hidden, weights, chosen), plain, rtol=1e-5, atol=1e-5)


def test_wrong_calls_are_refused() -> None:
    spec = MoESpec(num_experts=4, top_k=1, intermediate_size=64)
    experts = make(spec, 48, torch.float32)
    native(torch.float32).pack(experts)
    native(torch.float32).bind(experts)
    hidden, weights = torch.zeros(2, 48), torch.ones(2, 1)
    for bad in (4, -1):
        with pytest.raises(RuntimeError, match=f"expert {bad} of 4"):
            experts(hidden, weights, torch.full((2, 1), bad))
    with pytest.raises(RuntimeError, match="not those of"):
        experts(torch.zeros(2, 47), weights, torch.zeros(2, 1, dtype=torch.int64))
    with pytest.raises(RuntimeError, match="for each row"):
        experts(torch.zeros(3, 48), weights, torch.zeros(2, 1, dtype=torch.int64))
    with pytest.raises(RuntimeError, match="float32 weights"):
        experts(hidden, weights.double(), torch.zeros(2, 1, dtype=torch.int64))
    with pytest.raises(RuntimeError, match="choose_experts"):
        torch.ops.blazr.choose_experts(torch.zeros(2, 4), None, 5, True, True, 0.0, 1.0, 1, 1, False)
    with pytest.raises(RuntimeError, match="choose_experts"):
        torch.ops.blazr.choose_experts(torch.zeros(2, 4), None, 1, True, True, 0.0, 1.0, 3, 1, False)


@st.composite
def rules(draw) -> MoESpec:
    groups = draw(st.sampled_from([1, 1, 2, 4]))
    per_group = draw(st.integers(2, 20))
    kept = draw(st.integers(1, groups))
    return MoESpec(
        num_experts=groups * per_group,
        top_k=draw(st.integers(1, min(8, kept * per_group))),
        intermediate_size=4,
        scoring=draw(st.sampled_from(["softmax", "sigmoid"])),
        normalise_top_k=draw(st.booleans()),
        normalise_eps=draw(st.sampled_from([0.0, 1e-20])),
        routed_scaling_factor=draw(st.sampled_from([1.0, 2.5])),
        num_expert_groups=groups,
        top_k_groups=kept,
        group_score=draw(st.sampled_from(["max", "top2"])),
        correction_bias=draw(st.booleans()),
    )


@settings(max_examples=120, deadline=None, derandomize=True)
@given(rules(), st.integers(1, 5), st.integers(0, 1000))
def test_choice_of_experts(spec: MoESpec, rows: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    # Steps of a quarter: ties are frequent, other scores far enough apart.
    logits = (torch.randn(rows, spec.num_experts, generator=generator) * 8).round() / 4
    bias = (torch.randn(spec.num_experts, generator=generator) * 0.1) if spec.correction_bias else None
    weights, chosen = choose_natively(logits, spec, bias)
    expected_weights, expected = choose_experts(logits, spec, bias)
    if bias is None:
        assert torch.equal(chosen, expected)
    else:  # a sum of score and bias may tie in one rounding and not in another
        assert (chosen == expected).float().mean() > 0.99
    same = chosen == expected
    torch.testing.assert_close(weights[same], expected_weights[same], rtol=1e-5, atol=1e-6)


def test_the_lowest_number_wins_a_tie() -> None:
    spec = MoESpec(num_experts=5, top_k=3, intermediate_size=4)
    _, chosen = choose_natively(torch.tensor([[1.0, 2.0, 2.0, 2.0, 2.0]]), spec)
    assert chosen.tolist() == [[1, 2, 3]]


def test_quantise_keeps_a_stack_together() -> None:
    packed = native(torch.float32).quantise(torch.randn(3, 40, 64, generator=torch.Generator().manual_seed(0)), "int8")
    assert isinstance(packed, NativePacked)
    assert packed.data.shape[0] == 3


def test_stacks_of_two_forms_run_expert_by_expert() -> None:
    """A stack that is too narrow to be quantised stays beside one that isn't."""
    experts = make(MoESpec(num_experts=3, top_k=1, intermediate_size=24), 64, torch.float32)
    backend = native(torch.float32)
    backend.bind(experts)
    hidden = torch.randn(5, 64, generator=torch.Generator().manual_seed(5))
    weights, chosen = torch.ones(5, 1), torch.tensor([[0], [2], [1], [2], [0]])
    exact_values = experts(hidden, weights, chosen)
    for leaf, form in (("gate_up_proj", "int8"), ("down_proj", "float32")):
        experts.accept(leaf, pack_native(getattr(experts, leaf).detach(), form), torch.float32)
    found = experts(hidden, weights, chosen)
    assert (found - exact_values).norm() < 3e-2 * exact_values.norm()
