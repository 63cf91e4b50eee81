"""Supervised processes: logs, restarts, stops, and what becomes of them when the supervisor is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from blazr_site import children
from blazr_site.children import Child, Program


def program(code: str, **options) -> Program:
    values = {"name": "p", "environment": dict(os.environ), "grace_s": 60.0, **options}
    return Program(command=[sys.executable, "-u", "-c", code], **values)


def reporting(program: Program, log_dir: Path, lines: list[str], **options) -> Child:
    """A child whose lines, and those about its end, go into a list."""
    return Child(program, log_dir, report=lambda name, line: lines.append(line), **options)


async def until(check, timeout_s: float = 60) -> None:
    async with asyncio.timeout(timeout_s):
        while not check():
            await asyncio.sleep(0.01)


async def test_output_goes_to_the_log_and_to_the_terminal_with_its_name(tmp_path):
    lines: list[tuple[str, str]] = []
    child = Child(
        program("print('one'); print('two'); import time; time.sleep(60)"), tmp_path, report=lambda *a: lines.append(a)
    )
    child.start()
    await until(lambda: len(lines) == 2)
    await child.stop()
    assert lines == [("p", "one"), ("p", "two")]
    assert (tmp_path / "p.log").read_text() == "one\ntwo\n"
    assert child.exit_code == -signal.SIGTERM


async def test_process_that_ends_quickly_starts_again_after_growing_pauses(tmp_path, monkeypatch):
    monkeypatch.setattr(children, "MAX_PAUSE_S", 0.5)
    codes: list[int] = []
    lines: list[str] = []
    child = reporting(program("raise SystemExit(3)"), tmp_path, lines, on_exit=codes.append)
    child.start()
    await until(lambda: len(codes) >= 4)
    await child.stop()
    assert set(codes) == {3}
    assert [float(line.split()[-2]) for line in lines[:4]] == [0.2, 0.4, 0.5, 0.5]
    assert lines[0] == "ended with exit code 3, starts again in 0.2 s"


async def test_process_that_ran_long_enough_starts_again_after_the_first_pause(tmp_path, monkeypatch):
    monkeypatch.setattr(children, "STABLE_AFTER_S", 0.0)
    lines: list[str] = []
    child = reporting(program("raise SystemExit(3)"), tmp_path, lines)
    child.start()
    await until(lambda: len(lines) >= 3)
    await child.stop()
    assert {line.split()[-2] for line in lines} == {"0.2"}


async def test_stop_does_not_wait_for_the_pause(tmp_path, monkeypatch):
    monkeypatch.setattr(children, "FIRST_PAUSE_S", 60.0)
    lines: list[str] = []
    child = reporting(program("pass"), tmp_path, lines)
    child.start()
    await until(lambda: lines)
    async with asyncio.timeout(40):
        await child.stop()
    assert child.num_starts == 1


async def test_program_that_cannot_be_started_is_tried_again(tmp_path):
    lines: list[str] = []
    missing = Program("p", [str(tmp_path / "none")], {}, 1)
    child = reporting(missing, tmp_path, lines)
    child.start()
    await until(lambda: child.num_starts >= 2)
    await child.stop()
    assert lines[0].startswith("could not be started ([Errno 2]")


async def test_quiet_process_writes_to_its_log_only(tmp_path):
    lines: list[str] = []
    child = reporting(program("print('one')", is_quiet=True), tmp_path, lines)
    child.start()
    await until(lambda: lines)
    await child.stop()
    assert lines[0] == "ended with exit code 0, starts again in 0.2 s"
    assert (tmp_path / "p.log").read_text().startswith("one\n")


async def test_process_inherits_the_descriptors_that_are_named(tmp_path):
    lines: list[str] = []
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        number = listener.fileno()
        code = f"import socket, time; print(socket.socket(fileno={number}).getsockname()[1]); time.sleep(60)"
        child = reporting(program(code, descriptors=[number]), tmp_path, lines)
        child.start()
        await until(lambda: lines)
        await child.stop()
        assert lines[0] == str(listener.getsockname()[1])


async def test_process_that_ignores_sigterm_is_killed_with_its_children(tmp_path):
    code = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); print(p.pid); time.sleep(60)"
    )
    lines: list[str] = []
    child = reporting(program(code, grace_s=0.3), tmp_path, lines)
    child.start()
    await until(lambda: lines)
    started = time.monotonic()
    await child.stop()
    assert time.monotonic() - started < 50
    await until(lambda: not _is_running(int(lines[0])))


async def test_log_is_rotated(tmp_path, monkeypatch):
    monkeypatch.setattr(children, "MAX_LOG_BYTES", 1000)
    lines: list[str] = []
    child = reporting(program("for i in range(100): print('x' * 30)\nimport time; time.sleep(60)"), tmp_path, lines)
    child.start()
    await until(lambda: len(lines) == 100)
    await child.stop()
    assert (tmp_path / "p.log").stat().st_size <= 1100
    assert (tmp_path / "p.log.1").exists()


async def test_process_runs_on_while_its_log_cannot_be_written(tmp_path):
    """An error of its log would leave it running unread beside a second one."""
    lines: list[str] = []
    code = "import time\nwhile True: print('x'); time.sleep(0.05)"
    child = reporting(program(code), tmp_path / "later", lines)
    child.start()
    await until(lambda: lines.count("x") == 3)
    pid = child.pid
    (tmp_path / "later").mkdir()
    await until((tmp_path / "later" / "p.log").exists)
    assert child.pid == pid
    await child.stop()
    assert child.num_starts == 1
    assert not _is_running(pid)
    assert [line.partition(" (")[0] for line in lines if line != "x"] == ["its log can't be written"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
async def test_process_runs_on_while_the_disk_is_full(tmp_path):
    lines: list[str] = []
    (tmp_path / "p.log").symlink_to("/dev/full")
    child = reporting(program("for i in range(3): print(i)\nimport time; time.sleep(60)"), tmp_path, lines)
    child.start()
    await until(lambda: "2" in lines)
    await child.stop()
    assert child.num_starts == 1
    assert [line.partition(";")[0] for line in lines] == [
        "its log can't be written ([Errno 28] No space left on device)", "0", "1", "2",
    ]  # fmt: skip


async def test_process_runs_on_although_its_log_cannot_be_rotated(tmp_path, monkeypatch):
    monkeypatch.setattr(children, "MAX_LOG_BYTES", 10)
    (tmp_path / "p.log.1").mkdir()
    lines: list[str] = []
    child = reporting(program("for i in range(9): print('x' * 30)\nimport time; time.sleep(60)"), tmp_path, lines)
    child.start()
    await until(lambda: lines.count("x" * 30) == 9)
    await child.stop()
    assert child.num_starts == 1
    assert (tmp_path / "p.log").read_text() == ("x" * 30 + "\n") * 9


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_children_do_not_outlive_a_killed_supervisor(tmp_path):
    code = f"""
import asyncio, os, sys
from pathlib import Path
from blazr_site.children import Child, Program
async def main():
    child = Child(Program("p", [sys.executable, "-c", "import time; time.sleep(60)"], dict(os.environ), 5),
                  Path({str(tmp_path)!r}), report=lambda *a: None)
    child.start()
    while child.pid is None:
        await asyncio.sleep(0.01)
    print(child.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 50
    while _is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    parent.stdout.close()


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
