"""Inspect files that came from outside in a child process that can be killed.

The parent starts ``python -m models_registry.detection.child``, sends a request as JSON, and waits a bounded time for
JSON. The child takes its limits of processor time, memory and output on itself before it reads anything, and closes
the network and the file system beyond the checkpoint where the kernel can; a thread could be given none of these.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inference.errors import BlazrError, CorruptCheckpoint, EngineError
from inference.host.confinement import confine
from models_registry.detection.adapter_facts import InspectedAdapter, base_facts, inspect_adapter
from models_registry.detection.directory import MAX_DIRECTORY_ENTRIES
from models_registry.detection.facts import TOKENIZER_FROM
from models_registry.detection.inspection import Inspection, inspect_checkpoint
from models_registry.detection.xlora_files import adapter_directories

_ROOT = Path(__file__).resolve().parents[2]
_MAX_ERROR_CHARS = 4000


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """What one inspection may cost.

    Attributes:
        cpu_s: Processor seconds.
        wall_s: Seconds from start to end.
        memory_bytes: Address space, the interpreter's own included.
    """

    cpu_s: int = 20
    wall_s: float = 60.0
    memory_bytes: int = 2 << 30
    output_bytes: int = 256 << 20


def inspect_in_child(
    path: Path, overrides: Mapping[str, Any] | None = None, limits: ChildLimits | None = None
) -> Inspection:
    """As ``inspect_checkpoint``, in a process of its own under limits. Blocks; call it off the event loop.

    Raises:
        BlazrError: What the inspection raised.
        CorruptCheckpoint: It went over a limit.
        EngineError: The child broke.
    """
    request = {"path": str(path.absolute()), "overrides": dict(overrides or {})}
    return Inspection.from_dict(_run(path, request, limits or ChildLimits())["inspection"])


def inspect_adapter_in_child(path: Path, base: Inspection, limits: ChildLimits | None = None) -> InspectedAdapter:
    """As ``inspect_adapter``, in a process of its own under limits. Blocks; call it off the event loop.

    Raises:
        BlazrError: What the inspection raised.
        CorruptCheckpoint: It went over a limit.
        EngineError: The child broke.
    """
    request = {"path": str(path.absolute()), "overrides": {}, "base": base_facts(base)}
    return InspectedAdapter.from_dict(_run(path, request, limits or ChildLimits())["adapter"])


def _run(path: Path, request: Mapping[str, Any], limits: ChildLimits) -> dict[str, Any]:
    """Run the child with a request; returns its reply."""
    text = json.dumps({**request, "limits": asdict(limits)})
    # Only what an interpreter needs: no key, address or password of ours gets near the files.
    environment = {key: os.environ[key] for key in ("PATH", "LANG", "LC_ALL", "HOME", "TMPDIR") if key in os.environ}
    environment |= {"PYTHONPATH": str(_ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "models_registry.detection.child"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=errors,
            env=environment,
            cwd=_ROOT,
            start_new_session=True,
        )
        try:
            process.communicate(text.encode(), timeout=limits.wall_s)
        except subprocess.TimeoutExpired:
            raise CorruptCheckpoint(
                f"inspecting {path.name} took more than {limits.wall_s:g} s; the files are not what they seem.",
                param=path.name,
            ) from None
        finally:
            _kill(process)
        output.seek(0)
        stdout = output.read(limits.output_bytes + 1)
        errors.seek(0)
        stderr = errors.read(_MAX_ERROR_CHARS).decode("utf-8", "replace")
    return _result(stdout, process.returncode, stderr, path, limits)


def _result(stdout: bytes, status: int, stderr: str, path: Path, limits: ChildLimits) -> dict[str, Any]:
    if status in (-signal.SIGXCPU, -signal.SIGKILL):
        raise CorruptCheckpoint(
            f"inspecting {path.name} took more than {limits.cpu_s} s of processor time, or too much memory; the files "
            "are not what they seem.",
            param=path.name,
        )
    try:
        payload = json.loads(stdout) if status == 0 and len(stdout) <= limits.output_bytes else None
    except ValueError:
        payload = None
    if not isinstance(payload, dict):
        last = stderr.strip().rpartition("\n")[2]
        raise EngineError(f"the inspection of {path.name} broke (exit status {status}): {last[:200] or 'no message'}.")
    if "error" in payload:
        raise BlazrError.from_dict(payload["error"])
    return payload


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the child's whole session, if it still runs, and collect it."""
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _confine(paths: Sequence[Path]) -> None:
    """Leave this process only the checkpoints' directories, and the files in them or that their links lead to."""
    directories = [path.expanduser() if path.is_dir() else path.expanduser().parent for path in paths]
    files: list[Path] = []
    for directory in directories:
        # What can't be listed or found is left to the inspection, which says so.
        with contextlib.suppress(OSError):
            names = [entry for entry in directory.iterdir() if not entry.name.startswith(".")]
            # Links of a hub's cache lead to files beside the directory.
            files += [entry.resolve() for entry in names[:MAX_DIRECTORY_ENTRIES] if entry.is_file()]
    packages = [_ROOT / name for name in ("inference", "models_registry")]  # families are imported when they are needed
    confine(readable=[*files, *packages], listable=directories)


def main() -> None:
    """Run one inspection: a request on standard input, a reply on standard output."""
    request = json.load(sys.stdin)
    limits = ChildLimits(**request["limits"])
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits.output_bytes, limits.output_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    base = request.get("base")
    other = request["overrides"].get(TOKENIZER_FROM) if base is None else base["tokenizer"]
    below = [] if base is None or not Path(request["path"]).is_dir() else adapter_directories(Path(request["path"]))
    _confine([Path(request["path"]), *([Path(other)] if isinstance(other, str) and other else []), *below])
    reply: dict[str, Any]
    try:
        if base is None:
            inspection = inspect_checkpoint(Path(request["path"]), overrides=request["overrides"])
            reply = {"inspection": inspection.to_dict()}
        else:
            reply = {"adapter": inspect_adapter(Path(request["path"]), base).to_dict()}
    except BlazrError as error:
        reply = {"error": error.to_dict()}
    except MemoryError:
        reply = {
            "error": CorruptCheckpoint(
                f"inspecting {Path(request['path']).name} needs more than {limits.memory_bytes >> 20} MiB of memory."
            ).to_dict()
        }
    except Exception:  # the process boundary: the parent reports it as ours
        traceback.print_exc()
        sys.exit(1)
    json.dump(reply, sys.stdout, allow_nan=False)


if __name__ == "__main__":
    main()
