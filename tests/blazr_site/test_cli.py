"""The command line as a person uses it: a process of its own, exit codes, one-line errors."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from blazr_site.cli import main
from inference.demo.paths import PREBUILT_DIRECTORY
from inference.errors import InvalidRequest

BLAZR = str(Path(sys.executable).with_name("blazr"))


def blazr(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    values = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "HF_HUB_OFFLINE": "1", **environment}
    return subprocess.run([BLAZR, *arguments], capture_output=True, text=True, timeout=120, env=values, check=False)


def test_generate_streams_the_continuation_and_reports_the_rate() -> None:
    done = blazr("generate", "--model", "demo", "--prompt", "The statement", "--max-tokens", "12", "--seed", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("The statement")
    assert len(done.stdout) > len("The statement") + 12
    assert "12 generated" in done.stderr


def test_generate_with_a_seed_repeats_itself(capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for _ in range(2):
        assert main(["generate", "--model", "demo", "--prompt", "A", "--max-tokens", "8", "--seed", "5"]) == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1] != ""


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--temperature", "3", "temperature is 3.0, it must be from 0 to 2"),
        ("--top-p", "nan", "top_p is nan"),
        ("--max-tokens", "99999", "maximum context length is 1024 tokens"),
        ("--vocab", "klingon", "klingon"),
        ("--override", "nonsense=1", "nonsense"),
    ],
)
def test_generate_refuses_bad_values_in_one_line(
    option: str, value: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "--model", "demo", "--prompt", "x", option, value]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.strip().splitlines()[-1].startswith("error: ")


@pytest.mark.parametrize(
    ("directory", "words"),
    [("/dev/null", "/dev/null can't be used: not a directory"), ("~nobody-here/x", "a path can't be used")],
)
def test_paths_that_can_not_be_read_are_one_line(
    directory: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["push", directory, "--server", "http://127.0.0.1:9", "--key", "k"]) == 2
    error = capsys.readouterr().err
    assert words in error and len(error.strip().splitlines()) == 1


@pytest.mark.parametrize("command", ["info", "generate"])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("missing", "neither an existing path nor a HuggingFace id"),
        ("empty", "no weights"),
        ("truncated", "model.safetensors"),
        ("pickle", "pickle"),
        ("huge header", "header"),
        ("overlap", "it must begin at"),
        ("missing shard", "model-00002-of-00002.safetensors"),
        ("unknown names", "mystery"),
        ("wrong shape", "norm.weight"),
    ],
)
def test_broken_checkpoints_are_one_line_and_exit_code_2(
    command: str, fault: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "broken"
    if fault != "missing":
        directory.mkdir()
        make_broken(fault, directory)
    arguments = ["--prompt", "x"] if command == "generate" else []
    assert main([command, "--model", str(directory), *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.strip().splitlines()) == 1


def test_an_error_steers_no_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(arguments: object) -> int:
        raise InvalidRequest("the server says \x1b]0;title\x07 and\nmore\x9b2J.")

    monkeypatch.setattr("blazr_site.commands.search.run", refuse)
    assert main(["search", "x"]) == 2
    assert capsys.readouterr().err == "error: the server says \\x1b]0;title\\x07 and more\\x9b2J.\n"


def test_an_error_of_a_process_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    done = blazr("generate", "--model", str(tmp_path), "--prompt", "x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert "no weights" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def make_broken(fault: str, directory: Path) -> None:
    weights = directory / "model.safetensors"
    good = (PREBUILT_DIRECTORY / "model.safetensors").read_bytes()
    if fault == "truncated":
        weights.write_bytes(good[:-1000])
    elif fault == "pickle":
        weights.write_bytes(b"\x80\x04\x95" + bytes(100))
    elif fault == "huge header":
        weights.write_bytes((1 << 63).to_bytes(8, "little") + b"{}")
    elif fault == "missing shard":
        (directory / "model-00001-of-00002.safetensors").write_bytes(good)
        index = {
            "weight_map": {"norm.weight": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
        }
        (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    elif fault in ("unknown names", "wrong shape", "overlap"):
        size = int.from_bytes(good[:8], "little")
        header = json.loads(good[8 : 8 + size])
        if fault == "unknown names":
            header = {f"mystery.{number}": value for number, value in enumerate(header.values())}
        elif fault == "overlap":
            begin, end = header["norm.weight"]["data_offsets"]
            header["norm.weight"]["data_offsets"] = [0, end - begin]
        else:
            shutil.copy(PREBUILT_DIRECTORY / "config.json", directory)
            header["norm.weight"]["shape"] = [header["norm.weight"]["shape"][0] // 2, 2]
        text = json.dumps(header).encode()
        weights.write_bytes(len(text).to_bytes(8, "little") + text + good[8 + size :])


def test_info_json_has_layers_facts_and_state_sizes() -> None:
    done = blazr("info", "--model", "demo", "--json")
    described = json.loads(done.stdout)
    assert [layer["kind"] for layer in described["layers"]] == [
        "mamba2", "mamba2", "mla+moe", "mamba2", "attention+mlp", "mamba2",
    ]  # fmt: skip
    assert described["state_bytes_per_token"] > 0
    assert described["state_bytes_per_sequence"] > 0
    assert all({"name", "value", "evidence", "confidence"} <= fact.keys() for fact in described["facts"])


def test_info_prints_tables(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["info", "--model", "demo"]) == 0
    told = capsys.readouterr().out
    for word in ("mla+moe", "1,024 tokens", "top_k", "certain"):
        assert word in told


def test_info_takes_a_bare_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--model", str(PREBUILT_DIRECTORY / "model.safetensors"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model_type"] == "oxidizr"


def test_decode_knows_the_vocabularies(capsys: pytest.CaptureFixture[str]) -> None:
    assert blazr("decode", "--ids", "9906,1917", "--vocab", "llama3").stdout == "Hello world\n"
    assert main(["decode", "--ids", "9906, 1917", "--vocab", "cl100k_base"]) == 0
    assert capsys.readouterr().out == "Hello world\n"


def test_decode_reads_a_custom_tiktoken_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks = [bytes([value]) for value in range(256)] + [b"ab"]
    path = tmp_path / "tiny.tiktoken"
    path.write_text("".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(ranks)))
    assert main(["decode", "--ids", "256,33", "--vocab", str(path)]) == 0
    assert capsys.readouterr().out == "ab!\n"


@pytest.mark.parametrize(
    ("ids", "vocabulary", "words"),
    [
        ("x", "llama3", "'x'"),
        ("", "llama3", "empty"),
        ("1", "klingon", "klingon"),
        ("200000000", "llama3", "200000000"),
    ],
)
def test_decode_refuses_in_one_line(
    ids: str, vocabulary: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["decode", "--ids", ids, "--vocab", vocabulary]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.strip().splitlines()) == 1


def test_hub_id_offline_says_so_in_one_line(tmp_path: Path) -> None:
    done = blazr("info", "--model", "owner/name", HF_HOME=str(tmp_path))
    assert done.returncode == 2
    assert "owner/name" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_list_and_ps_without_a_server(tmp_path: Path) -> None:
    listed = blazr("list", "--data-dir", str(tmp_path / "data"))
    assert listed.returncode == 0, listed.stderr
    assert "No checkpoints yet" in listed.stdout
    running = blazr("ps", "--data-dir", str(tmp_path / "data"))
    assert running.returncode == 1
    assert "No server is running" in running.stdout


def test_demo_trains_a_checkpoint_that_generates(tmp_path: Path) -> None:
    trained = blazr("demo", "--output", str(tmp_path / "demo"), "--steps", "2")
    assert trained.returncode == 0, trained.stderr
    assert "bits per character" in trained.stderr
    assert main(["generate", "--model", str(tmp_path / "demo"), "--prompt", "The", "--max-tokens", "3"]) == 0


def test_help_is_instant_and_names_every_command() -> None:
    done = blazr("--help")
    for command in ("serve", "generate", "info", "decode", "pull", "list", "ps", "demo"):
        assert command in done.stdout
