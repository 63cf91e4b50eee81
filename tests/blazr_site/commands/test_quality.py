"""``blazr quality``: figures of each form, and what is refused."""

from __future__ import annotations

import json

import pytest

from blazr_site.cli import main


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--quant", "int3"), "--quant has 'int3'; it must be of auto, none, int8, int4."),
        (("--tokens", "1"), "--tokens is 1; it must be at least 2."),
        (("--text", "/no/such/file"), "can't be read as UTF-8 text"),
    ],
)
def test_wrong_options_are_one_line(capsys, options, words):
    assert main(["quality", "--model", "demo", "--cpu", *options]) == 2
    assert words in capsys.readouterr().err


def test_figures_of_each_form_as_json(capsys, tmp_path):
    text = tmp_path / "text"
    text.write_text("The statement is executed. " * 20)
    line = ("quality", "--model", "demo", "--cpu", "--tokens", "64", "--window", "32", "--quant", "int8", "--json")
    assert main([*line, "--text", str(text)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["text"], found["window"]) == ("text", 32)
    assert [form["quant"] for form in found["forms"]] == ["none", "int8"]
    assert found["forms"][1]["weights_bytes"] < found["forms"][0]["weights_bytes"]


def test_of_a_text_without_end_only_the_beginning_is_read(capsys):
    line = ("quality", "--model", "demo", "--cpu", "--tokens", "64", "--window", "32", "--quant", "int8", "--json")
    assert main([*line, "--text", "/dev/zero"]) == 2
    assert "prompt has a NUL at character 0" in capsys.readouterr().err
