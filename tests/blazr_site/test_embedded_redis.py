"""The embedded Redis: its binary, its private directory, its start."""

from __future__ import annotations

import os
import stat

import pytest

from blazr_site import embedded_redis
from inference.errors import Unavailable


def test_the_server_is_an_executable_and_listens_on_a_socket_only(tmp_path):
    assert os.access(embedded_redis.find_server(), os.X_OK)
    command = embedded_redis.server_command(socket=tmp_path / "s", directory=tmp_path, durable=True)
    options = dict(zip(command[1::2], command[2::2], strict=False))
    assert (options["--port"], options["--unixsocketperm"], options["--appendonly"]) == ("0", "600", "yes")
    assert (options["--maxmemory"], options["--maxmemory-policy"]) == (str(1 << 30), "noeviction")


def test_without_a_server_the_remedies_are_named(monkeypatch):
    monkeypatch.setattr(embedded_redis, "_WHEELS", ())
    monkeypatch.setattr(embedded_redis.shutil, "which", lambda name: None)
    with pytest.raises(Unavailable, match="set REDIS_URL"):
        embedded_redis.find_server()


def test_the_directory_is_private(tmp_path):
    made = embedded_redis.make_runtime_dir(tmp_path / "run")
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    made.chmod(0o755)
    with pytest.raises(Unavailable, match="not a private directory"):
        embedded_redis.make_runtime_dir(made)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(Unavailable, match="not a private directory"):
        embedded_redis.make_runtime_dir(tmp_path / "link")


def test_waiting_for_a_server_ends(tmp_path, redis_server):
    embedded_redis.wait_until_ready(redis_server.client, timeout_s=60)
    with pytest.raises(Unavailable, match="did not answer within"):
        embedded_redis.wait_until_ready(f"unix://{tmp_path}/none.sock", timeout_s=0.1)
