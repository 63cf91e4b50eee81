"""A web process that is started by hand."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from tests.conftest import ROOT


def test_a_port_that_is_taken_is_said_in_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        variables = {"BLAZR_DATA_DIR": str(tmp_path), "BLAZR_HOST": "127.0.0.1", "BLAZR_PORT": port}
        done = subprocess.run(
            [sys.executable, "-m", "blazr_site.web"], cwd=ROOT, env=os.environ | variables,
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and port in line
