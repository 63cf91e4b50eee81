"""What a confined process can't do; each attempt is made in a child process of its own."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from inference.host import confinement
from inference.host.confinement import Confinement

ROOT = Path(__file__).resolve().parents[3]
FOUND = confinement.confinement()
needs_landlock = pytest.mark.skipif(not FOUND.landlock, reason="this kernel has no Landlock")
needs_seccomp = pytest.mark.skipif(not FOUND.has_seccomp, reason="this kernel has no seccomp filters")


def attempt(
    code: str, readable: list[Path] | None = None, listable: list[Path] | None = None, *, before: str = ""
) -> str:
    """Run ``code`` in a confined process; return the name of the error that it raised, or ``done``."""
    program = (
        f"{before}import json, os, socket, subprocess, sys\nfrom pathlib import Path\n"
        "from inference.host.confinement import confine\n"
        "readable, listable = json.loads(sys.argv[1])\n"
        "confine([Path(p) for p in readable], [Path(p) for p in listable])\n"
        f"try:\n    {code}\nexcept OSError as error:\n    print(type(error).__name__)\nelse:\n    print('done')\n"
    )
    paths = json.dumps([[str(path) for path in readable or []], [str(path) for path in listable or []]])
    run = subprocess.run(
        [sys.executable, "-c", program, paths], cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


@needs_landlock
@pytest.mark.parametrize(
    "code",
    [
        "open('/etc/passwd').read()",
        "open({file!r}).read()",
        "os.listdir({folder!r})",
        "open({file!r} + '.new', 'w')",
        "open({file!r}, 'r+')",
        "os.truncate({file!r}, 0)",
        "os.unlink({file!r})",
        "os.mkdir({file!r} + '.d')",
        "os.symlink('/etc/passwd', {file!r} + '.l')",
        "os.link({file!r}, {file!r} + '.h')",
        "os.rename({file!r}, {file!r} + '.r')",
        "os.listdir('/proc/self/fd')",
        "open('/proc/' + str(os.getppid()) + '/environ').read()",
    ],
)
def test_files_cannot_be_read_written_or_moved(tmp_path, code):
    """What code in a template would do after an escape (CVE-2024-34359, CVE-2024-2952)."""
    secret = tmp_path / "secret_key"
    secret.write_text("secret")
    assert attempt(code.format(file=str(secret), folder=str(tmp_path))) == "PermissionError"
    assert [path.name for path in tmp_path.iterdir()] == ["secret_key"]
    assert secret.read_text() == "secret"


@needs_seccomp
@pytest.mark.parametrize(
    "code",
    [
        "os.chmod({file!r}, 0o777)",
        "subprocess.run(['/bin/true'])",
        "os.kill(os.getppid(), 0)",
        "socket.socket(socket.AF_INET, socket.SOCK_STREAM)",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
        "socket.socket(socket.AF_INET6)",
        "socket.socket(socket.AF_UNIX)",
    ],
)
def test_programs_processes_and_sockets_are_out_of_reach(tmp_path, code):
    secret = tmp_path / "secret_key"
    secret.write_text("secret")
    secret.chmod(0o600)
    assert attempt(code.format(file=str(secret)), readable=[secret]) == "PermissionError"
    assert secret.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(not FOUND.has_seccomp and FOUND.landlock < 4, reason="this kernel can't close the network")
def test_a_listener_on_loopback_gets_no_connection():
    with socket.socket() as trap:
        trap.bind(("127.0.0.1", 0))
        trap.listen()
        trap.settimeout(0.1)
        port = trap.getsockname()[1]
        assert attempt(f"socket.create_connection(('127.0.0.1', {port}), timeout=5)") == "PermissionError"
        with pytest.raises(TimeoutError):
            trap.accept()


@pytest.mark.skipif(FOUND.landlock < 4, reason="this kernel's Landlock has no rules for the network")
def test_landlock_alone_closes_tcp(monkeypatch):
    """As on a processor whose system calls aren't in the table."""
    code = (
        "import os, socket\nfrom inference.host import confinement\n"
        "confinement._check(confinement._libc().prctl(38, 1, 0, 0, 0), 'no_new_privs')\n"
        f"confinement._restrict_files({FOUND.landlock}, {{}})\n"
        "with socket.socket() as client:\n    print(client.connect_ex(('127.0.0.1', 9)))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert run.stdout.strip() == "13", run.stderr  # EACCES


@needs_landlock
def test_what_is_named_can_be_read_and_nothing_beside_it(tmp_path):
    named, beside = tmp_path / "model.safetensors", tmp_path / "other"
    named.write_text("weights")
    beside.write_text("other")
    assert attempt(f"assert open({str(named)!r}).read() == 'weights'", readable=[named]) == "done"
    assert attempt(f"open({str(beside)!r}).read()", readable=[named]) == "PermissionError"
    assert attempt(f"os.listdir({str(tmp_path)!r})", listable=[tmp_path]) == "done"
    assert attempt(f"open({str(beside)!r}).read()", listable=[tmp_path]) == "PermissionError"
    assert attempt("open('/etc/passwd').read()", readable=[tmp_path / "missing"]) == "PermissionError"


def test_modules_can_still_be_imported():
    assert attempt("import textwrap, jinja2.debug, encodings.utf_16") == "done"


def test_the_time_zone_stays(tmp_path):
    code = (
        "import time; from datetime import datetime; from inference.host.confinement import confine; confine()\n"
        "print(datetime(2026, 1, 1).astimezone().strftime('%z'), time.tzname)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={"PYTHONPATH": str(ROOT), "TZ": "Asia/Tokyo"},
        capture_output=True, text=True,
    )  # fmt: skip
    expected = "+0900" if Path("/usr/share/zoneinfo/Asia/Tokyo").exists() else "+0000"
    assert run.stdout.startswith(expected), run.stderr


def test_gaps_name_what_stays_open():
    assert Confinement(landlock=7, has_seccomp=True).gaps == ()
    assert Confinement(landlock=1, has_seccomp=True).gaps == ()
    assert [gap.partition(":")[0] for gap in Confinement(landlock=0, has_seccomp=False).gaps] == [
        "The kernel has no Landlock",
        "There are no seccomp filters (a kernel without them, or a processor other than x86-64 and ARM64)",
    ]
    (old,), (new,) = (Confinement(landlock=version, has_seccomp=False).gaps for version in (3, 4))
    assert "could reach the network, and change modes" in old
    assert "could send UDP datagrams, use Unix sockets, and change modes" in new


UNKNOWN_PROCESSOR = "import inference.host.confinement as c; c._MACHINES = ()\n"


def test_an_unknown_processor_has_landlock_alone(monkeypatch, tmp_path):
    """Its system calls have the same numbers everywhere; those that seccomp would refuse don't."""
    monkeypatch.setattr(confinement, "_MACHINES", ())
    assert confinement.confinement() == Confinement(FOUND.landlock, has_seccomp=False)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    read = attempt(f"open({str(secret)!r}).read()", before=UNKNOWN_PROCESSOR)
    assert read == ("PermissionError" if FOUND.landlock else "done")
    assert attempt("socket.socket(socket.AF_UNIX)", before=UNKNOWN_PROCESSOR) == "done"  # what the gap's sentence says
