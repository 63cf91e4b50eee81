"""What the supervisor starts, and with which environment; running sites are in tests/live."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from blazr_site import process_environment, supervisor
from blazr_site.children import Program
from blazr_site.supervisor import Site, Supervisor, device_list
from inference.errors import Unavailable


def site(tmp_path: Path, **values) -> Site:
    return Site(
        **{
            "host": "127.0.0.1", "port": 8080, "data_dir": tmp_path, "log_dir": tmp_path,
            "runtime_dir": tmp_path / "run",
            "redis_url": "unix:///nowhere/redis.sock?db=0", "redis_socket": None, "devices": ("cpu",), "preload": {},
            "drain_grace_s": 1,
        } | values
    )  # fmt: skip


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:8080"), ("0.0.0.0", "http://127.0.0.1:8080"), ("::", "http://[::1]:8080"),
     ("fe80::1", "http://[fe80::1]:8080"), ("llm.example", "http://llm.example:8080")],
)  # fmt: skip
def test_the_address_is_one_that_a_person_can_open(tmp_path, host, url):
    assert site(tmp_path, host=host).url == url


def test_devices_are_a_list():
    assert device_list("cuda:0, cuda:1") == ("cuda:0", "cuda:1")
    assert device_list("") == ("auto",)


def test_each_device_gets_a_worker_with_its_own_place(tmp_path, monkeypatch):
    """The programs that would be started; nothing is."""
    monkeypatch.setenv(process_environment._VARIABLE, "")
    started: list[Program] = []

    class Recorded:
        def __init__(self, program: Program, *arguments: object, **options: object) -> None:
            self.program = program

        def start(self) -> None:
            started.append(self.program)

    monkeypatch.setattr(supervisor, "Child", Recorded)

    async def start() -> None:
        found = Supervisor(site(tmp_path, devices=("cuda:0", "cuda:1"), preload={"id": "m"}), Console(quiet=True))
        found._start_workers()
        await found._client.aclose()

    asyncio.run(start())
    places = [json.loads(program.environment[process_environment._VARIABLE]) for program in started]
    assert [program.name for program in started] == ["worker-0", "worker-1"]
    assert [place["options"]["BLAZR_DEVICE"][1] for place in places] == ["cuda:0", "cuda:1"]
    assert {place["options"]["BLAZR_DATA_DIR"][1] for place in places} == {str(tmp_path)}
    assert all(place["is_child"] and place["preload"] == ["id"] for place in places)
    assert len({place["worker_id"] for place in places}) == 2
    assert {program.environment["CELERY_CUSTOM_WORKER_POOL"] for program in started} == {supervisor.POOL}


def test_a_program_that_never_gets_ready_ends_the_start_with_its_log(tmp_path):
    """A web server that ends at once, in place of the real one; Redis is somebody else's and isn't there."""
    output = io.StringIO()

    async def run() -> None:
        found = Supervisor(site(tmp_path), Console(file=output))
        child = found._child(Program("web", [sys.executable, "-c", "raise SystemExit(3)"], {}, 1))
        child.start()

        async def never() -> bool:
            return False

        try:
            with pytest.raises(Unavailable, match=r"web does not start; its log is .*web\.log"):
                await found._poll("web", child, never, 0.01)
        finally:
            await child.stop()
            await found._client.aclose()

    asyncio.run(run())
    assert "ended with exit code 3" in output.getvalue()


async def test_output_into_a_full_disk_ends_no_process_and_no_stop(tmp_path):
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    found = Supervisor(site(tmp_path), Console(file=Full()))
    child = found._child(Program("web", [sys.executable, "-c", "import time; print(1); time.sleep(60)"], {}, 60))
    child.start()
    async with asyncio.timeout(60):
        while not child.num_starts or not (tmp_path / "web.log").exists():
            await asyncio.sleep(0.01)
    found._report("web", "a line")
    found._on_signal()
    assert found._stop.is_set()
    await child.stop()
    await found._client.aclose()
    assert child.num_starts == 1
