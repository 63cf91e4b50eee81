"""Inspection in a child process: the same answers, and an end to every excess."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from inference.errors import CorruptCheckpoint, EngineError, InvalidRequest, UnsupportedFormat
from inference.host.confinement import confinement
from models_registry.detection import child
from models_registry.detection.child import ChildLimits, inspect_in_child
from models_registry.detection.inspection import inspect_checkpoint
from tests.live.conftest import wait_until
from tests.models_registry.detection.builders import small_hybrid, write_checkpoint


@pytest.fixture
def hybrid(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "hybrid", *small_hybrid())


def test_the_answer_is_the_same(hybrid: Path) -> None:
    overrides = {"top_k": 1}
    assert inspect_in_child(hybrid, overrides) == inspect_checkpoint(hybrid, overrides=overrides)


def test_errors_keep_their_class_and_fields(hybrid: Path) -> None:
    with pytest.raises(InvalidRequest, match="3 experts") as caught:
        inspect_in_child(hybrid, {"top_k": 7})
    assert caught.value.param == "moe.top_k"
    (hybrid / "model.safetensors").write_bytes(b"\x80\x04.")
    with pytest.raises(UnsupportedFormat, match="pickle"):
        inspect_in_child(hybrid)


def test_relative_paths_mean_the_callers_directory(hybrid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(hybrid.parent)
    assert inspect_in_child(Path("hybrid")).directory == hybrid


def test_memory_is_limited(hybrid: Path) -> None:
    # Eight million small lists: about 700 MB of objects from 32 MiB of text.
    (hybrid / "tokenizer.json").write_text('{"a":[' + "[]," * 8_000_000 + "1]}")
    with pytest.raises(CorruptCheckpoint, match="MiB of memory"):
        inspect_in_child(hybrid, limits=ChildLimits(memory_bytes=256 << 20))


def spin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str) -> None:
    """Put ``code`` where the child's module begins, by a package of the same name that comes first."""
    for name in ("models_registry", "models_registry/detection"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "models_registry" / "detection" / "child.py").write_text(code)
    monkeypatch.setattr(child, "_ROOT", tmp_path)


def test_processor_time_is_limited(hybrid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spin(
        monkeypatch,
        tmp_path,
        "import json, resource, sys\n"
        "limits = json.load(sys.stdin)['limits']\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (limits['cpu_s'], limits['cpu_s'] + 1))\n"
        "while True: pass\n",
    )
    with pytest.raises(CorruptCheckpoint, match="1 s of processor time"):
        inspect_in_child(hybrid, limits=ChildLimits(cpu_s=1))


def test_wall_time_is_limited_and_nothing_stays_behind(
    hybrid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "pid"
    spin(
        monkeypatch,
        tmp_path,
        f"import os, time\nopen({str(mark)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n",
    )
    communicate = subprocess.Popen.communicate

    def communicate_longer(process: subprocess.Popen, *args: Any, **options: Any) -> Any:
        """As long as a busy machine takes until the child has begun."""
        wait_until(lambda: mark.exists() and mark.read_text())
        return communicate(process, *args, **options)

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate_longer)
    began = time.monotonic()
    with pytest.raises(CorruptCheckpoint, match="took more than 1 s"):
        inspect_in_child(hybrid, limits=ChildLimits(wall_s=1.0))
    assert time.monotonic() - began < 100
    assert not Path(f"/proc/{mark.read_text()}").exists()


def test_output_is_limited(hybrid: Path) -> None:
    with pytest.raises(EngineError, match="broke"):
        inspect_in_child(hybrid, limits=ChildLimits(output_bytes=100))


def test_a_broken_child_is_our_error_without_internals(
    hybrid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for code in ("raise SystemExit(3)", "print('nonsense')", "print('[]')", ""):
        spin(monkeypatch, tmp_path, code)
        with pytest.raises(EngineError, match="the inspection of hybrid broke"):
            inspect_in_child(hybrid)


def test_the_child_gets_no_secrets(hybrid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLAZR_SECRET_KEY", "secret")
    spin(monkeypatch, tmp_path, "import os, sys\nsys.exit(repr(sorted(os.environ)))\n")
    with pytest.raises(EngineError) as caught:
        inspect_in_child(hybrid)
    assert "PATH" in caught.value.message
    assert "BLAZR" not in caught.value.message


@pytest.mark.skipif(bool(confinement().gaps), reason="this kernel can't confine a process")
def test_the_child_reads_the_checkpoint_and_nothing_else(hybrid: Path, tmp_path: Path) -> None:
    """A parser that is taken over (CVE-2024-12055, CVE-2026-7482) finds no keys, no network and no other process."""
    beside, folder = tmp_path / "secret_key", hybrid / "other"
    folder.mkdir()
    for path in (beside, folder / "config.json", hybrid / ".hidden"):
        path.write_text("secret")
    target = tmp_path / "blobs" / "weights"
    target.parent.mkdir()
    (hybrid / "config.json").rename(target)
    (hybrid / "config.json").symlink_to(target)
    code = (
        "import socket, sys, threading; from pathlib import Path\n"
        "from models_registry.detection.child import _confine\n"
        f"_confine([Path({str(hybrid)!r})])\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n        open(path).close(); print('read')\n    except PermissionError:\n        print('refused')\n"
        "try:\n    socket.socket()\nexcept PermissionError:\n    print('offline', threading.active_count())\n"
    )
    paths = [hybrid / "config.json", beside, folder / "config.json", hybrid / ".hidden", Path("/etc/passwd")]
    run = subprocess.run(
        [sys.executable, "-c", code, *map(str, paths)], cwd=child._ROOT, capture_output=True, text=True
    )
    assert run.stdout.split("\n")[:6] == ["read", "refused", "refused", "refused", "refused", "offline 1"], run.stderr
    assert inspect_in_child(hybrid) == inspect_checkpoint(hybrid)
