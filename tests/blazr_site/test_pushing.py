"""Pushes to the real registry over HTTP: whole, interrupted, with replies that are lost, refused."""

from __future__ import annotations

import shutil

import pytest

from blazr_site import pushing as module
from blazr_site.pushing import Push, files_to_push, with_digests
from blazr_site.server_client import RefusedByServer, Server, ServerClient
from inference.access.api_keys import api_key_create
from inference.demo.paths import PREBUILT_DIRECTORY
from inference.errors import BlazrError, InvalidRequest, Unavailable
from models_registry import storage
from models_registry.models import Checkpoint, Upload


@pytest.fixture
def server(live_server, data_dir, settings, tmp_path, monkeypatch, transactional_db):
    settings.ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "POLL_S", 0.05)
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    return Server(live_server.url, api_key_create(name="boss", scopes=["admin"])[1])


class CountedClient(ServerClient):
    """Counts pieces, and fails at some."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.num_pieces = 0
        self.before: dict[int, BaseException] = {}
        self.after: dict[int, BaseException] = {}

    def json(self, method, path, body=None, *, content=None):
        if method != "PUT":
            return super().json(method, path, body, content=content)
        self.num_pieces += 1
        if self.num_pieces in self.before:
            raise self.before[self.num_pieces]
        found = super().json(method, path, body, content=content)
        if self.num_pieces in self.after:
            raise self.after[self.num_pieces]
        return found


def push(client: ServerClient, place=PREBUILT_DIRECTORY, name: str = "pushed") -> Push:
    return Push(client, with_digests(files_to_push(place)[0], lambda *_: None), name=name, label=place.name)


def test_a_checkpoint_arrives_whole(server):
    client, reports = CountedClient(server), []
    upload = push(client).run(lambda *report: reports.append(report))
    row = Checkpoint.objects.get()
    assert (upload["served_model_name"], row.served_model_name, row.source) == ("pushed", "pushed", "upload")
    assert {stamp["name"] for stamp in row.file_stamps} <= {path.name for path in PREBUILT_DIRECTORY.iterdir()}
    done = [done for stage, done, _ in reports if stage.startswith("sending")]
    assert done == sorted(done) and done[-1] == upload["size_bytes"]
    assert not (storage.uploads_dir() / upload["id"]).exists()
    with pytest.raises(RefusedByServer, match="is taken by another checkpoint"):
        push(client).run(lambda *_: None)


def test_an_interrupted_push_goes_on_in_a_later_process(server):
    first = CountedClient(server)
    first.before[3] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        push(first).run(lambda *_: None)
    second = CountedClient(server)
    push(second).run(lambda *_: None)
    whole = CountedClient(server)
    push(whole, name="again").run(lambda *_: None)
    assert first.num_pieces - 1 + second.num_pieces == whole.num_pieces
    assert Upload.objects.filter(state="done").count() == 2 == Upload.objects.count()


def test_lost_replies_and_short_outages_are_survived(server):
    client = CountedClient(server)
    client.after[2] = Unavailable("the reply was lost")
    client.before[4] = Unavailable("nobody there")
    push(client).run(lambda *_: None)
    assert Checkpoint.objects.get().served_model_name == "pushed"
    gone = CountedClient(server)
    gone.before = {number: Unavailable("nobody there") for number in range(1, 99)}
    with pytest.raises(Unavailable, match="nobody there"):
        push(gone, name="other").run(lambda *_: None)
    assert gone.num_pieces == module.MAX_ATTEMPTS


def test_a_changed_checkpoint_begins_anew_and_a_broken_one_is_refused(server, tmp_path):
    place = tmp_path / "copy"
    shutil.copytree(PREBUILT_DIRECTORY, place)
    first = CountedClient(server)
    first.before[2] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        push(first, place).run(lambda *_: None)
    weights = next(place.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(InvalidRequest, match="the server has refused the checkpoint: "):
        push(CountedClient(server), place).run(lambda *_: None)
    assert not Checkpoint.objects.exists()


def test_a_key_without_the_scope_is_refused_and_sends_nothing(server):
    for key, match in ((api_key_create(name="plain")[1], "needs the scope admin"), ("blazr_wrong", "wrong, expired")):
        client = CountedClient(Server(server.url, key))
        with pytest.raises(RefusedByServer, match=match):
            push(client).run(lambda *_: None)
        assert client.num_pieces == 0
    assert not Upload.objects.exists()


def test_only_a_checkpoints_files_are_pushed(tmp_path):
    for name in ("config.json", "model.safetensors", "consolidated.safetensors", "pytorch_model.bin", "notes.doc"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "sub").mkdir()
    files, omitted = files_to_push(tmp_path)
    assert [file.path.name for file in files] == ["config.json", "model.safetensors"]
    assert omitted == ["consolidated.safetensors", "notes.doc", "pytorch_model.bin"]
    (file,), _ = files_to_push(tmp_path / "model.safetensors")
    assert file.size_bytes == 1
    for place, match in ((tmp_path / "none", "doesn't exist"), (tmp_path / "sub", "has no weights")):
        with pytest.raises(BlazrError, match=match):
            files_to_push(place)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(BlazrError, match="empty file"):
        files_to_push(tmp_path)
