"""Comparing forms: more bits lose less, levels beat even steps, and offsets are fitted."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from bench.forms import candidates, loss, matrices, rounded_with_offsets
from inference.modelling.quantisation import OWN_FORMS, Form

NORMAL = [torch.randn(32, 256, generator=torch.Generator().manual_seed(0))]


def test_levels_beat_even_steps_and_more_bits_lose_less() -> None:
    losses = {name: loss(NORMAL, form) for name, form in OWN_FORMS.items() if name != "int8"}
    assert list(losses.values()) == sorted(losses.values(), reverse=True)
    for name in ("int2", "int3", "int4"):
        form = OWN_FORMS[name]  # type: ignore[index]
        assert losses[name] < loss(NORMAL, dataclasses.replace(form, levels=(), zero=1 << form.bits - 1))


@pytest.mark.parametrize("bits", [2, 3, 5, 6])
def test_offsets_are_fitted(bits: int) -> None:
    form = Form(bits, 64, has_offset=True)
    shifted = [NORMAL[0] + 3]
    assert loss(shifted, form) < loss(shifted, Form(bits, 64, zero=1 << bits - 1)) - 1
    assert rounded_with_offsets(torch.ones(2, 64), form).equal(torch.ones(2, 64))


def test_every_form_is_compared_in_every_group() -> None:
    assert {(form.bits, form.group, form.has_offset) for form in candidates()} == {
        (bits, group, has_offset) for bits in (2, 3, 4, 5, 6) for group in (32, 64, 128) for has_offset in (False, True)
    }


def test_rows_of_matrices_are_read(tmp_path: Path) -> None:
    save_file({"a": torch.ones(100, 128), "b": torch.ones(8), "c": torch.ones(100, 64)}, tmp_path / "m.safetensors")
    assert [found.shape for found in matrices(tmp_path / "m.safetensors")] == [(64, 128)]
