"""Install a program of others into an environment of its own: ``python -m tests.clients.install NAME DIRECTORY``.

What they pin contradicts, so each has an environment, and nothing of it is in our locks.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
PIP = ("-m", "pip", "--disable-pip-version-check", "install", "-q")
OF_NPM = ("continue", "codex", "claude-code", "opencode")
NAMES = ("llama-index", "aider", "open-webui", *OF_NPM)


def install(name: str, place: Path) -> str | None:
    """Install a client, once; return why it can't be, or None.

    Raises:
        subprocess.CalledProcessError: pip or npm has failed, and said why.
    """
    stamp = place / ".installed"
    if stamp.exists():
        return None
    if name in OF_NPM:
        if shutil.which("npm") is None:
            return "npm is missing. Try: apt-get install npm"
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / f"{name}.json", place / "package.json")
        subprocess.run(["npm", "install", "--no-fund", "--no-audit", "--loglevel=error"], cwd=place, check=True)
    else:
        venv.create(place, with_pip=True)
        python = str(place / "bin" / "python")
        listed = str(HERE / f"requirements-{name}.txt")
        if name == "open-webui":
            # Its package asks for all that its documents' readers need, torch among it. The list of its small form,
            # without models and vector databases of its own, is a file in it.
            subprocess.run([python, *PIP, "--no-deps", "-r", listed], check=True)
            (small,) = place.glob("lib/python*/site-packages/requirements-slim.txt")
            listed = str(small)
        subprocess.run([python, *PIP, "-r", listed], check=True)
    stamp.touch()
    return None


def main() -> int:
    """Install what is asked for, and say what can't be."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients.install", description=__doc__)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("directory", type=Path)
    given = parser.parse_args()
    if reason := install(given.name, given.directory):
        sys.stdout.write(f"{given.name}: {reason}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
