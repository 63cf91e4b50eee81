"""``blazr info``: equal neighbouring layers share a row."""

from __future__ import annotations

from argparse import Namespace

from blazr_site.commands import info
from blazr_site.commands.tables import output_console


def test_equal_neighbours_share_a_row(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    layer = {"kind": "attention", "sizes": {"heads": 2}, "num_parameters": 1000}
    info._print_layers(output_console(), [layer, layer, {**layer, "kind": "mamba2"}, layer])
    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines()[2:]]
    assert rows == [["0-1", "attention"], ["2", "mamba2"], ["3", "attention"]]


def test_the_description_is_printed(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert info.run(Namespace(model="demo", vocab=None, chat_template=None, override=[], json=False)) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("parameters", "state per token", "mla+moe", "certain"))
