"""What processes of one site pass on: options of the command line and the worker's place."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from blazr_site import process_environment
from blazr_site.process_environment import ProcessOptions, child_environment, process_options, use_options


@pytest.fixture(autouse=True)
def own_environment(monkeypatch):
    monkeypatch.setenv(process_environment._VARIABLE, "")


def test_without_a_command_line_there_are_no_options():
    assert process_options() == ProcessOptions()


def test_options_are_read_as_they_were_set():
    given = ProcessOptions({"BLAZR_PORT": ("--port", "80")}, config_file="/x/blazr.toml", preload=("a", "b"))
    use_options(given)
    assert process_options() == given


def test_a_child_gets_what_the_command_line_said_and_what_is_its_own(monkeypatch):
    use_options(ProcessOptions({"BLAZR_PORT": ("--port", "0"), "BLAZR_DEVICE": ("--device", "cuda:0,cuda:1")}))
    variables = child_environment(
        options={"BLAZR_DEVICE": "cuda:1", "BLAZR_DATA_DIR": "/d"}, worker_id="w", preload=("id",), EXTRA="1"
    )
    assert variables["EXTRA"] == "1"
    assert variables["PATH"] == os.environ["PATH"]
    monkeypatch.setenv(process_environment._VARIABLE, variables[process_environment._VARIABLE])
    child = process_options()
    assert child.options == {
        "BLAZR_PORT": ("--port", "0"), "BLAZR_DEVICE": ("--device", "cuda:1"),
        "BLAZR_DATA_DIR": ("BLAZR_DATA_DIR", "/d"),
    }  # fmt: skip
    assert (child.worker_id, child.preload, child.is_child) == ("w", ("id",), True)


def test_the_variable_is_no_setting():
    assert not process_environment._VARIABLE.startswith("BLAZR_")
    use_options(ProcessOptions())
    assert json.loads(os.environ[process_environment._VARIABLE])["is_child"] is False


WAITS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


@pytest.mark.parametrize(
    "start", ["import blazr_site.celery", "from blazr_site.cli import main; main(['info', '/no'])"]
)
@pytest.mark.parametrize(
    "given",
    [{}, {"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "7"}],
    ids=["nothing", "a policy", "a count"],
)
def test_threads_wait_briefly_unless_the_user_says_how(start, given, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name not in WAITS}
    environment |= {"BLAZR_DATA_DIR": str(tmp_path), **given}
    code = f"import os; {start}; print([os.environ.get(name) for name in {WAITS}])"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    expected = given or {"GOMP_SPINCOUNT": process_environment.NUM_SPINS}
    assert done.stdout.splitlines()[-1] == str([expected.get(name) for name in WAITS])
