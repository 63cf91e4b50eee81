"""``blazr inspect``: figures, picture, and what is refused."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from blazr_site.cli import main

LINE = ("inspect", "--model", "demo", "--cpu", "--tokens", "48")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--tokens", "1"), "--tokens is 1; it must be 2 to 4096."),
        (("--tokens", "4097"), "--tokens is 4097; it must be 2 to 4096."),
        (("--max-seconds", "0"), "--max-seconds is 0; it must be above 0."),
        (("--max-seconds", "nan"), "--max-seconds is nan; it must be above 0."),
        (("--max-seconds", "1e-9"), "the text took longer than 1e-09 s (at layer 0 of 6)"),
        (("--text", "/no/such/file"), "can't be read as UTF-8 text"),
        (("--text", ""), "can't be read as UTF-8 text"),
        (("--svg", ""), "--svg '.' can't be written: it is no file"),
        (("--svg", "/dev/full"), "--svg '/dev/full' can't be written: No space left"),
        (("--svg", "/no/such/directory/a.svg"), "--svg '/no/such/directory/a.svg' can't be written"),
    ],
)
def test_wrong_options_are_one_line(capsys, options, words) -> None:
    assert main([*LINE, *options]) == 2
    assert words in capsys.readouterr().err


def test_a_picture_without_a_place_is_refused_before_the_text_is_read(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.delattr("blazr_site.commands.inspect.measure_spans")
    for place in (tmp_path, tmp_path / "none" / "a.svg"):
        assert main([*LINE, "--svg", str(place)]) == 2
        assert f"--svg '{place}' can't be written" in capsys.readouterr().err


def test_a_table_and_a_picture(capsys, tmp_path) -> None:
    text = tmp_path / "text"
    text.write_text("The statement is executed. " * 40)
    picture = tmp_path / "picture.svg"
    assert main([*LINE, "--text", str(text), "--svg", str(picture)]) == 0
    shown = capsys.readouterr()
    assert "48 tokens of text" in shown.err
    rows = [line.split() for line in shown.out.splitlines()[1:]]
    assert [row[1] for row in rows] == ["mamba2", "mamba2", "mla", "mamba2", "attention", "mamba2"]
    assert ElementTree.fromstring(picture.read_text()).tag.endswith("svg")


def test_figures_as_json(capsys) -> None:
    assert main([*LINE, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["tokens"], found["text"]) == (48, "Python's help pages")
    first, attention = found["mixers"][0], found["mixers"][4]
    assert len(found["norm_positions"]) == 32
    assert found["norm_positions"][-1] == 48
    norms = {"state_norm", "state_norms"}
    assert set(first["heads"][0]) == {"half_life", "half_life_low", "half_life_high", "decays", *norms}
    assert len(first["heads"][0]["state_norms"]) == 32
    assert set(attention["heads"][0]) == {"distance"}
