"""Searched codes and scales: the nearest levels, and an error that no simple scale beats."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.layers.code_search import best_scales, inverse, nearest_codes
from inference.modelling.quantisation import OWN_FORMS, FormName

SEARCHED = [name for name in OWN_FORMS if name != "int8"]


def levels_of(name: FormName) -> torch.Tensor:
    form = OWN_FORMS[name]
    return torch.tensor(form.levels or [code - form.zero for code in range(1 << form.bits)], dtype=torch.float32)


def squared_errors(grouped: torch.Tensor, scales: torch.Tensor, name: FormName) -> torch.Tensor:
    codes = nearest_codes(grouped * inverse(scales), OWN_FORMS[name]).long()
    return (levels_of(name)[codes] * scales.unsqueeze(-1) - grouped).square().sum(-1)


def groups_of(name: FormName, count: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    """Groups of normal values, (1, count, size), and that all inputs are there."""
    size = OWN_FORMS[name].group
    grouped = torch.randn(1, count, size, generator=torch.Generator().manual_seed(1))
    return grouped, torch.ones(count, size, dtype=torch.bool)


@pytest.mark.parametrize("name", SEARCHED)
def test_a_value_goes_to_the_nearest_level(name: FormName) -> None:
    levels = levels_of(name)
    values = torch.linspace(1.5 * float(levels[0]), 1.5 * float(levels[-1]), 2001)
    distances = (values[:, None] - levels).abs()
    found = distances.gather(1, nearest_codes(values, OWN_FORMS[name]).long()[:, None])[:, 0]
    torch.testing.assert_close(found, distances.amin(1))


@pytest.mark.parametrize("name", SEARCHED)
def test_no_scale_by_the_greatest_magnitude_is_better(name: FormName) -> None:
    grouped, is_real = groups_of(name)
    extreme = grouped.gather(-1, grouped.abs().argmax(-1, keepdim=True))[..., 0]
    found = squared_errors(grouped, best_scales(grouped, is_real, OWN_FORMS[name]), name)
    for end in (levels_of(name)[0], levels_of(name)[-1]):
        simple = squared_errors(grouped, extreme / end, name)
        assert (found <= 1.001 * simple).all()
        assert found.sum() < simple.sum()


@pytest.mark.parametrize("name", SEARCHED)
def test_values_on_the_levels_stay(name: FormName) -> None:
    levels = levels_of(name)
    size = OWN_FORMS[name].group
    scales = torch.tensor([[0.5, -0.25, 2.0, 1.0, -8.0]])
    grouped = levels.repeat(size // len(levels) + 1)[-size:] * scales.unsqueeze(-1)
    found = best_scales(grouped, torch.ones(5, size, dtype=torch.bool), OWN_FORMS[name])
    assert float(squared_errors(grouped, found, name).max()) < 1e-8 * float(grouped.square().mean())


@pytest.mark.parametrize("name", SEARCHED)
def test_zeros_have_a_scale_of_zero_and_missing_inputs_do_not_count(name: FormName) -> None:
    grouped, is_real = groups_of(name, 3)
    grouped[0, 0] = 0
    part = OWN_FORMS[name].group // 2
    grouped[0, 2, part:] = 0
    whole = best_scales(grouped, is_real, OWN_FORMS[name])
    assert whole[0, 0] == 0
    assert inverse(whole)[0, 0, 0] == 0
    is_real[2, part:] = False
    partly = best_scales(grouped, is_real, OWN_FORMS[name])
    assert torch.equal(partly[0, :2], whole[0, :2])
    values = grouped[:, 2:, :part]
    assert squared_errors(values, partly[:, 2:], name) <= 1.001 * squared_errors(values, whole[:, 2:], name)
