"""A pull outlives the web process that runs it."""

from __future__ import annotations

import os
import signal

import httpx
import pytest

from inference.demo.paths import PREBUILT_DIRECTORY
from tests.live.conftest import LiveServer, wait_until
from tests.models_registry.tiny_hub import tiny_hub

pytestmark = pytest.mark.live


def test_a_pull_goes_on_after_the_web_process_was_killed(django_db_setup, tmp_path):
    with tiny_hub(PREBUILT_DIRECTORY) as (endpoint, hub):
        hub.gate.clear()
        environment = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "cache"), "BLAZR_MAX_PULLS": "1"}
        server = LiveServer(tmp_path / "data", **environment)
        try:
            server.wait_ready()
            with httpx.Client(base_url=server.url, headers=server.admin_headers, timeout=30) as http:
                place = f"/registry/pulls/{http.post('/registry/pulls', json={'model': 'org/tiny'}).json()['id']}"
                wait_until(lambda: http.get(place).json()["file"] == "model.safetensors", 60, "the download")
            web = server.pid_of("blazr_site.web")
            os.kill(web, signal.SIGKILL)
            wait_until(lambda: web not in server._children(), 60, "the end of the web process")
            hub.gate.set()

            def done() -> bool:
                try:
                    row = httpx.get(server.url + place, headers=server.admin_headers, timeout=5).json()
                except httpx.HTTPError:
                    return False
                assert row["state"] in ("running", "done"), row
                return row["state"] == "done" and row["registered_as"] == "tiny"

            wait_until(done, 90, "the end of the pull")
            assert server.complete(model="tiny").status_code == 200
        finally:
            server.stop()
