"""Deltas against the changed matrix itself."""

from __future__ import annotations

import torch

from inference.modelling.adapters.deltas import ModuleDelta, Term, add_terms


def test_a_delta_is_the_product_of_the_changed_matrix() -> None:
    weight, bias, hidden = torch.randn(10, 6), torch.randn(10), torch.randn(4, 6)
    a, b = torch.randn(3, 6), torch.randn(4, 3)
    changed = weight.clone()
    changed[2:6] += 0.5 * b @ a
    gain = torch.randn(10)
    offset = torch.randn(10)
    expected = hidden @ (changed * (1 + gain).unsqueeze(1)).T + bias + offset
    term = Term(a, (b * (1 + gain[2:6]).unsqueeze(1)).T.contiguous(), 2, 0.5)
    delta = ModuleDelta([term], gain=gain, offset=offset)
    out = hidden @ weight.T + bias
    torch.testing.assert_close(delta.changed(out.clone(), hidden, bias), expected, atol=1e-5, rtol=1e-5)
    assert delta.nbytes == term.nbytes + 80


def test_a_whole_matrix_takes_the_place_of_the_modules() -> None:
    whole, bias, hidden = torch.randn(10, 6), torch.randn(10), torch.randn(4, 6)
    delta = ModuleDelta(whole=whole)
    torch.testing.assert_close(delta.changed(torch.zeros(4, 10), hidden, bias), hidden @ whole.T + bias)


def test_terms_keep_the_dtype_of_what_they_are_added_to() -> None:
    term = Term(torch.randn(2, 6).bfloat16(), torch.randn(2, 8).bfloat16(), 0, 1.0)
    assert add_terms(torch.zeros(3, 8).bfloat16(), torch.randn(3, 6).bfloat16(), [term]).dtype == torch.bfloat16
