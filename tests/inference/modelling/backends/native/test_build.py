"""build.py: what a person reads where the kernels can't be compiled."""

from __future__ import annotations

import sys

import pytest

from inference.modelling.backends.native import build


@pytest.fixture
def without_compiler(monkeypatch, tmp_path):
    """A machine without a compiler, on which nothing has been built."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(build, "_cache_folder", lambda: tmp_path)


@pytest.mark.parametrize(("options", "status"), [(["--quiet"], 0), ([], 0), (["--strict"], 1)])
def test_one_line_says_how_to_get_a_compiler(without_compiler, monkeypatch, capsys, options, status):
    monkeypatch.setattr(sys, "argv", ["build", *options])
    assert build.main() == status
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert "apt-get install g++" in shown.err


def test_a_build_without_a_compiler_says_the_same(without_compiler):
    with pytest.raises(build.BuildFailed, match=r"apt-get install g\+\+"):
        build.build()
