"""Which files of a directory are taken, and what is said when none can be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inference.errors import CheckpointError, CorruptCheckpoint, MissingTensor, UnsupportedFormat
from models_registry.detection.directory import PICKLE_SUFFIXES, resolve


def touch(directory: Path, *names: str) -> Path:
    directory.mkdir(exist_ok=True)
    for name in names:
        (directory / name).write_bytes(b"x")
    return directory


def index(directory: Path, weight_map: dict, name: str = "model.safetensors.index.json") -> Path:
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return directory


def test_an_adapter_is_no_model(tmp_path: Path) -> None:
    place = touch(tmp_path / "sql", "adapter_model.safetensors", "adapter_config.json")
    for path in (place, place / "adapter_model.safetensors"):
        with pytest.raises(UnsupportedFormat, match="is an adapter and no model; name its base"):
            resolve(path)
    touch(place, "weights.safetensors")
    assert [file.path for file in resolve(place).files] == ["weights.safetensors"]


SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (("model.safetensors", "x_final.safetensors", *SHARDS), ["model.safetensors"]),
        ((*SHARDS, "x_final.safetensors"), list(SHARDS)),
        (("n_512_1m_f32_final.safetensors", "n_512_1m_f32_step_9.safetensors"), ["n_512_1m_f32_final.safetensors"]),
        (("n_step_9.safetensors", "n_step_100.safetensors", "n_step_20.safetensors"), ["n_step_100.safetensors"]),
        (("weights.safetensors", "pytorch_model.bin", "config.json"), ["weights.safetensors"]),
    ],
)
def test_choice_of_weights(tmp_path: Path, names: tuple[str, ...], chosen: list[str]) -> None:
    found = resolve(touch(tmp_path / "m", *names))
    assert list(found.weight_files) == chosen
    assert found.directory == tmp_path / "m"


def test_a_step_file_is_an_ambiguous_choice_and_a_final_one_is_not(tmp_path: Path) -> None:
    touch(tmp_path / "a", "n_step_9.safetensors", "n_step_10.safetensors")
    assert resolve(tmp_path / "a").ambiguous
    assert "step 10" in resolve(tmp_path / "a").choice
    touch(tmp_path / "a", "n_final.safetensors")
    assert not resolve(tmp_path / "a").ambiguous


@pytest.mark.parametrize(
    "names",
    [
        ("a_final.safetensors", "b_final.safetensors"),
        ("a_step_1.safetensors", "b_step_2.safetensors"),
        ("a.safetensors", "b.safetensors"),
        ("a-00001-of-00001.safetensors", "b-00001-of-00001.safetensors"),
    ],
)
def test_several_candidates_are_refused_by_name(tmp_path: Path, names: tuple[str, ...]) -> None:
    with pytest.raises(UnsupportedFormat, match="name the file to use") as caught:
        resolve(touch(tmp_path / "m", *names))
    assert names[0].split("_step")[0].split("-0")[0] in caught.value.message
    # and naming one works
    assert resolve(tmp_path / "m" / names[1]).weight_files == (names[1],)


def test_a_named_file_is_taken_with_the_configuration_beside_it(tmp_path: Path) -> None:
    touch(tmp_path / "m", "model.safetensors", "other.safetensors", "config.json", "tokenizer.json", "my.tiktoken")
    found = resolve(tmp_path / "m" / "other.safetensors")
    assert found.weight_files == ("other.safetensors",)
    assert found.find("config.json") == tmp_path / "m" / "config.json"
    assert found.with_role("tokenizer") == ("tokenizer.json", "my.tiktoken")
    assert found.find("absent.json") is None


def test_a_named_shard_brings_its_sisters(tmp_path: Path) -> None:
    touch(tmp_path / "m", *SHARDS)
    assert resolve(tmp_path / "m" / SHARDS[1]).weight_files == SHARDS


def test_missing_shards_are_named(tmp_path: Path) -> None:
    touch(tmp_path / "m", "model-00001-of-00003.safetensors")
    with pytest.raises(MissingTensor) as caught:
        resolve(tmp_path / "m")
    assert "2 of 3" in caught.value.message
    assert "model-00002-of-00003.safetensors" in caught.value.message
    index(tmp_path / "i", {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"})
    touch(tmp_path / "i", SHARDS[0])
    with pytest.raises(MissingTensor, match=SHARDS[1]):
        resolve(tmp_path / "i")


def test_an_index_wins_over_names(tmp_path: Path) -> None:
    index(touch(tmp_path / "m", "one.safetensors", "two.safetensors", "stray.safetensors"),
          {"a": "one.safetensors", "b": "two.safetensors"})  # fmt: skip
    found = resolve(tmp_path / "m")
    assert found.weight_files == ("one.safetensors", "two.safetensors")
    assert found.weight_map == {"a": "one.safetensors", "b": "two.safetensors"}
    assert found.with_role("index") == ("model.safetensors.index.json",)


@pytest.mark.parametrize(
    "file",
    [
        "../secret.safetensors", "/etc/x.safetensors", "a/b.safetensors", "..", "a\\b.safetensors", "x\0.safetensors",
        ".hidden.safetensors", "", 7, None, ["a"], "é.safetensors",
    ],
)  # fmt: skip
def test_shard_paths_outside_the_directory_are_refused(tmp_path: Path, file: object) -> None:
    (tmp_path / "secret.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError):
        resolve(index(tmp_path / "m", {"a": file}))


@pytest.mark.parametrize("suffix", PICKLE_SUFFIXES)
def test_pickles_are_refused_by_name(tmp_path: Path, suffix: str) -> None:
    touch(tmp_path / "m", "pytorch_model" + suffix, "config.json")
    for path in (tmp_path / "m", tmp_path / "m" / ("pytorch_model" + suffix)):
        with pytest.raises(UnsupportedFormat, match="pickle"):
            resolve(path)
    with pytest.raises(UnsupportedFormat, match="pickle"):
        resolve(index(tmp_path / "i", {"a": "pytorch_model" + suffix}))


PARTS = ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf")


@pytest.mark.parametrize(
    ("names", "target", "chosen"),
    [
        (("a.gguf", "pytorch_model.bin", "config.json", "mmproj-a.gguf"), "", ["a.gguf"]),
        (("a.gguf", "b.gguf", "tokenizer.json"), "b.gguf", ["b.gguf"]),
        (("a.GGUF",), "", ["a.GGUF"]),
        (PARTS, "", list(PARTS)),
        ((*PARTS, "a.gguf"), PARTS[1], list(PARTS)),
    ],
)
def test_a_gguf_file_is_the_whole_checkpoint(
    tmp_path: Path, names: tuple[str, ...], target: str, chosen: list[str]
) -> None:
    found = resolve(touch(tmp_path / "m", *names) / target)
    assert found.is_gguf
    assert [file.path for file in found.files] == chosen


def test_safetensors_go_before_gguf(tmp_path: Path) -> None:
    assert not resolve(touch(tmp_path / "m", "model.safetensors", "a.gguf")).is_gguf


def test_several_gguf_files_are_ambiguous_and_a_missing_part_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFormat, match=r"2 GGUF files .*a\.gguf, b\.gguf.*name the file"):
        resolve(touch(tmp_path / "m", "a.gguf", "b.gguf"))
    with pytest.raises(MissingTensor, match=r"1 of 2 weight files are missing: m-00002-of-00002\.gguf"):
        resolve(touch(tmp_path / "n", PARTS[0]))


def test_a_missing_path_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(CorruptCheckpoint, match="does not exist; expected a directory"):
        resolve(tmp_path / "absent")
    for name in ("x" * 5000, "nul\0", "a/b/c"):
        with pytest.raises(CorruptCheckpoint):
            resolve(tmp_path / name)
    with pytest.raises(UnsupportedFormat, match=r"looked for model\.safetensors"):
        resolve(touch(tmp_path / "m", "README.md"))
    (tmp_path / "m" / "model.safetensors").symlink_to(tmp_path / "gone")
    with pytest.raises(CorruptCheckpoint, match=r"model\.safetensors can't be read"):
        resolve(tmp_path / "m")


def test_links_are_followed_as_hub_caches_need(tmp_path: Path) -> None:
    blob = touch(tmp_path / "blobs", "abc") / "abc"
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "model.safetensors").symlink_to(blob)
    assert resolve(tmp_path / "snapshot").weight_files == ("model.safetensors",)


def test_subdirectories_are_not_files(tmp_path: Path) -> None:
    (tmp_path / "m" / "model.safetensors").mkdir(parents=True)
    with pytest.raises(UnsupportedFormat):
        resolve(tmp_path / "m")


def test_an_endless_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models_registry.detection.directory.MAX_DIRECTORY_ENTRIES", 3)
    with pytest.raises(UnsupportedFormat, match="more than 3 entries"):
        resolve(touch(tmp_path / "m", "a", "b", "c", "model.safetensors"))
