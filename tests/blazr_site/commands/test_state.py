"""``blazr state`` and ``blazr generate --state``, with the demo model."""

from __future__ import annotations

import json

import pytest

from blazr_site.cli import main
from blazr_site.commands.state import growth, read_text

DEMO = ("--model", "demo", "--cpu")
TEXT = "A list is a mutable sequence. Lists are made with brackets. " * 8


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = tmp_path_factory.mktemp("state")
    (directory / "text").write_text(TEXT)
    path = directory / "list.state"
    assert main(["state", "save", *DEMO, "--text", str(directory / "text"), "-o", str(path)]) == 0
    return path


def generated(capsys, *options):
    capsys.readouterr()
    assert main(["generate", *DEMO, "--temperature", "0", "--max-tokens", "12", *options]) == 0
    return capsys.readouterr()


def test_the_text_is_a_cold_runs_and_two_go_on_from_one_file(saved, capsys):
    for question in (" A tuple", " The statement"):
        found = generated(capsys, "--state", str(saved), "--prompt", question)
        assert "of them from the state)" in found.err
        cold = generated(capsys, "--prompt", TEXT + question)
        assert TEXT + found.out == cold.out


def test_nothing_need_follow_the_state(saved, capsys):
    found, cold = generated(capsys, "--state", str(saved)), generated(capsys, "--prompt", TEXT)
    assert TEXT + found.out == cold.out


def test_a_file_is_shown_without_the_model(saved, capsys):
    assert main(["state", "show", str(saved)]) == 0
    shown = capsys.readouterr().out
    assert "float32, quant auto, cpu, blocks of 16" in shown and "that don't" in shown
    assert main(["state", "show", str(saved), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bytes"] == saved.stat().st_size and found["tokens"] > 90 and len(found["weights"]) == 64


def test_states_in_bfloat16_have_half_the_recurrent_bytes_and_need_their_option(saved, capsys, tmp_path):
    path, options = tmp_path / "half.state", ["--state-dtype", "bfloat16"]
    text = saved.parent / "text"
    assert main(["state", "save", *DEMO, *options, "--text", str(text), "-o", str(path)]) == 0
    found = []
    for file in (saved, path):
        capsys.readouterr()
        assert main(["state", "show", str(file), "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert [one["state_dtype"] for one in found] == ["float32", "bfloat16"]
    assert found[0]["recurrent_bytes"] == 2 * found[1]["recurrent_bytes"] > 0
    assert found[0]["paged_bytes"] == found[1]["paged_bytes"]
    assert generated(capsys, *options, "--state", str(path), "--prompt", " A tuple").out
    for file, given, remedy in ((path, [], "bfloat16"), (saved, options, "float32")):
        assert main(["generate", *DEMO, *given, "--state", str(file), "--prompt", " A tuple"]) == 2
        assert f"load the model with --state-dtype {remedy}" in " ".join(capsys.readouterr().err.split())


def test_a_state_is_taken_further(saved, capsys, tmp_path):
    path = tmp_path / "further.state"
    assert main(["state", "save", *DEMO, "--state", str(saved), "--prompt", " A tuple", "-o", str(path)]) == 0
    found, cold = generated(capsys, "--state", str(path)), generated(capsys, "--prompt", TEXT + " A tuple")
    assert TEXT + " A tuple" + found.out == cold.out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (("generate", *DEMO), "--prompt or --state is needed"),
        (("generate", *DEMO, "--state", "/no/such"), "can't be opened: No such file or directory"),
        (("generate", *DEMO, "--dtype", "bfloat16", "--state", "STATE"), "load the model with --dtype float32"),
        (("state", "save", *DEMO, "--text", "/no/such", "-o", "NEW"), "can't be read as UTF-8 text"),
        (("state", "save", *DEMO, "--prompt", "One two", "-o", "/dev/null"), "is not a regular file"),
        (("state", "show", "/dev/zero"), "is not a regular file"),
    ],
)
def test_wrong_options_are_one_line(saved, capsys, tmp_path, line, words):
    places = {"STATE": str(saved), "NEW": str(tmp_path / "new")}
    assert main([places.get(word, word) for word in line]) == 2
    assert words in capsys.readouterr().err.replace("\n", " ")


def test_a_text_without_end_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr("blazr_site.commands.state.MAX_TEXT_BYTES", 8)
    with pytest.raises(Exception, match="has more than 8 B; give a shorter one"):
        read_text(tmp_path.__class__("/dev/zero"))


def test_what_is_said_of_the_size():
    assert growth(0, 10, 5) == "which doesn't grow with the text"
    assert growth(4096, 0, 5) == "which grows by 1.0 KiB a token"
    assert growth(4096, 2048, 5) == "which grows by 1.0 KiB a token beside 2.0 KiB that don't"
