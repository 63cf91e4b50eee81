"""What one adapter adds to one module's rows, against the formula written out."""

from __future__ import annotations

import torch

from inference.modelling.adapters.deltas import ModuleDelta, Term, add_terms


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_a_change_is_gain_offset_and_terms_of_their_rows() -> None:
    weight, bias, hidden = draw(6, 4), draw(6), draw(3, 4)
    a, b, gain, offset = draw(2, 4), draw(2, 3), draw(6, 1)[:, 0], draw(6, 2)[:, 0]
    delta = ModuleDelta([Term(a, b, 2, 0.5)], gain, offset)
    out = hidden @ weight.T + bias
    expected = (1 + gain) * (out - bias) + bias + offset
    expected[:, 2:5] += 0.5 * (hidden @ a.T) @ b
    torch.testing.assert_close(delta.changed(out.clone(), hidden, bias), expected)


def test_a_whole_matrix_stands_in_the_place_of_the_modules() -> None:
    weight, bias, hidden = draw(6, 4), draw(6), draw(3, 4)
    found = ModuleDelta(whole=weight).changed(draw(3, 6), hidden, bias)
    torch.testing.assert_close(found, hidden @ weight.T + bias)


def test_terms_add_up_and_count_their_bytes() -> None:
    hidden, one, two = draw(5, 4), Term(draw(2, 4), draw(2, 6), 0, 1.0), Term(draw(1, 4), draw(1, 2), 4, -2.0)
    found = add_terms(torch.zeros(5, 6), hidden, [one, two])
    expected = one.of(hidden)
    expected[:, 4:] += two.of(hidden)
    torch.testing.assert_close(found, expected)
    delta = ModuleDelta([one], gain=torch.zeros(6), experts={("up_proj", 1): [two]})
    assert delta.nbytes == 4 * (2 * 4 + 2 * 6 + 6 + 4 + 2)
