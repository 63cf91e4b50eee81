"""ResidualStream: what is added, when, and that a copy is its own."""

from __future__ import annotations

import torch

from inference.modelling.layers.norm import Norm
from inference.modelling.residual_stream import ResidualStream
from inference.modelling.specs.parts import NormSpec


def weightless() -> Norm:
    return Norm(NormSpec(weightless=True, eps=0.0), 8)


def test_a_result_is_added_by_the_next_norm() -> None:
    first, mixed = torch.randn(3, 8), torch.randn(3, 8)
    stream = ResidualStream(first.clone())
    stream.leave(mixed, 0.5)
    wanted = first + 0.5 * mixed
    normed = stream.enter(weightless())
    torch.testing.assert_close(normed, wanted * wanted.square().mean(-1, keepdim=True).rsqrt())
    torch.testing.assert_close(stream.enter(None), wanted)  # the norm is not part of the stream


def test_a_stream_can_go_on_from_the_norm() -> None:
    stream = ResidualStream(torch.randn(3, 8))
    normed = stream.enter(weightless(), replaces=True)
    assert stream.enter(None) is normed


def test_a_factor_takes_what_is_still_to_be_added() -> None:
    first, mixed = torch.randn(3, 8), torch.randn(3, 8)
    stream = ResidualStream(first.clone())
    stream.leave(mixed, 1.0)
    stream.scale(torch.tensor([2.0]))
    torch.testing.assert_close(stream.enter(None), 2 * (first + mixed))


def test_a_copy_goes_on_alone() -> None:
    first, mixed = torch.randn(3, 8), torch.randn(3, 8)
    stream = ResidualStream(first.clone())
    stream.leave(mixed, 1.0)
    copied = stream.copy()
    copied.scale(torch.tensor([0.0]))
    assert not copied.enter(None).any()
    torch.testing.assert_close(stream.enter(None), first + mixed)
