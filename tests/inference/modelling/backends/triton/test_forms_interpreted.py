"""The tests of the device path, run as a bare GPU machine would run them, with Triton's interpreter as the device.

In a process of its own: the interpreter has to be chosen before triton is imported. Packages of the platform can't
be imported there, which shows that the path needs none of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from inference.modelling.backends import backend as kernels

ROOT = Path(__file__).parents[5]
BLOCKED = """
import sys

class Blocker:
    NAMES = {
        "django", "celery", "kombu", "redis", "channels", "rest_framework", "transformers", "tokenizers", "tiktoken",
        "splintr", "jinja2", "uvicorn", "models_registry", "blazr_site",
    }

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.NAMES:
            raise ImportError(f"{name} isn't there on a bare GPU machine")

sys.meta_path.insert(0, Blocker())
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not kernels.PRESENT, reason="triton is not installed; it comes with torch's CUDA builds")
@pytest.mark.parametrize(
    "files",
    [
        (
            *("test_attention", "test_prefill", "test_norm", "test_rotary", "test_activations", "test_mamba2"),
            *("test_conv", "test_delta", "test_delta_pieces", "test_moe", "test_quantised", "test_coded"),
            *("test_rwkv", "test_rg_lru", "test_streams"),
        ),
        (
            *("test_networks", "test_cuda_graphs", "test_bench", "test_quantised_networks"),
            *("test_mlstm", "test_lightning"),
        ),
    ],
    ids=" ".join,
)
def test_device_path(files, tmp_path):
    command = [sys.executable, "-c", BLOCKED, "-q", "-c", "tests/gpu/pytest.ini", "-p", "no:cacheprovider"]
    command += [f"tests/gpu/{name}.py" for name in files]
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
