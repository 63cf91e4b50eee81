"""``blazr batch run``: answers, errors, resumption, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from blazr_site.cli import main
from blazr_site.commands import batch
from inference.errors import OutOfCacheBlocks
from tests.blazr_site.test_cli import BLAZR, blazr


def line(custom_id: str, **body: Any) -> dict[str, Any]:
    body = {"prompt": f"The statement {custom_id}", "max_tokens": 6, "ignore_eos": True, **body}
    return {"custom_id": custom_id, "url": "/v1/completions", "body": body}


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in lines))
    return path


def read(path: Path) -> dict[str, Any]:
    items = [json.loads(item) for item in path.read_text().splitlines()]
    found = {item["custom_id"]: item for item in items}
    assert len(found) == len(items)
    return found


def test_lines_are_answered_failed_and_taken_up_again(tmp_path, capsys) -> None:
    asked = "What is a list?"
    chat = {"custom_id": "chat", "url": "/v1/chat/completions",
            "body": {"messages": [{"role": "user", "content": asked}], "max_tokens": 4, "temperature": 0}}  # fmt: skip
    several = line("two", prompt=["One", "Two"], n=2)
    vectors = {"custom_id": "vectors", "url": "/v1/embeddings", "body": {"input": ["One", "Two"], "dimensions": 8}}
    response = {
        "custom_id": "response",
        "url": "/v1/responses",
        "body": {"input": asked, "max_output_tokens": 4, "temperature": 0},
    }
    source = write(tmp_path / "in.jsonl", [line("a"), line("hot", temperature=9), chat, several, vectors, response])
    output, errors = tmp_path / "out.jsonl", tmp_path / "out.jsonl.errors"
    done = blazr("batch", "run", str(source), "-o", str(output), "--model", "demo", "--cpu")
    assert done.returncode == 1, done.stderr
    assert "1 of 6 lines have an error" in done.stderr
    found = read(output)
    assert set(found) == {"a", "chat", "two", "vectors", "response"}
    answer = found["response"]["response"]["body"]
    assert (answer["status"], answer["usage"]["output_tokens"]) == ("incomplete", 4)
    told = found["chat"]["response"]["body"]["choices"][0]["message"]["content"]
    assert answer["output"][0]["content"][0]["text"] == told
    body = found["a"]["response"]["body"]
    assert (body["object"], body["model"], body["usage"]["completion_tokens"]) == ("text_completion", "demo", 6)
    assert found["chat"]["response"]["body"]["object"] == "chat.completion"
    assert len(found["two"]["response"]["body"]["choices"]) == 4
    data = found["vectors"]["response"]["body"]["data"]
    assert [(item["index"], len(item["embedding"])) for item in data] == [(0, 8), (1, 8)]
    assert sum(number**2 for number in data[1]["embedding"]) == pytest.approx(1)
    assert read(errors)["hot"]["response"]["body"]["error"]["param"] == "temperature"

    # The line that failed is put right, and one was cut off by a crash: only these two are run.
    kept = [json.dumps(item) for item in found.values() if item["custom_id"] != "a"]
    output.write_text("\n".join(kept) + "\n" + json.dumps(found["a"])[:50])
    write(source, [line("a"), line("hot"), chat, several, vectors, response])
    assert main(["batch", "run", str(source), "-o", str(output), "--model", "demo", "--cpu"]) == 0
    assert "4 lines of" in capsys.readouterr().err
    again = read(output)
    assert set(again) == {"a", "hot", "chat", "two", "vectors", "response"}
    assert again["a"]["response"]["body"]["choices"] == found["a"]["response"]["body"]["choices"]
    assert output.read_text().splitlines()[:4] == kept
    assert not errors.exists()


def test_a_killed_run_is_continued(tmp_path) -> None:
    source = write(tmp_path / "in.jsonl", [line(str(number), max_tokens=40) for number in range(60)])
    output = tmp_path / "out.jsonl"
    arguments = ("batch", "run", str(source), "-o", str(output), "--model", "demo", "--cpu", "--max-num-seqs", "8")
    process = subprocess.Popen([BLAZR, *arguments], stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        deadline = time.monotonic() + 120
        while not output.exists() or output.read_bytes().count(b"\n") < 10:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    before = output.read_bytes()
    before = before[: before.rfind(b"\n") + 1]
    assert 10 <= before.count(b"\n") < 60
    assert main(list(arguments)) == 0
    assert output.read_bytes().startswith(before)
    assert set(read(output)) == {str(number) for number in range(60)}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "line 1: This line isn't valid JSON"),
        (json.dumps(line("a")) + "\n" + json.dumps(line("a")), "line 2: custom_id 'a' is line 1's"),
        (json.dumps({**line("a"), "url": "/v1/rerank"}), "url is '/v1/rerank'"),
        ("", "no requests"),
        (None, "can't be read"),
    ],
)
def test_wrong_files_are_refused_before_a_model_is_loaded(tmp_path, content, words, capsys) -> None:
    source = tmp_path / "in.jsonl"
    if content is not None:
        source.write_text(content)
    assert main(["batch", "run", str(source), "-o", str(tmp_path / "out.jsonl"), "--model", "/nowhere"]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("content", ["my notes\n", json.dumps(line("a")) + "\n"])
def test_a_file_that_is_no_output_is_left_alone(tmp_path, content, capsys) -> None:
    source, output = write(tmp_path / "in.jsonl", [line("a")]), tmp_path / "notes.txt"
    output.write_text(content)
    assert main(["batch", "run", str(source), "-o", str(output), "--model", "demo"]) == 2
    assert "is no output of a batch" in capsys.readouterr().err
    assert output.read_text() == content


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-o", "missing/out.jsonl"], "missing/out.jsonl can't be written: No such file or directory."),
        (["-o", "[/folder]"], "[/folder] can't be written: Is a directory."),
        (["-o", "out.jsonl", "--errors", "missing/errors"], "missing/errors can't be written: No such file"),
    ],
)
def test_files_that_cannot_be_written_are_refused_before_a_model_is_loaded(
    tmp_path, monkeypatch, options, words, capsys
) -> None:
    def load(*arguments: object, **more: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(batch, "load_to_run", load)
    monkeypatch.chdir(tmp_path)
    Path("[/folder]").mkdir(parents=True)
    source = write(Path("in.jsonl"), [line("a")])
    assert main(["batch", "run", str(source), *options, "--model", "demo", "--cpu"]) == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_errors_of_an_earlier_run_stay_when_the_model_cannot_be_loaded(tmp_path, monkeypatch) -> None:
    def load(*arguments: object, **more: object) -> None:
        raise OutOfCacheBlocks("It doesn't fit.")

    monkeypatch.setattr(batch, "load_to_run", load)
    source, errors = write(tmp_path / "in.jsonl", [line("a")]), tmp_path / "errors"
    errors.write_text("{}\n")
    arguments = ["batch", "run", str(source), "-o", str(tmp_path / "out.jsonl"), "--errors", str(errors)]
    assert main([*arguments, "--model", "demo", "--cpu"]) != 0
    assert errors.read_text() == "{}\n"
