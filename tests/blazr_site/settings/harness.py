"""Read the settings in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def run_python(code: str, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run code with these variables, and none of ours besides."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("BLAZR_", "_BLAZR", "DJANGO_"))}
    return subprocess.run(
        [sys.executable, "-c", code], env=kept | {"PYTHONPATH": str(ROOT)} | variables, cwd=cwd, capture_output=True,
        text=True, timeout=120,
    )  # fmt: skip
