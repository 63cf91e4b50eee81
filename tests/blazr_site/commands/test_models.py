"""The checkpoint that ``--model`` names."""

from __future__ import annotations

import pytest

from blazr_site.commands import models
from inference.demo.paths import PREBUILT_DIRECTORY
from inference.errors import InvalidRequest


def test_a_path_comes_before_the_demo_and_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert models.resolve_model("demo") == PREBUILT_DIRECTORY
    (tmp_path / "demo").mkdir()
    assert models.resolve_model("demo").resolve() == tmp_path / "demo"
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert models.resolve_model("a/b").resolve() == tmp_path / "a" / "b"


def test_a_hub_id_is_fetched(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = []
    monkeypatch.setattr(models, "hub_pull", lambda name, *, progress: asked.append(name) or progress(1.0) or tmp_path)
    assert models.resolve_model("org/name-1.5") == tmp_path
    assert asked == ["org/name-1.5"]


@pytest.mark.parametrize("name", ["nothing", "./a/b", "/a/b", "a/b/c", "a b/c", "../x/y"])
def test_anything_else_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidRequest, match="neither an existing path nor a HuggingFace id"):
        models.resolve_model(name)


def test_a_bar_counts_steps():
    with models.step_bar("Lines", 3) as (bar, task):
        bar.update(task, advance=2, note="x")
        assert bar.tasks[task].completed == 2
