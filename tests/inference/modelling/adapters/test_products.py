"""The native operator against the deltas in PyTorch."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.adapters.deltas import ModuleDelta, Term
from inference.modelling.adapters.products import DeltaTable
from inference.modelling.backends.native import library
from inference.modelling.forward_batch import AdapterRows

pytestmark = pytest.mark.skipif(not library.is_available(), reason="the native library isn't built")


def delta(
    generator: torch.Generator, inputs: int, outputs: int, rank: int, dtype: torch.dtype, *, shifts: bool
) -> ModuleDelta:
    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    half = outputs // 2
    terms = [
        Term(random(rank, inputs).to(dtype), random(rank, half).to(dtype), 0, 0.7),
        Term(random(rank + 1, inputs).to(dtype), random(rank + 1, outputs - half).to(dtype), half, 1.5),
    ]
    found = ModuleDelta(terms)
    if shifts:
        found.gain, found.offset = 0.2 * random(outputs), random(outputs)
    return found


def tables(inputs: int, outputs: int, rank: int, dtype: torch.dtype, *, shifts: bool) -> list[DeltaTable]:
    found = [DeltaTable(3, 2, is_native=is_native) for is_native in (True, False)]
    for slot in (1, 3):
        for table in found:
            generator = torch.Generator().manual_seed(slot)
            table.put(slot, delta(generator, inputs, outputs, rank, dtype, shifts=shifts))
    return found


SLOTS = torch.tensor([0, 1, 1, 1, 1, 1, 1, 3, 1, 3, 3, 0, 2, 3])


@pytest.mark.parametrize("shifts", [False, True])
@pytest.mark.parametrize(
    ("inputs", "outputs", "rank"), [(32, 48, 4), (33, 21, 1), (129, 70, 7), (64, 64, 16), (40, 96, 256)]
)
@pytest.mark.parametrize(
    ("dtype", "result"),
    [(torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16), (torch.bfloat16, torch.float32)],
)
def test_native_and_pytorch_agree(
    inputs: int, outputs: int, rank: int, dtype: torch.dtype, result: torch.dtype, shifts: bool
) -> None:
    native, plain = tables(inputs, outputs, rank, dtype, shifts=shifts)
    generator = torch.Generator().manual_seed(9)
    hidden = torch.randn(len(SLOTS), inputs, generator=generator).to(dtype)
    out = torch.randn(len(SLOTS), outputs, generator=generator).to(result)
    bias = torch.randn(outputs, generator=generator).to(dtype) if shifts else None
    rows = AdapterRows(SLOTS, (1, 2, 3))
    found = native.add(out.clone(), hidden, rows, bias).float()
    wanted = plain.add(out.clone(), hidden, rows, bias).float()
    tolerance = 2e-4 if result == torch.float32 and dtype == torch.float32 else 0.3
    if dtype == torch.bfloat16:
        # PyTorch rounds A x on the way; the operator doesn't.
        tolerance = 0.02 * wanted.abs().max().item()
    torch.testing.assert_close(found, wanted, atol=tolerance, rtol=1e-4)
    untouched = (SLOTS == 0) | (SLOTS == 2)
    assert torch.equal(found[untouched], out.float()[untouched])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rows_result_does_not_depend_on_the_others(dtype: torch.dtype) -> None:
    native, _ = tables(65, 37, 6, dtype, shifts=True)
    hidden = torch.randn(len(SLOTS), 65, generator=torch.Generator().manual_seed(2)).to(dtype)
    out = torch.randn(len(SLOTS), 37, generator=torch.Generator().manual_seed(3)).to(dtype)
    together = native.add(out.clone(), hidden, AdapterRows(SLOTS, (1, 2, 3)), None)
    for row in range(len(SLOTS)):
        alone = native.add(
            out[row : row + 1].clone(), hidden[row : row + 1], AdapterRows(SLOTS[row : row + 1], (1, 3)), None
        )
        assert torch.equal(alone[0], together[row])


def test_a_slot_that_was_taken_away_adds_nothing() -> None:
    native, _ = tables(32, 16, 4, torch.float32, shifts=True)
    out, hidden = torch.randn(2, 16), torch.randn(2, 32)
    native.take(1)
    rows = AdapterRows(torch.tensor([1, 1]), (1,))
    assert torch.equal(native.add(out.clone(), hidden, rows, None), out)
    with pytest.raises(RuntimeError, match="no slot 9"):
        native.add(out.clone(), hidden, AdapterRows(torch.tensor([9, 1]), (1,)), None)
