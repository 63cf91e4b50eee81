"""Check the C++ kernels: ``python -m tests.checks.kernels`` holds their format and the length of their functions."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.checks.layout import ROOT

SOURCES = ROOT / "inference/modelling/backends/native/src"
MAX_FUNCTION_LINES = 80

_NO_FUNCTION = re.compile(r"(namespace|struct|class|enum|union|extern|using|TORCH_LIBRARY|template|#|//|\}|\s|$)")


def functions(source: str) -> Iterator[tuple[str, int]]:
    """First line and number of lines of each function at the outermost level, in clang-format's layout."""
    lines = [line.split("  //")[0].rstrip() for line in source.splitlines()]
    number = 0
    while number < len(lines):
        start = number
        number += 1
        if _NO_FUNCTION.match(lines[start]):
            continue
        head = start
        while head + 1 < len(lines) and not lines[head].endswith(("{", ";", "}")):
            head += 1
        if not lines[head].endswith("{"):
            continue
        end = head
        while end + 1 < len(lines) and not lines[end].startswith("}"):
            end += 1
        yield lines[start], end - start + 1
        number = end + 1


def long_functions() -> Iterator[str]:
    """Functions over the limit."""
    for path in sources():
        for head, length in functions(path.read_text()):
            if length > MAX_FUNCTION_LINES:
                yield f"{path.name}: {head.strip()} … has {length} lines, at most {MAX_FUNCTION_LINES}; split it"


def wrong_format() -> Iterator[str]:
    """What clang-format would change, by the rules of ``.clang-format``."""
    beside = Path(sys.executable).with_name("clang-format")
    command = str(beside) if beside.exists() else shutil.which("clang-format")
    if command is None:
        yield "clang-format is missing; `make lint` installs it with the other tools"
        return
    run = subprocess.run([command, "--dry-run", "-Werror", *map(str, sources())], capture_output=True, text=True)
    yield from (line for line in run.stderr.splitlines() if "error:" in line)


def sources() -> list[Path]:
    """All C++ files."""
    return sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")])


def main() -> int:
    """Print what is wrong; the exit status is 1 then."""
    problems = [*long_functions(), *wrong_format()]
    for problem in problems:
        sys.stderr.write(problem + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
