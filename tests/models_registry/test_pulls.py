"""Pulls on request: as many at once as a setting allows, each in a child that can be ended."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from inference.errors import EngineError, NotFound, PermissionRefused, QueueFull
from inference.values.principal import LOCAL, principal_set
from models_registry import pulls
from models_registry.hub import PullProgress
from models_registry.pulls import Pull

PROGRESS = PullProgress("model.safetensors", done_bytes=5, total_bytes=10)


@pytest.fixture(autouse=True)
def pulls_end():
    yield
    assert pulls._num_running == 0


@pytest.fixture
def child(monkeypatch, tmp_path: Path, settings):
    """Let ``script`` stand in for the hub's child; its interpreter takes the child's arguments."""
    settings.BLAZR_MAX_PULLS = 2

    def install(script: str) -> Path:
        body = tmp_path / "child.py"
        body.write_text(script)
        program = tmp_path / "python"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {body} "$@"\n')
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))
        return tmp_path

    return install


@contextlib.asynccontextmanager
async def started(repo_id: str = "org/tiny") -> AsyncIterator[Pull]:
    """A pull that runs, and whose child is gone afterwards."""
    pull = Pull(repo_id)
    await pull.start()
    try:
        yield pull
    finally:
        pull.end()
        await pull._process.communicate()


async def collect(pull: Pull) -> list[PullProgress]:
    async with asyncio.timeout(60):
        return [item async for item in pull.progress()]


async def test_pulls_are_refused_unless_a_setting_allows_them(settings):
    settings.BLAZR_MAX_PULLS = 0
    with pytest.raises(PermissionRefused, match="BLAZR_MAX_PULLS"):
        await Pull("org/tiny").start()


async def test_progress_and_path_come_from_the_child(child):
    child(
        "import json, sys\n"
        "request = json.loads(sys.argv[-1])\n"
        "assert request['model'] == 'org/tiny', request\n"
        "assert request['max_bytes'] > 0, request\n"
        f"print(json.dumps({{'progress': {asdict(PROGRESS)!r}}}))\n"
        "print(json.dumps({'path': '/some/where'}))\n"
    )
    async with started() as pull:
        assert await collect(pull) == [PROGRESS]
        assert pull.path == Path("/some/where")


async def test_the_childs_error_keeps_its_class(child):
    child(
        "import json\n"
        "from inference.errors import NotFound\n"
        "print(json.dumps({'error': NotFound('org/tiny does not exist.').to_dict()}))\n"
    )
    async with started() as pull:
        with pytest.raises(NotFound, match="does not exist"):
            await collect(pull)


async def test_a_child_that_dies_is_our_error(child):
    child("import sys; sys.exit(3)")
    async with started() as pull:
        with pytest.raises(EngineError, match="exit status 3"):
            await collect(pull)


async def test_no_more_run_at_once_than_allowed_and_an_end_makes_room(child):
    child("import time; time.sleep(60)")
    async with started("org/a") as first, started("org/b"):
        refused = Pull("org/c")
        with pytest.raises(QueueFull, match="2 models"):
            await refused.start()
        refused.end()  # it was never counted
        assert pulls._num_running == 2
        first.end()
        first.end()
        assert pulls._num_running == 1
        async with started("org/c"):
            assert pulls._num_running == 2


async def test_the_end_kills_the_child_and_its_children(child):
    directory = child(
        "import os, subprocess, sys, time\n"
        "kid = subprocess.Popen(['sleep', '60'])\n"
        "open(os.path.join(os.path.dirname(__file__), 'pids'), 'w').write(f'{os.getpid()} {kid.pid}')\n"
        "time.sleep(60)\n"
    )
    async with started(), asyncio.timeout(60):
        while not (directory / "pids").exists() or not (directory / "pids").read_text().count(" "):
            await asyncio.sleep(0.02)
    pids = [int(pid) for pid in (directory / "pids").read_text().split()]

    def is_alive(pid: int) -> bool:
        try:
            return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False

    async with asyncio.timeout(60):
        while any(map(is_alive, pids)):
            await asyncio.sleep(0.02)


def test_a_key_for_some_models_pulls_no_others(settings):
    settings.BLAZR_MAX_PULLS = 2

    async def start() -> None:
        principal_set(replace(LOCAL, models=frozenset({"mine"})))
        await Pull("org/tiny").start()

    with pytest.raises(PermissionRefused, match="'tiny'; it is for mine"):
        asyncio.run(start())
