"""TensorFiles: what is read ahead is what is in the file, whatever the order, dtypes and sharing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from inference.errors import CorruptCheckpoint, MissingTensor
from inference.modelling.weights import files as module
from inference.modelling.weights.files import TensorFiles

SHAPES = {"a": (3, 5), "b": (4, 5), "c": (1 << 20, 3), "d": (7,), "empty": (0, 5), "scalar": ()}


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    made = {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in SHAPES.items()}
    return made | {"wide": torch.randn(6, generator=generator)}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, torch.Tensor]) -> Path:
    path = tmp_path_factory.mktemp("files") / "model.safetensors"
    save_file(tensors, path)
    return path


def test_groups_are_read_in_order(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    groups = [["c"], ["a", "b"], ["wide", "d"], ["scalar"], ["empty"], ["c"], ["c"], ["b", "a"], ["a"]]
    with TensorFiles([path], groups) as files:
        for names in groups:
            files.move()
            for name in names:
                assert torch.equal(files.read(name), tensors[name])
                assert files.shape_of(name) == tensors[name].shape


def test_tensors_of_one_dtype_lie_behind_one_another(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    with TensorFiles([path], [["b", "a"], ["a", "wide"], ["a", "a"]]) as files:
        files.move()
        joined = files.read_joined(["b", "a"])
        assert joined is not None
        assert torch.equal(joined, torch.cat((tensors["b"].flatten(), tensors["a"].flatten())))
        assert files.read_joined(["a", "b"]) is None
        files.move()
        assert files.read_joined(["a", "wide"]) is None
        files.move()
        assert files.read_joined(["a", "a"]) is None


def test_what_is_kept_is_not_written_again(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    with TensorFiles([path], [["c"], ["a"], ["c"], ["d"], ["c"]]) as files:
        files.move()
        kept = files.read("c")
        files.keep()
        for _ in range(4):
            files.move()
        again = files.read("c")
        assert again.data_ptr() != kept.data_ptr()
        kept.zero_()
        assert torch.equal(again, tensors["c"])


def test_buffers_are_used_again(path: Path) -> None:
    """c is large enough for a buffer of its own; its second reading takes the first one's place."""
    with TensorFiles([path], [["c"], ["a"], ["d"], ["b"], ["c"]]) as files:
        places = set()
        files._most_ahead = 1
        for name in ("c", "a", "d", "b", "c"):
            files.move()
            if name == "c":
                places.add(files.read(name).data_ptr())
        assert len(places) == 1


def test_missing_tensor_is_named(path: Path) -> None:
    with TensorFiles([path], [["a", "nothing"]]) as files:
        files.move()
        assert files.read("a").shape == (3, 5)
        with pytest.raises(MissingTensor, match="tensor nothing is missing"):
            files.read("nothing")


def test_file_cut_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(1 << 20), "b": torch.ones(1 << 20)}, path)
    monkeypatch.setattr(module, "AHEAD_BYTES", 1)
    with TensorFiles([path], [["a"], ["a"], ["b"]]) as files:
        files.move()
        files.read("a")
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)
        files.move()
        files.move()
        with pytest.raises(CorruptCheckpoint, match=r"model\.safetensors ends before its tensors do"):
            files.read("b")


class Collected:
    """A sink that keeps what it gets."""

    def __init__(self, piece_bytes: int, total: int) -> None:
        self.piece_bytes = piece_bytes
        self.bytes = torch.zeros(total, dtype=torch.uint8)
        self.sizes: set[int] = set()

    def take(self, values: torch.Tensor, begin: int) -> None:
        self.sizes.add(len(values))
        self.bytes[begin : begin + len(values)] = values


def test_a_sink_gets_every_byte_of_its_group(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    total = tensors["c"].nbytes + tensors["a"].nbytes
    sink = Collected(1 << 16, total)
    with TensorFiles([path]) as files:
        files.expect([["b"], ["c", "a"], ["a"]], {1: sink})
        files.move()
        assert torch.equal(files.read("b"), tensors["b"])
        files.move()
        files.finish()
        files.move()
        assert torch.equal(files.read("a"), tensors["a"]), "it is read again, into a buffer"
    assert torch.equal(sink.bytes.view(torch.bfloat16), torch.cat((tensors["c"].flatten(), tensors["a"].flatten())))
    assert sink.sizes == {1 << 16, tensors["c"].nbytes % (1 << 16), tensors["a"].nbytes} - {0}


def test_what_a_sink_raises_is_raised(path: Path) -> None:
    class Failing(Collected):
        def take(self, values: torch.Tensor, begin: int) -> None:
            raise MemoryError("full")

    with TensorFiles([path]) as files:
        files.expect([["c"], ["a"]], {0: Failing(1 << 20, 0)})
        files.move()
        with pytest.raises(MemoryError, match="full"):
            files.finish()
