"""``blazr inspect``: figures, picture, and what is refused."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from blazr_site.cli import main
from blazr_site.commands.inspect import as_json
from inference.llm.memory_span.spans import HeadSpan, MixerSpan

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
        (("--svg", "/no/such/directory/a.svg"), "--svg '/no/such/directory/a.svg' can't be written"),
    ],
)
def test_wrong_options_are_one_line(capsys, options, words) -> None:
    assert main([*LINE, *options]) == 2
    assert words in capsys.readouterr().err


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
    assert set(first["heads"][0]) == {"half_life", "half_life_low", "half_life_high", "state_norm", "decays"}
    assert set(attention["heads"][0]) == {"distance"}


def test_an_endless_half_life_is_null() -> None:
    head = HeadSpan(half_life=float("inf"), half_life_low=2.0, half_life_high=float("inf"), state_norm=1.0)
    (mixer,) = as_json([MixerSpan(0, "mamba2", (head,))], "text", 3)["mixers"]
    assert mixer["heads"] == [
        {"half_life": None, "half_life_low": 2.0, "half_life_high": None, "state_norm": 1.0, "decays": False}
    ]
    assert json.dumps(mixer, allow_nan=False)
