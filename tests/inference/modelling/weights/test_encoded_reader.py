"""EncodedReader: pieces of any size, in any order and from several threads, are the weight's bytes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from inference.errors import MissingTensor, UnsupportedFormat
from inference.modelling.layers.coded import quantise_to_codes, quantised_rows
from inference.modelling.quantisation import OWN_FORMS, FormName
from inference.modelling.weights import encoded_reader
from inference.modelling.weights.encoded_reader import encoded_readers
from inference.modelling.weights.stored_tensor import CodedPlace
from tests.inference.modelling.encodings.formats import FORMATS, mxfp4_experts
from tests.inference.modelling.encodings.tables import decoded_table


class Stored:
    """A tensor in memory that is read like one of a file."""

    def __init__(self, tensor: torch.Tensor, start: int) -> None:
        self.file, self.start, self.shape = "a", start, tuple(tensor.shape)
        self.stored: torch.dtype | None = tensor.dtype
        self._content = tensor.contiguous().flatten().view(torch.uint8)
        self.size, self.num_reads = len(self._content), 0

    def fill(self, target: memoryview, begin: int) -> None:
        self.num_reads += 1
        torch.frombuffer(target, dtype=torch.uint8).copy_(self._content[begin : begin + len(target)])


def read(tensors: dict[str, torch.Tensor], config: object, dtype: torch.dtype, step: int) -> tuple[torch.Tensor, int]:
    """The decoded weight, read piece by piece, and how often the first part was read."""
    items = decoded_table(tensors, config).encoded  # type: ignore[arg-type]
    stored = {name: Stored(tensor, number) for number, (name, tensor) in enumerate(tensors.items())}
    (reader,) = encoded_readers(items, stored, dtype).values()
    content = torch.zeros(reader.size, dtype=torch.uint8)
    target = memoryview(content.numpy())
    begins = np.random.default_rng(0).permutation(range(0, reader.size, step)).tolist()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda begin: reader.fill(target[begin : begin + step], begin), begins))
    return content.view(dtype).view(reader.shape), stored[next(iter(items[0].parts.values()))].num_reads


@pytest.mark.parametrize("name", ["gptq-4", "awq", "fp8-blocks", "compressed-w3", "nf4-nested", "hqq-3"])
@pytest.mark.parametrize("step", [100, 1 << 12, 1 << 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pieces_are_the_values(name: str, step: int, dtype: torch.dtype) -> None:
    made, values = FORMATS[name].make(np.random.default_rng(1), 64, 128)
    found, num_reads = read({f"x.{leaf}": part for leaf, part in made.items()}, FORMATS[name].config, dtype, step)
    expected = torch.from_numpy(values)
    rounding = 2e-6 if dtype == torch.float32 else 2**-8
    torch.testing.assert_close(found.float(), expected, rtol=rounding, atol=2e-6 * float(expected.abs().max()))
    assert num_reads == 1


def test_large_entries_are_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made, values = mxfp4_experts(np.random.default_rng(1), 3, 32, 64)
    tensors = {f"x.down_proj{leaf}": part for leaf, part in made.items()}
    monkeypatch.setattr(encoded_reader, "MAX_ROW_BYTES", 100)
    for step in (1000, 1 << 14):
        found, _ = read(tensors, {"quant_method": "mxfp4"}, torch.float32, step)
        assert torch.equal(found, torch.from_numpy(values))


@pytest.mark.parametrize("name", ["int2", "int3", "int5", "int6"])
def test_rows_are_read_in_their_codes(name: FormName) -> None:
    weight = torch.randn(3, 40, 72)
    codes, scales = quantised_rows(weight, name)
    tensors = {"x.weight.codes": codes, "x.weight.scales": scales}
    config = {"quant_method": "blazr", "version": 1, "stored_dtype": "bfloat16", "tensors": {"x.weight": name}}
    items = decoded_table(tensors, config).encoded
    stored = {key: Stored(tensor, number) for number, (key, tensor) in enumerate(tensors.items())}
    (reader,) = encoded_readers(items, stored, torch.bfloat16).values()
    assert isinstance(reader, CodedPlace)
    found: dict[int, torch.Tensor] = {}
    for begin in (96, 0, 32, 64):
        rows = reader.codes(begin, min(32, 120 - begin))
        assert rows.form == OWN_FORMS[name]
        found[begin] = rows.dense(torch.float32)
    expected = quantise_to_codes(weight, OWN_FORMS[name]).dense(torch.float32)
    assert torch.equal(torch.cat([found[begin] for begin in sorted(found)]), expected.flatten(0, 1))
    assert [one.num_reads for one in stored.values()] == [1, 1]
    reader.codes(0, 1)
    assert [one.num_reads for one in stored.values()] == [2, 2], "codes that were handed out aren't kept"


def test_parts_have_to_be_there() -> None:
    made, _ = FORMATS["awq"].make(np.random.default_rng(1), 64, 128)
    tensors = {f"x.{leaf}": part for leaf, part in made.items()}
    items = decoded_table(tensors, None).encoded
    stored = {name: Stored(tensor, 0) for name, tensor in tensors.items()}
    stored["x.qzeros"].stored = None
    with pytest.raises(UnsupportedFormat, match=r"x\.qzeros"):
        encoded_readers(items, stored, torch.float32)
    del stored["x.qzeros"]
    with pytest.raises(MissingTensor, match=r"x\.qzeros"):
        encoded_readers(items, stored, torch.float32)
