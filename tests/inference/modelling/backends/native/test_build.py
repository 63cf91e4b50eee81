"""build.py: the library's name and how it is made, and what a person reads where it can't be compiled."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from inference.modelling.backends.native import build

with_compiler = pytest.mark.skipif(build.find_compiler() is None, reason="no C++ compiler is installed")


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


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library of one function, in a folder of its own."""
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "one.cpp").write_text('#include "one.h"\nextern "C" int one() { return kOne; }\n')
    (folder / "one.h").write_text("constexpr int kOne = 1;\n")
    monkeypatch.setattr(build, "SOURCES", folder)
    monkeypatch.setattr(build, "_COMMON_HEADERS", ())
    monkeypatch.setattr(build, "_cache_folder", lambda: tmp_path / "built")
    return folder


def test_the_name_follows_everything_that_the_library_is_made_of(sources, monkeypatch):
    names = {build.library_path("native"), build.library_path("generic")}
    (sources / "one.h").write_text("constexpr int kOne = 2;\n")
    names.add(build.library_path("native"))
    monkeypatch.setattr(build, "_processor_flags", lambda: "another processor")
    names.add(build.library_path("native"))
    assert len(names) == 4
    (sources / "notes.txt").write_text("not compiled")
    assert build.library_path("native") in names


@with_compiler
def test_it_is_compiled_once(sources, capsys, monkeypatch):
    path = build.build()
    assert path == build.library_path() and path.stat().st_size > 0
    assert [entry.name for entry in path.parent.iterdir()] == [path.name], "nothing else is left"
    made = path.stat().st_mtime_ns
    assert build.build() == path and path.stat().st_mtime_ns == made
    monkeypatch.setattr(sys, "argv", ["build", "--quiet"])
    assert build.main() == 0 and capsys.readouterr().out == ""


@with_compiler
def test_a_refusal_comes_in_the_compilers_words(sources):
    (sources / "one.cpp").write_text("int one() { return nothing_known; }\n")
    with pytest.raises(build.BuildFailed, match="nothing_known"):
        build.build()
    assert not build.library_path().exists()
