"""The models of the command line and of ``[[models]]``."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from blazr_site.settings.models import ConfiguredModel, models_of_file, named_model, watched_directories
from blazr_site.settings.sources import ConfigFile


def test_a_name_may_stand_before_the_model(tmp_path, monkeypatch):
    assert named_model("chat=org/model") == ConfiguredModel("org/model", name="chat")
    assert named_model("org/model") == ConfiguredModel("org/model")
    monkeypatch.chdir(tmp_path)
    Path("a=b").mkdir()
    assert named_model("a=b") == ConfiguredModel("a=b")


def test_a_table_has_everything_of_a_model(tmp_path):
    (tmp_path / "weights").mkdir()
    tables = [
        {"model": "weights", "name": "w", "aliases": ["x"], "load": False, "overrides": {"top_k": 1}, "quant": "int8",
         "speculative": "ngram"},
        {"model": "org/model"},
    ]  # fmt: skip
    first, second = models_of_file(ConfigFile(tmp_path / "blazr.toml", {"models": tables}))
    assert first == ConfiguredModel(
        str(tmp_path / "weights"), name="w", aliases=("x",), load=False, overrides={"top_k": 1},
        settings={"quant": "int8", "speculative": first.settings["speculative"]},
    )  # fmt: skip
    assert first.settings["speculative"]["method"] == "ngram"
    assert second == ConfiguredModel("org/model")


def test_a_chat_template_is_read_from_the_file_that_is_named(tmp_path):
    (tmp_path / "own.jinja").write_text("{{ messages }}")
    table = {"model": "org/model", "overrides": {"eps": 1e-6}, "chat_template": "own.jinja"}
    (model,) = models_of_file(ConfigFile(tmp_path / "blazr.toml", {"models": [table]}))
    assert model.overrides == {"eps": 1e-6, "chat_template": "{{ messages }}"}
    with pytest.raises(ImproperlyConfigured, match=r"models\[0\]\.chat_template is .*gone.*can't be opened"):
        models_of_file(ConfigFile(tmp_path / "blazr.toml", {"models": [table | {"chat_template": "gone.jinja"}]}))


def test_without_a_file_there_are_no_models():
    assert models_of_file(ConfigFile(None, {})) == []


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ([{"model": "org/a"}, {"model": "org/b"}, {"model": "org/a", "name": "x"}], r"models\[2\].model .*models\[0\]"),
        ([{"model": "weights"}, {"model": "./other/../weights"}], r"models\[1\].model .*models\[0\]"),
        ([{"model": "org/a", "name": "x"}, {"model": "org/b", "name": "x"}], r"models\[1\] .*'x', which .*models\[0\]"),
        ([{"model": "org/a", "aliases": ["x"]}, {"model": "org/b", "name": "x"}], "'x', which"),
        ([{"model": "org/a", "name": "x", "aliases": ["x"]}], "'x', which"),
    ],
)
def test_a_model_or_name_that_comes_twice_is_refused(tmp_path, tables, words):
    (tmp_path / "weights").mkdir()
    (tmp_path / "other").mkdir()
    with pytest.raises(ImproperlyConfigured, match=words):
        models_of_file(ConfigFile(tmp_path / "blazr.toml", {"models": tables}))


@pytest.mark.parametrize("settings", [{"dtype": None}, {"keep_alive_s": -1}])
def test_settings_are_those_of_the_registry(settings):
    (found,) = models_of_file(ConfigFile(Path("/x/blazr.toml"), {"models": [{"model": "demo", **settings}]}))
    assert found.settings == {name: value for name, value in settings.items() if value is not None}


def test_a_table_may_allow_watching_and_registers_nothing(tmp_path):
    tables = [{"model": "runs", "watch": True}, {"model": "org/a"}, {"model": "/srv/runs", "watch": True}]
    file = ConfigFile(tmp_path / "blazr.toml", {"models": tables})
    assert models_of_file(file) == [ConfiguredModel("org/a")]
    assert watched_directories(file) == [str(tmp_path / "runs"), "/srv/runs"]
    assert watched_directories(ConfigFile(None, {})) == []
    (model,) = models_of_file(ConfigFile(None, {"models": [{"model": "org/a", "watch": False}]}))
    assert model == ConfiguredModel("org/a")


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"model": "runs", "watch": "yes"}, r"models\[0\]\.watch is 'yes', it must be true or false"),
        ({"model": "runs", "watch": True, "name": "x"}, r"models\[0\]\.name can't stand beside watch = true"),
        ({"watch": True}, r"models\[0\] needs a key model: a directory"),
    ],
)
def test_a_wrong_table_of_a_watched_directory_is_refused(table, words):
    with pytest.raises(ImproperlyConfigured, match=words):
        watched_directories(ConfigFile(None, {"models": [table]}))
