"""``blazr state list`` and ``blazr state load``."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.utils import timezone

from blazr_site.cli import main
from inference.access.api_keys import api_key_create
from inference.files.store import file_path
from inference.models import StoredFile, StoredState
from inference.values.principal import KEY_MARK
from tests.inference.llm.test_state_header import header_with

pytestmark = pytest.mark.django_db(transaction=True)


def state_file(path, *, num_tokens):
    tensors = {"token_ids": ("I64", [num_tokens], 8 * num_tokens), "slot": ("U8", [4], 4)}
    path.write_bytes(header_with(tensors=tensors))
    return path


@pytest.fixture
def run(capsys, monkeypatch, settings, tmp_path):
    monkeypatch.setattr("blazr_site.cli.set_up", lambda arguments, needs: None)
    settings.BLAZR_FILES_DIR = tmp_path / "files"

    def call(*arguments: str):
        code = main(["state", *arguments])
        return code, capsys.readouterr()

    return call


@pytest.fixture
def path(tmp_path):
    return state_file(tmp_path / "book.state", num_tokens=12)


def test_a_file_gets_a_name_and_is_listed(run, path):
    code, shown = run("load", str(path), "--name", "book")
    assert code == 0 and shown.out.startswith("book: 12 tokens of ") and "expires: in " in shown.out
    row = StoredState.objects.get()
    assert (row.tenant, row.name, row.num_tokens, row.is_pinned) == ("local", "book", 12, False)
    assert file_path(row.file.sha256).read_bytes() == path.read_bytes()
    code, shown = run("list")
    assert code == 0 and "book" in shown.out and "local" in shown.out
    code, shown = run("list", "--json")
    assert [(item["name"], item["tokens"], item["key"]) for item in json.loads(shown.out)] == [("book", 12, "local")]


def test_a_key_owns_what_is_loaded_for_it(run, path):
    _, key = api_key_create(name="reader")
    prefix = key.removeprefix(f"{KEY_MARK}_").partition("_")[0]
    assert run("load", str(path), "--name", "book", "--key", prefix, "--pin")[0] == 0
    row = StoredState.objects.get()
    assert row.tenant.startswith("key:") and row.is_pinned and row.file.expires_at is None
    shown = run("list", "--key", prefix)[1].out
    assert prefix in shown and "pinned" in shown
    assert "No states yet" in run("list", "--key", "local")[1].out


def test_a_name_is_taken_until_it_is_replaced_or_expires(run, path, tmp_path):
    assert run("load", str(path), "--name", "book")[0] == 0
    code, shown = run("load", str(path), "--name", "book")
    assert code == 2 and "There is a state 'book' already" in shown.err
    other = state_file(tmp_path / "other.state", num_tokens=20)
    assert run("load", str(other), "--name", "book", "--replace")[0] == 0
    assert StoredState.objects.get().num_tokens == 20
    StoredFile.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert "No states yet" in run("list")[1].out
    assert run("load", str(path), "--name", "book")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("FILE", "--name", "../up"), "name is '../up'"),
        (("FILE", "--name", "book", "--key", "nobody"), "is no key's public part"),
        (("/no/such", "--name", "book"), "No such file or directory"),
        (("/dev/zero", "--name", "book"), "is not a regular file"),
        (("DAMAGED", "--name", "book"), "DAMAGED"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(run, path, tmp_path, settings, arguments, words):
    (tmp_path / "DAMAGED").write_bytes(path.read_bytes()[:-1])
    places = {"FILE": str(path), "DAMAGED": str(tmp_path / "DAMAGED")}
    code, shown = run("load", *(places.get(word, word) for word in arguments))
    assert code == 2 and words in shown.err and len(shown.err.splitlines()) == 1
    assert not StoredState.objects.exists()
    assert not [file for file in (tmp_path / "files").rglob("*") if file.is_file()]


def test_a_file_above_the_limit_is_refused(run, path, tmp_path, settings):
    settings.BLAZR_MAX_FILE_BYTES = 100
    code, shown = run("load", str(path), "--name", "book")
    assert code == 2 and "the limit of this server" in shown.err
    assert not [file for file in (tmp_path / "files").rglob("*") if file.is_file()]
