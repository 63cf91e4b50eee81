"""``blazr key``: what a person sees, and that the server's own check takes or refuses what came out."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from blazr_site.cli import main
from inference.access import api_keys as auth
from inference.access.authentication import principal_of_connection
from inference.errors import NotAuthenticated
from inference.models import ApiKey


@pytest.fixture
def run(monkeypatch, capsys, db):
    """The command in this process, on the test database; gives exit code, output and errors."""
    monkeypatch.setattr("blazr_site.cli.set_up", lambda arguments, needs: None)

    def call(*arguments: str) -> SimpleNamespace:
        code = main(["key", *arguments])
        captured = capsys.readouterr()
        return SimpleNamespace(code=code, out=captured.out, err=captured.err)

    return call


def is_taken(key: str) -> bool:
    """Whether the stored row lets this key in (what a request asks, without its cache)."""
    prefix = auth.key_prefix(key)
    assert prefix is not None
    row = auth._read_key(prefix)
    return row is not None and row.digest == auth._digest(key)


def test_create_prints_the_key_alone_on_standard_output(run):
    done = run("create", "first")
    assert done.code == 0
    key = done.out.removesuffix("\n")
    assert auth.key_prefix(key) is not None
    assert is_taken(key)
    assert "can't be shown again" in done.err
    assert key not in done.err
    assert ApiKey.objects.get().expires_at is None


def test_create_with_days_expires(run):
    done = run("create", "short", "--days", "2")
    row = ApiKey.objects.get()
    assert row.expires_at is not None
    assert (row.expires_at - row.created_at).days in (1, 2)
    assert f"{row.expires_at:%Y-%m-%d}" in done.err


def test_create_with_rules(run):
    rules = ["--scope", "generate", "--scope", "admin", "--model", "a", "--model", "b"]
    rules += ["--rpm", "5", "--tpm", "600", "--concurrent", "2", "--lines", "70"]
    done = run("create", "--name", "ruled", "--expires", "2099-01-31", *rules)
    assert done.code == 0
    assert "2099-01-31" in done.err
    row = ApiKey.objects.get()
    assert (row.name, row.scopes, row.allowed_models) == ("ruled", ["admin", "generate"], ["a", "b"])
    limits = (row.requests_per_minute, row.tokens_per_minute, row.max_concurrent, row.max_queued_lines)
    assert limits == (5, 600, 2, 70)
    run("create", "plain")
    shown = " ".join(run("list").out.split())
    for part in ("admin+generate", "only a, b", "rpm 5", "tpm 600", "concurrent 2", "lines 70"):
        assert part in shown


def test_list_shows_states_and_never_a_secret(run):
    assert "No API keys yet" in run("list").out
    key = run("create", "shown [bold]as is[/bold]").out.strip()
    run("create", "limited", "--days", "3")
    revoked = run("create", "gone").out.strip()
    run("revoke", auth.key_prefix(revoked))
    ApiKey.objects.create(name="old", prefix="expiredprefx", digest="x", expires_at="2020-01-02T00:00:00Z")
    done = run("list")
    lines = {line.split()[0]: line for line in done.out.splitlines()[1:]}
    assert lines[auth.key_prefix(key)].rstrip().endswith("shown [bold]as is[/bold]")
    assert " valid " in lines[auth.key_prefix(key)]
    assert "revoked 2" in lines[auth.key_prefix(revoked)]
    assert "expired 2020-01-02" in lines["expiredprefx"]
    assert any("valid until" in line for line in lines.values())
    assert key not in done.out
    assert key.rpartition("_")[2] not in done.out


def test_a_revoked_key_is_refused(run, settings):
    key = run("create", "gone").out.strip()
    settings.BLAZR_API_KEY_REQUIRED = True
    done = run("revoke", auth.key_prefix(key))
    assert done.code == 0
    assert "is revoked" in done.out
    assert not is_taken(key)
    assert run("revoke", auth.key_prefix(key)).code == 0, "a second time changes nothing"


def test_revoke_takes_the_whole_key_without_repeating_it(run):
    key = run("create", "whole").out.strip()
    done = run("revoke", key)
    assert done.code == 0
    assert key not in done.out
    assert not is_taken(key)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("create", " "), "1 to 100 characters"),
        (("create", "x" * 101), "1 to 100 characters"),
        (("create", "x", "--days", "0"), "--days is 0, it must be from 1 to 36500"),
        (("create", "x", "--days", "36501"), "--days is 36501"),
        (("create",), "give the key one name"),
        (("create", "x", "--name", "y"), "give the key one name"),
        (("create", "x", "--expires", "soon"), "--expires is 'soon'"),
        (("create", "x", "--expires", "2001-01-01"), "has passed"),
        (("create", "x", "--days", "1", "--expires", "2099-01-01"), "one of --days and --expires"),
        (("create", "x", "--scope", "root"), "there are generate, models, files, lifecycle, priority, metrics, admin"),
        (("create", "x", "--rpm", "0"), "the limit of requests is 0"),
        (("create", "x", "--model", ""), "1 to 128 characters"),
        (("revoke", "nosuchprefix"), "'nosuchprefix'"),
        (("revoke", "blazr_abcdefabcdef_SECRETSECRET"), "'abcdefabcdef'"),
    ],
)
def test_mistakes_are_told_in_one_line(run, arguments, words):
    done = run(*arguments)
    assert done.code == 2
    assert words in done.err
    assert done.err.startswith("error: ")
    assert len(done.err.splitlines()) == 1
    assert "SECRET" not in done.err
    assert done.out == ""
    assert not ApiKey.objects.exists()


def test_the_command_works_on_a_data_directory_of_its_own(tmp_path: Path):
    """A process per call, as a person runs it: the key outlives the process, and only there."""
    blazr = str(Path(sys.executable).with_name("blazr"))
    environment = {**os.environ, "COLUMNS": "60"}

    def call(*arguments: str, data: str = "data") -> subprocess.CompletedProcess[str]:
        command = [blazr, "key", *arguments, "--data-dir", str(tmp_path / data)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)

    created = call("create", "for a test")
    assert created.returncode == 0, created.stderr
    prefix = auth.key_prefix(created.stdout.strip())
    assert prefix is not None
    assert call("revoke", prefix, data="other").returncode == 2
    assert call("revoke", prefix).returncode == 0
    listed = call("list").stdout
    assert prefix in listed and "revoked" in listed


@pytest.mark.django_db(transaction=True)
def test_a_request_with_the_key_is_let_in_until_it_is_revoked(settings, monkeypatch, capsys):
    monkeypatch.setattr("blazr_site.cli.set_up", lambda arguments, needs: None)
    settings.BLAZR_API_KEY_REQUIRED = True
    assert main(["key", "create", "client"]) == 0
    key = capsys.readouterr().out.strip()

    def caller() -> str:
        return asyncio.run(principal_of_connection({"headers": [(b"authorization", f"Bearer {key}".encode())]})).name

    assert caller() == "client"
    assert main(["key", "revoke", key]) == 0
    with pytest.raises(NotAuthenticated):
        caller()
