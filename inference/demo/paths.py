"""Where the demo model that ships with the package lies. Standard library only."""

from __future__ import annotations

from pathlib import Path

PREBUILT_DIRECTORY = Path(__file__).parent / "checkpoint"
SERVED_MODEL_NAME = "demo"
