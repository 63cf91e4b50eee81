"""The table of commands: each has its module, and options that set variables are known by name."""

from __future__ import annotations

from importlib import import_module

import pytest

from blazr_site.cli import _parser
from blazr_site.commands.arguments import COMMANDS
from blazr_site.commands.set_up import options_of


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_a_module_that_runs_it(name):
    assert callable(import_module(f"blazr_site.commands.{name}").run)


def test_what_is_given_becomes_the_options_of_the_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = (
        "serve",
        "--model",
        "a",
        "--model",
        "b=c",
        "--cpu",
        "--port",
        "80",
        "--no-prefix-cache",
        "--config",
        "x.toml",
    )
    options = options_of(_parser().parse_args((*line, "--config", "x.toml")))
    assert options.options == {
        "BLAZR_MODEL": ("--model", ["a", "b=c"]), "BLAZR_DEVICE": ("--device", "cpu"), "BLAZR_PORT": ("--port", "80"),
        "BLAZR_PREFIX_CACHE": ("--prefix-cache", "off"),
    }  # fmt: skip
    assert options.config_file == str(tmp_path / "x.toml")
    assert not options.is_child


def test_options_that_set_no_variable_stay_out():
    assert options_of(_parser().parse_args(("generate", "--model", "m", "--prompt", "p"))).options == {}
