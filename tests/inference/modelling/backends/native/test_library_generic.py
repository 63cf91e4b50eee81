"""The kernels' tests once more, with the library that has none of this processor's special instructions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from inference.modelling.backends.native.build import BuildFailed, build

FILES = ("test_packing", "test_packing_codes", "test_forms_experts", "test_forms_recurrent", "test_*attention*")
RECURRENT = "mixed_step and (mamba2-odd or mamba3-conv or mamba1-odd) or convolution or gated_norm"
"""Of the tests of recurrent layers, one of each kernel."""
REPEATED = "300-1100 or in_turn or 2100-64 or 1056-1536 or 5-0.0"
"""Larger shapes of what runs in smaller ones too, which take a quarter of the time without special instructions."""


@pytest.mark.timeout(900)  # compiles, which takes some minutes where other work has the processors
def test_the_variant_for_every_processor() -> None:
    """In a process of its own, because a library stays loaded."""
    try:
        build("generic")
    except BuildFailed as error:
        pytest.skip(f"no generic kernels: {error}")
    files = [str(file) for name in FILES for file in sorted(Path(__file__).parent.glob(f"{name}.py"))]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files]
    command += ["-k", f"(not test_forms_recurrent or {RECURRENT}) and not ({REPEATED})"]
    environment = os.environ | {"BLAZR_NATIVE": "generic"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
