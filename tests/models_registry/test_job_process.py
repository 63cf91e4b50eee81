"""The child of a job: its messages, its end, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from inference.errors import EngineError
from models_registry import job_process
from models_registry.job_process import JobProcess
from tests.live.conftest import wait_until

MODULE = "blazr_site.quantise_child"
Install = Callable[[str], Path]


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_request_goes_in_and_messages_come_out(child_script: Install) -> None:
    child_script(
        "assert sys.argv[1:] == ['-m', 'blazr_site.quantise_child'], sys.argv\n"
        "send(progress=0.5, stage=request['path'])\n"
        "print(json.dumps({'stage': 'two'}) + '\\n' + json.dumps({'result': {}}))\n"
    )
    with JobProcess(MODULE, {"path": "/some/where"}) as child:
        messages = [message for message in child.messages(30) if message]
    assert messages == [{"progress": 0.5, "stage": "/some/where"}, {"stage": "two"}, {"result": {}}]


def test_silence_gives_empty_messages(child_script: Install) -> None:
    child_script("time.sleep(60)")
    with JobProcess(MODULE, {}) as child:
        messages = child.messages(0.01)
        assert [next(messages) for _ in range(3)] == [{}, {}, {}]


def test_many_open_descriptors_do_no_harm(child_script: Install) -> None:
    """``select`` takes descriptors below 1,024 only; a web process has more connections."""
    child_script("send(stage='one')")
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    try:
        with JobProcess(MODULE, {}) as child:
            assert [message for message in child.messages(30) if message] == [{"stage": "one"}]
    finally:
        for descriptor in held:
            os.close(descriptor)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("sys.exit(3)", "exit status 3"), ("os.kill(os.getpid(), 9)", "want of memory"),
        ("os.kill(os.getpid(), 11)", "exit status -11"),
        ("print('x' * 17_000_000, end='')", "a line of more than 16 MiB"),
    ],
)  # fmt: skip
def test_a_child_that_breaks_is_our_error(script: str, reason: str, child_script: Install) -> None:
    child_script(script)
    with JobProcess(MODULE, {}) as child, pytest.raises(EngineError, match=reason):
        list(child.messages(30))


def test_a_child_that_reads_no_request_is_our_error(child_script: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = child_script("")
    (directory / "child.py").write_text("import sys; sys.exit(4)")
    with JobProcess(MODULE, {"path": "x" * (1 << 20)}) as child, pytest.raises(EngineError, match="exit status 4"):
        list(child.messages(30))


def test_the_end_stops_the_child_and_its_children(child_script: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = child_script(
        "import signal, subprocess\n"
        "signal.signal(signal.SIGTERM, lambda *_: (directory / 'stopped').touch())\n"  # and goes on
        "kid = subprocess.Popen(['sleep', '60'])\n"
        "(directory / 'pids').write_text(f'{os.getpid()} {kid.pid}')\n"
        "send(stage='ready')\n"
        "while True: time.sleep(60)\n"
    )
    monkeypatch.setattr(job_process, "STOP_S", 0.3)
    with JobProcess(MODULE, {}) as child:
        assert next(message for message in child.messages(30) if message) == {"stage": "ready"}
        wait = child._process.wait

        def wait_longer(timeout_s: float | None = None) -> int:
            """As long as a busy machine takes until the child has its signal."""
            if timeout_s is not None:
                wait_until(lambda: (directory / "stopped").exists(), 60, "the signal")
            return wait(timeout_s)

        monkeypatch.setattr(child._process, "wait", wait_longer)
    assert (directory / "stopped").exists(), "it could have removed its files"
    pids = [int(pid) for pid in (directory / "pids").read_text().split()]
    wait_until(lambda: not any(map(is_alive, pids)), 60, "the end of the child and its child")
    child.stop()


PARENT = """
import sys, types
from models_registry import job_process
job_process.sys = types.SimpleNamespace(executable=sys.argv[1])
for message in job_process.JobProcess("blazr_site.quantise_child", {}).messages(60):
    print(message, flush=True)
"""


def test_a_child_notices_the_death_of_its_parent(child_script: Install) -> None:
    directory = child_script(
        "(directory / 'pid').write_text(str(os.getpid()))\n"
        "send(stage='ready')\n"
        "sys.stdin.read()\n"
        "(directory / 'noticed').touch()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(directory / "python")],
        stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert b"ready" in parent.stdout.readline()
    time.sleep(0.1)
    assert not (directory / "noticed").exists()
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: (directory / "noticed").exists(), 60, "the child's end")
