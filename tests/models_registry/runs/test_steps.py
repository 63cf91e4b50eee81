"""Checkpoints of a run are found in order, and none is complete before its content is."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from inference.demo.paths import PREBUILT_DIRECTORY
from inference.errors import InvalidRequest
from models_registry.runs import steps
from models_registry.runs.steps import list_steps, look_at, read_digest
from tests.models_registry.runs.trainers import hugging_face_step, oxidizr_run, oxidizr_step

BYTES = (PREBUILT_DIRECTORY / "model.safetensors").read_bytes()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return oxidizr_run(tmp_path / "nano")


def only(directory: Path) -> steps.StepFiles:
    (step,) = list_steps(directory)
    return step


def problem_of(directory: Path) -> str:
    return look_at(only(directory), directory).problem


def test_checkpoints_of_both_trainers_come_in_the_order_of_training(run: Path) -> None:
    for number in (1000, 200, 30):
        oxidizr_step(run, number)
    oxidizr_step(run, None)
    hugging_face_step(run, 400)
    shutil.copy(PREBUILT_DIRECTORY / "model.safetensors", run / "model.safetensors")
    for name in ("checkpoint-last", "checkpoint-", "runs", "checkpoint-7x"):
        (run / name).mkdir()
    (run / "notes_step_x.safetensors").write_bytes(b"")
    (run / "checkpoint-5").write_bytes(b"no directory")
    found = list_steps(run)
    assert [step.number for step in found] == [30, 200, 400, 1000, None, None]
    assert [step.label for step in found][2:5] == ["step-400", "step-1000", "final"]
    assert [step.name for step in found][-2:] == [".", "nano_64_1m_f32_final.safetensors"]
    assert [look_at(step, run).problem for step in found] == [""] * 6


def test_names_that_no_row_can_hold_are_left_out(run: Path) -> None:
    for name in (b"\xff_step_1.safetensors", b"a\x1b[2J_step_2.safetensors", b"\xfe_final.safetensors"):
        (run / os.fsdecode(name)).write_bytes(BYTES)
    oxidizr_step(run, 3)
    assert [step.number for step in list_steps(run)] == [3]


def test_too_many_are_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        oxidizr_step(run, number)
    monkeypatch.setattr(steps, "MAX_STEPS", 2)
    with pytest.raises(InvalidRequest, match="has 3 checkpoints; at most 2 are watched"):
        list_steps(run)
    monkeypatch.setattr(steps, "MAX_DIRECTORY_ENTRIES", 3)
    with pytest.raises(InvalidRequest, match="more than 3 entries"):
        list_steps(run)


@pytest.mark.parametrize("share", [0.0, 1e-6, 0.001, 0.5, 0.9999])
def test_a_part_of_a_file_is_not_complete(run: Path, share: float) -> None:
    file = oxidizr_step(run, 1)
    file.write_bytes(BYTES[: int(share * len(BYTES))])
    assert problem_of(run)
    file.write_bytes(BYTES + b"\0")
    assert problem_of(run)
    file.write_bytes(BYTES)
    assert problem_of(run) == ""


def test_each_prefix_of_a_small_file_is_not_complete(run: Path) -> None:
    file = oxidizr_step(run, 1)
    save_file(
        {"embed_tokens.weight": load_file(PREBUILT_DIRECTORY / "model.safetensors")["norm.weight"][:9].clone()}, file
    )
    content = file.read_bytes()
    for length in range(len(content)):
        file.write_bytes(content[:length])
        assert problem_of(run), length


def test_a_file_that_has_its_length_first_is_not_complete(run: Path) -> None:
    file = oxidizr_step(run, 1)
    with file.open("wb") as opened:
        opened.truncate(len(BYTES))
        opened.write(BYTES[: 1 << 16])
        opened.seek(1 << 17)
        opened.write(BYTES[1 << 17 :])
        opened.flush()
        if os.lseek(opened.fileno(), 0, os.SEEK_HOLE) == len(BYTES):
            pytest.skip("this file system has no holes")
        assert "but from byte 65536 on some were never written" in problem_of(run)
        opened.seek(0)
        opened.write(BYTES)
        opened.flush()
        assert problem_of(run) == ""


def test_an_adapter_is_no_checkpoint(run: Path) -> None:
    (run / "checkpoint-5").mkdir()
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        (run / "checkpoint-5" / name).write_bytes(BYTES)
    assert "is an adapter and no model" in problem_of(run)


def test_config_json_has_to_be_whole(run: Path) -> None:
    oxidizr_step(run, 1)
    config = (run / "config.json").read_bytes()
    (run / "config.json").write_bytes(config[:40])
    assert problem_of(run).startswith("config.json is not JSON")
    (run / "config.json").unlink()
    assert problem_of(run) == "there is no config.json yet."


def test_all_shards_have_to_be_there_with_their_tensors(run: Path) -> None:
    place = hugging_face_step(run, 5, num_shards=3)
    assert problem_of(run) == ""
    last = place / "model-00003-of-00003.safetensors"
    content = last.read_bytes()
    last.write_bytes(content[:-1])
    assert "model-00003-of-00003.safetensors" in problem_of(run)
    last.unlink()
    assert problem_of(run).startswith("1 of 3 weight files are missing: model-00003-of-00003.safetensors")
    last.write_bytes((place / "model-00001-of-00003.safetensors").read_bytes())
    assert "has no tensor" in problem_of(run)
    last.write_bytes(content)
    index = place / "model.safetensors.index.json"
    text = index.read_text()
    index.write_text(text[:100])
    assert problem_of(run).startswith("model.safetensors.index.json is not JSON")
    index.unlink()  # the trainer writes it last: by their names the shards are known, too
    assert problem_of(run) == ""
    index.write_text(text)
    assert problem_of(run) == ""


@pytest.mark.parametrize("name", ["tokenizer.json", "trainer_state.json", "tokenizer_config.json"])
def test_files_beside_the_weights_have_to_be_whole(run: Path, name: str) -> None:
    place = hugging_face_step(run, 5)
    (place / name).write_text('{"version": "1.0", "trunc')
    assert problem_of(run).startswith(f"{name} is not JSON")
    (place / name).write_text(json.dumps({"version": "1.0"}))
    assert problem_of(run) == ""


def test_an_empty_directory_is_not_complete(run: Path) -> None:
    (run / "checkpoint-3").mkdir()
    assert problem_of(run).startswith("There are no weights in")


def test_pickles_are_never_read(run: Path) -> None:
    place = run / "checkpoint-3"
    place.mkdir()
    (place / "pytorch_model.bin").write_bytes(b"\x80")
    assert "is a pickle by its name" in problem_of(run)


def test_a_file_that_comes_later_makes_another_look(run: Path) -> None:
    place = hugging_face_step(run, 5)
    step = only(run)
    first = look_at(step, run)
    assert look_at(step, run) == first
    (place / "optimizer.pt").write_bytes(b"half")
    second = look_at(step, run)
    assert (second.everything != first.everything, second.read) == (True, first.read)
    (place / "tokenizer.json").write_text("{}")
    assert look_at(step, run).read != first.read
    assert read_digest(step) == look_at(step, run).read


def test_logs_beside_a_file_make_no_other_look(run: Path) -> None:
    oxidizr_step(run, 1)
    first = look_at(only(run), run)
    (run / "train.log").write_text("loss 3.1")
    os.utime(run / "train.log", (1, 1))
    assert look_at(only(run), run) == first


def test_the_same_length_written_again_is_another_look(run: Path) -> None:
    file = oxidizr_step(run, 1)
    first = look_at(only(run), run)
    file.write_bytes(BYTES)
    assert look_at(only(run), run).read != first.read


def test_links_out_of_the_run_are_refused(run: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.safetensors"
    elsewhere.write_bytes(BYTES)
    (run / "nano_64_1m_f32_step_1.safetensors").symlink_to(elsewhere)
    assert problem_of(run) == (
        "nano_64_1m_f32_step_1.safetensors is a link out of the run's directory; such files aren't read."
    )


def test_what_is_gone_has_no_digest(run: Path) -> None:
    file = oxidizr_step(run, 1)
    step = only(run)
    file.unlink()
    assert (read_digest(step), look_at(step, run).read) == ("", "")
