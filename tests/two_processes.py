"""Run the whole suite in two processes, one for each of two cores: the engine beside the platform.

Each process is a session of pytest with a database, a Redis and folders of its own, and in the same order each time, so
a red run is red again. The arguments are given to both: ``python -m tests.two_processes -x``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
INFERENCE, API = "tests/inference", "tests/inference/api"
OTHERS = sorted(path for path in (ROOT / INFERENCE).iterdir() if path != ROOT / API)
GROUPS = {
    "engine": [INFERENCE, f"--ignore={API}"],
    "platform": ["tests", *(f"--ignore={path.relative_to(ROOT)}" for path in OTHERS if path.name != "conftest.py")],
}
"""Name to pytest's arguments. Each takes about half the time; every test is in one of the two."""
NOTHING_COLLECTED = 5


def run(name: str, arguments: list[str]) -> int:
    """One group; its lines are shown with its name before them.

    Returns:
        pytest's exit status.
    """
    # Tests start some hundred processes of ours, each of which would compile the sources again.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "pytest", "-o", f"cache_dir=.pytest_cache/{name}", *arguments, *sys.argv[1:]]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout or ():
            sys.stdout.write(f"{name:9} | {line}")
            sys.stdout.flush()
    return process.returncode


def main() -> int:
    """Both groups; 0 if all is well in both."""
    with ThreadPoolExecutor(len(GROUPS)) as pool:
        codes = list(pool.map(run, GROUPS, GROUPS.values()))
    bad = [code for code in codes if code not in (0, NOTHING_COLLECTED)]
    return bad[0] if bad else min(codes)


if __name__ == "__main__":
    sys.exit(main())
