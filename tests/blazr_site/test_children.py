"""Supervised processes: logs, restarts, stops, and what becomes of them when the supervisor is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from blazr_site import children
from blazr_site.children import Child, Program


def program(code: str, **options) -> Program:
    values = {"name": "p", "environment": dict(os.environ), "grace_s": 5.0, **options}
    return Program(command=[sys.executable, "-u", "-c", code], **values)


async def until(check, timeout_s: float = 20) -> None:
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


async def test_process_that_ends_starts_again_and_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(children, "BACK_OFF_S", (0.1, 0.2))
    codes: list[int] = []
    child = Child(program("raise SystemExit(3)"), tmp_path, report=lambda *a: None, on_exit=codes.append)
    child.start()
    await until(lambda: len(codes) >= 3)
    await child.stop()
    assert set(codes) == {3}
    assert child.num_starts >= 3


async def test_process_without_restart_ends_for_good(tmp_path):
    codes: list[int] = []
    child = Child(program("pass", restart=False), tmp_path, report=lambda *a: None, on_exit=codes.append)
    child.start()
    await until(child.ended.is_set)
    assert (codes, child.num_starts) == ([0], 1)


async def test_process_that_ignores_sigterm_is_killed_with_its_children(tmp_path):
    code = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); print(p.pid); time.sleep(60)"
    )
    lines: list[str] = []
    child = Child(program(code, grace_s=0.3), tmp_path, report=lambda name, line: lines.append(line))
    child.start()
    await until(lambda: lines)
    started = time.monotonic()
    await child.stop()
    assert time.monotonic() - started < 20
    await until(lambda: not _is_running(int(lines[0])))


async def test_log_is_rotated(tmp_path, monkeypatch):
    monkeypatch.setattr(children, "MAX_LOG_BYTES", 1000)
    lines: list[str] = []
    child = Child(
        program("for i in range(100): print('x' * 30)", restart=False),
        tmp_path,
        report=lambda name, line: lines.append(line),
    )
    child.start()
    await until(child.ended.is_set)
    assert len(lines) == 100
    assert (tmp_path / "p.log").stat().st_size <= 1100
    assert (tmp_path / "p.log.1").exists()


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
    deadline = time.monotonic() + 5
    while _is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    parent.stdout.close()


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
