"""Written checkpoints hold the values that were planned, bit by bit, with the native kernels and without."""

from __future__ import annotations

import errno
import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from inference.errors import BlazrError, CorruptCheckpoint, InvalidRequest
from inference.llm.checkpoint_writing import WEIGHTS_FILE, check_target
from inference.llm.quantising.parts import KINDS, fixed_bytes
from inference.llm.quantising.writing import PLAN_FILE, write_checkpoint
from inference.modelling.backends.native import library
from inference.modelling.layers.coded import JoinedRows, packed_rows, quantised_rows
from inference.modelling.quantisation import coded_parameters, kept_kinds, weights_bytes
from inference.modelling.weights.loader import load_network
from models_registry.detection.inspection import Inspection
from tests.inference.llm.quantising.checkpoints import inspect, parts_of, source_of, tensors_of
from tests.inference.modelling.huggingface import make_checkpoint
from tests.inference.modelling.test_quantisation import CONFIGS


def write(found: Inspection, target: Path, first: int = 0) -> tuple[dict[str, torch.Tensor], int]:
    """All parts but one, each in another form, from the form of a number on; returns the values that were written."""
    network = load_network(found.spec, found.weight_paths, dtype=torch.float32)
    parameters = dict(network.named_parameters())
    *parts, left = parts_of(found)
    form_of = dict(zip(parts, itertools.islice(itertools.cycle(KINDS), first, first + len(parts)), strict=True))
    forms = {name: form for part, form in form_of.items() for name in part.parameters}
    size = write_checkpoint(
        target,
        source_of(found),
        tensors_of(found),
        found.spec,
        forms,
        lambda name: parameters[name].data,
        measured={},
        plan={"curve": []},
    )
    expected = fixed_bytes([*parts, left], tensors_of(found).tensors)
    expected += sum(part.sizes[form] for part, form in form_of.items())
    assert size <= expected + left.stored_bytes
    rows = {name: quantised_rows(parameters[name].data, form) for name, form in forms.items()}
    return {
        name: packed_rows(codes, scales, forms[name], parameters[name].shape[-1]).dense(torch.float32)
        for name, (codes, scales) in rows.items()
    }, size


def held(network: nn.Module, name: str) -> torch.Tensor:
    path, _, leaf = name.rpartition(".")
    layer = network.get_submodule(path)
    packed = layer.packed[leaf] if isinstance(layer.packed, dict) else layer.packed
    shape = quantised_shape(network, name)
    if len(shape) == 3:
        return torch.stack([packed.matrix(number).dense(torch.float32) for number in range(shape[0])])
    if isinstance(packed, JoinedRows):
        return torch.cat([part.dense(torch.float32) for part in packed.parts])
    return packed.dense(torch.float32)


def quantised_shape(network: nn.Module, name: str) -> tuple[int, ...]:
    return network.spec.parameter_shapes()[name]  # type: ignore[union-attr, operator]


@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("first", range(0, len(KINDS), 2))
def test_the_loaded_values_are_the_written_ones(
    found: Inspection, first: int, is_native: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_native:
        monkeypatch.setattr(library, "is_available", lambda: False)
    written, size = write(found, tmp_path / "out", first)
    again = inspect(tmp_path / "out")
    assert Inspection.from_dict(again.to_dict()) == again
    assert again.spec.dtype == found.spec.dtype
    assert again.spec.layers == found.spec.layers
    assert {*kept_kinds(again.spec), *coded_parameters(again.spec, "none")} == written.keys()
    assert size == again.size_bytes
    network = load_network(again.spec, again.weight_paths, dtype=torch.bfloat16, pack=True, quant="none")
    for name, expected in written.items():
        assert torch.equal(held(network, name), expected), name
    plain = dict(load_network(found.spec, found.weight_paths, dtype=torch.bfloat16).named_parameters())
    for name, parameter in network.named_parameters():
        if name not in written and parameter.numel():
            assert torch.equal(parameter, plain[name]), name
    assert weights_bytes(again.spec, "bfloat16", "none") < weights_bytes(found.spec, "bfloat16", "none")


def test_quant_is_for_what_the_files_hold_in_floats(found: Inspection, tmp_path: Path) -> None:
    written, _ = write(found, tmp_path / "out")
    again = inspect(tmp_path / "out")
    network = load_network(again.spec, again.weight_paths, dtype=torch.float32, quant="int4")
    for name, expected in written.items():
        assert torch.equal(held(network, name), expected), name


def test_config_and_plan_lie_beside(found: Inspection, tmp_path: Path) -> None:
    write(found, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "blazr"
    assert config["model_type"] == found.spec.model_type
    assert json.loads((tmp_path / "out" / PLAN_FILE).read_text()) == {"curve": []}


def test_nothing_is_left_of_a_write_that_fails(found: Inspection, tmp_path: Path) -> None:
    def broken(name: str) -> torch.Tensor:
        raise InvalidRequest("no")

    forms = {name: "int8" for part in parts_of(found) for name in part.parameters}
    with pytest.raises(InvalidRequest):
        write_checkpoint(
            tmp_path / "out", source_of(found), tensors_of(found), found.spec, forms, broken, measured={}, plan={}
        )  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    with pytest.raises(InvalidRequest, match="isn't an empty directory"):
        write_checkpoint(
            tmp_path / "full", source_of(found), tensors_of(found), found.spec, {}, broken, measured={}, plan={}
        )


def test_files_of_a_killed_process_are_removed_and_those_of_a_running_one_are_not(
    found: Inspection, tmp_path: Path
) -> None:
    writer = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    partial = tmp_path / "out" / f".partial-{writer.pid}"
    partial.mkdir(parents=True)
    (partial / "model.safetensors").touch()
    with pytest.raises(InvalidRequest, match="isn't an empty directory"):
        check_target(tmp_path / "out", 1)
    writer.kill()
    writer.communicate()
    write(found, tmp_path / "out")
    assert not list((tmp_path / "out").glob(".*"))
    (tmp_path / "notes" / ".partial-notes").mkdir(parents=True)
    with pytest.raises(InvalidRequest, match="isn't an empty directory"):
        check_target(tmp_path / "notes", 1)


def test_an_empty_directory_is_filled_even_if_it_is_the_current_one(
    found: Inspection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(found, Path())
    assert inspect(tmp_path).spec.layers == found.spec.layers
    assert not list(tmp_path.glob(".*"))


def test_a_target_that_can_not_be_written_is_refused_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_target(tmp_path / "a" / "b", 1)
    (tmp_path / "file").touch()
    for name in ("file", "file/out", "n" * 300):
        with pytest.raises(InvalidRequest, match="name another one with -o"):
            check_target(tmp_path / name, 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(8 << 20, 7 << 20, 1 << 20))
    check_target(tmp_path / "a" / "b", 1 << 20)
    with pytest.raises(InvalidRequest, match=r"has 1.0 MiB free, the checkpoint takes 2.0 MiB; .* with -o"):
        check_target(tmp_path / "a" / "b", 2 << 20)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_is_one_error_and_leaves_nothing(
    found: Inspection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InvalidRequest, match="out can't be written: No space left on device; name another one with -o"):
        write(found, tmp_path / "a" / "out")
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_gone_is_not_laid_to_the_target(found: Inspection, tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(found.directory, copied)
    source = inspect(copied)
    (copied / WEIGHTS_FILE).rename(copied / "elsewhere")
    with pytest.raises(CorruptCheckpoint, match=f"copied/{WEIGHTS_FILE} can't be read: No such file"):
        write_checkpoint(
            tmp_path / "out",
            source_of(source),
            tensors_of(source),
            source.spec,
            {},
            {}.__getitem__,
            measured={},
            plan={},
        )
    assert not (tmp_path / "out").exists()


def test_the_copy_of_a_tied_head_is_left_out(tmp_path: Path) -> None:
    directory, _ = make_checkpoint(CONFIGS["llama"](), tmp_path / "made")
    path = directory / WEIGHTS_FILE
    tensors = load_file(path)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, path, metadata={"format": "pt"})
    source = inspect(directory)
    assert source.spec.tie_word_embeddings
    write(source, tmp_path / "out")
    assert not any(name.startswith("lm_head") for name in inspect(tmp_path / "out").tensors)


def test_a_truncated_file_is_refused(found: Inspection, tmp_path: Path) -> None:
    write(found, tmp_path / "out")
    path = tmp_path / "out" / WEIGHTS_FILE
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(BlazrError, match=WEIGHTS_FILE):
        inspect(tmp_path / "out")
