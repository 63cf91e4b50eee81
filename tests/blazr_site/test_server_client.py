"""Requests of the command line to a server."""

from __future__ import annotations

import fcntl

import pytest

from blazr_site.running_servers import LOCK_FILE, running_url
from blazr_site.server_client import (
    KEY_FILE,
    RefusedByServer,
    Server,
    ServerClient,
    find_server,
    quoted,
)
from inference.errors import InvalidRequest, Unavailable
from tests.blazr_site.chat.fake_server import KEY, fake_server


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for name in ("BLAZR_SERVER", "BLAZR_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def test_a_server_is_named_or_runs_on_the_data_directory(tmp_path, monkeypatch):
    assert find_server(None, None, tmp_path) is None
    (tmp_path / LOCK_FILE).write_text("http://127.0.0.1:1234\n")
    assert find_server(None, None, tmp_path) is None  # it has stopped
    with (tmp_path / LOCK_FILE).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert running_url(tmp_path) == "http://127.0.0.1:1234"
        assert find_server(None, None, tmp_path) == Server("http://127.0.0.1:1234", None)
        (tmp_path / KEY_FILE).write_text("first\n")
        assert find_server(None, None, tmp_path).key == "first"
        assert find_server(None, "own", tmp_path).key == "own"
        monkeypatch.setenv("BLAZR_SERVER", "https://host/base/v1/")
        assert find_server(None, None, tmp_path) == Server("https://host/base", None)  # no key of this machine's
        monkeypatch.setenv("BLAZR_API_KEY", "k")
        assert find_server("http://h:1", None, None) == Server("http://h:1", "k")


@pytest.mark.parametrize("url", ["host:80", "ftp://host", "http://", "http://a:b@host", "http://h:99999", "http://h?x"])
def test_a_url_that_is_none_is_refused(url):
    with pytest.raises(InvalidRequest, match="is no URL of a server"):
        find_server(url, None, None)


def test_errors_are_the_servers_own():
    with fake_server() as server:
        client = ServerClient(Server(server.url, KEY))
        assert [item["id"] for item in client.json("GET", "/v1/models")["data"]] == ["one", "two"]
        with pytest.raises(RefusedByServer, match="no such endpoint") as caught:
            client.json("GET", "/nothing")
        assert caught.value.status == 404
        with pytest.raises(RefusedByServer, match=r"a key is needed.*BLAZR_API_KEY"):
            ServerClient(Server(server.url)).json("GET", "/v1/models")
        server.chunks = [{"error": {"message": "broken in the middle"}}]
        with pytest.raises(RefusedByServer, match="broken in the middle"):
            list(client.events("/v1/chat/completions", {"messages": [{"content": "x"}]}))
        assert client.json("GET", "/v1/models")  # on a new connection
    client.close()
    with pytest.raises(Unavailable, match="no server listens there"):
        client.json("GET", "/v1/models")


def test_a_name_becomes_a_part_of_a_path():
    assert quoted("a/b c") == "a%2Fb%20c"
