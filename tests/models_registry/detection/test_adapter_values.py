"""Values that are no numbers are found by their bits, in each dtype, as torch finds them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inference.errors import CorruptCheckpoint
from models_registry.detection import adapter_values
from models_registry.detection.adapter_values import check_values
from models_registry.detection.xlora_files import read_files
from tests.inference.llm.adapter_writing import factors, write_adapter, write_xlora

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
NAME = "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [0, 5, -1])
def test_each_dtype_has_its_bits(
    tmp_path: Path, dtype: torch.dtype, bad: float, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_values, "_PIECE_BYTES", 64)
    tensors = {name: tensor.to(dtype) for name, tensor in factors(1).items()}
    least, largest = torch.finfo(dtype).tiny, torch.finfo(dtype).max
    tensors[NAME].view(-1)[:4] = torch.tensor([largest, -largest, least, -0.0], dtype=dtype)
    check_values(read_files(write_adapter(tmp_path / "fine", tensors=tensors)))
    tensors[NAME].view(-1)[place] = bad
    with pytest.raises(CorruptCheckpoint, match="infinite or no numbers, as after a training") as caught:
        check_values(read_files(write_adapter(tmp_path / "bad", tensors=tensors)))
    assert caught.value.param == NAME


def test_any_bits_are_judged_as_torch_judges_them(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    for number in range(60):
        bits = torch.randint(-(1 << 15), 1 << 15, (1 + number % 3,), dtype=torch.int16, generator=generator)
        for dtype in (torch.float16, torch.bfloat16):
            value = bits.view(dtype)
            assert adapter_values._is_finite(value.view(torch.uint8).numpy().tobytes(), _name(dtype)) == bool(
                value.isfinite().all()
            )


def _name(dtype: torch.dtype) -> str:
    return {torch.float16: "F16", torch.bfloat16: "BF16"}[dtype]


def test_the_classifier_and_the_adapters_of_an_xlora_are_read(tmp_path: Path) -> None:
    path = write_xlora(tmp_path / "mix")
    check_values(read_files(path))
    broken = factors(1)
    broken[NAME][0, 0] = torch.nan
    write_adapter(path / "adapters" / "adapter_1", tensors=broken)
    with pytest.raises(CorruptCheckpoint, match="infinite or no numbers"):
        check_values(read_files(path))


def test_integers_have_no_such_values(tmp_path: Path) -> None:
    tensors = factors(1) | {"numbers": torch.full((4,), -1)}
    check_values(read_files(write_adapter(tmp_path / "sql", tensors=tensors)))
