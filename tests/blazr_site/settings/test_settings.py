"""The settings: typed readers, Redis spellings, databases, files."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured
from hypothesis import given
from hypothesis import strategies as st

from blazr_site.log_lines import escape_controls
from blazr_site.settings.api import is_loopback
from blazr_site.settings.database import database_config
from blazr_site.settings.redis import redis_urls, runtime_dir
from blazr_site.settings.storage import write_secret_once

ROOT = Path(__file__).resolve().parents[3]


def test_three_spellings_of_one_redis():
    urls = redis_urls("unix:///run/x.sock?db=3")
    assert urls.client == urls.channels == "unix:///run/x.sock?db=3"
    assert urls.celery == "redis+socket:///run/x.sock?virtual_host=3"
    assert redis_urls(urls.celery) == urls
    tcp = redis_urls("redis://:secret@cache:6380/2")
    assert tcp.client == tcp.celery == tcp.channels == "redis://:secret@cache:6380/2"
    assert redis_urls("redis://cache").client == "redis://cache:6379/0"


@pytest.mark.parametrize("url", ["", "cache:6379", "amqp://x", "redis://", "unix://relative", "redis://h:99999999/0"])
def test_bad_redis_url_is_refused_by_name(url):
    with pytest.raises(ImproperlyConfigured, match="REDIS_URL"):
        redis_urls(url)


def test_runtime_dir_is_short_and_depends_on_the_data_dir(monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/" + "deep/" * 30)
    one, two = runtime_dir(Path("/a" * 90)), runtime_dir(Path("/b"))
    assert one != two
    assert len(os.fsencode(one / "redis.sock")) < 100


def test_sqlite_is_opened_for_many_processes(tmp_path):
    config = database_config(f"sqlite:///{tmp_path}/x.sqlite3")
    assert config["OPTIONS"]["transaction_mode"] == "IMMEDIATE"
    assert "journal_mode=WAL" in config["OPTIONS"]["init_command"]


@pytest.mark.parametrize("url", ["mysql://u:hunter2@h/db", "nonsense", "postgres://u:hunter2@h:port/x"])
def test_bad_database_url_is_refused_by_name_and_keeps_its_password(url):
    with pytest.raises(ImproperlyConfigured, match="DATABASE_URL") as caught:
        database_config(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "wanted"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("127.8.8.8", True), ("0.0.0.0", False), ("::", False)],
)
def test_loopback(host, wanted):
    assert is_loopback(host) is wanted


def test_secret_is_written_once_and_private(tmp_path):
    secret = tmp_path / "secret"
    assert write_secret_once(secret, "one")
    assert not write_secret_once(secret, "two")
    assert secret.read_text() == "one\n"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [secret]


@given(st.text())
def test_log_text_holds_no_control_character(text):
    escaped = escape_controls(text)
    assert all(ord(char) >= 32 and ord(char) not in range(0x7F, 0xA0) for char in escaped if char not in "\t\n")


def _python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("BLAZR_", "DJANGO_"))}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment | variables, cwd=ROOT, capture_output=True, text=True, timeout=60
    )


def test_first_start_makes_one_secret_key_for_all(tmp_path):
    code = (
        "import os; os.environ['DJANGO_SETTINGS_MODULE'] = 'blazr_site.settings'\n"
        "from blazr_site.settings.storage import prepare_data_dir; prepare_data_dir()\n"
        "from django.conf import settings; print(settings.SECRET_KEY)"
    )
    first, second = (_python(code, BLAZR_DATA_DIR=str(tmp_path / "data")) for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert len(first.stdout.strip()) > 40
    assert first.stdout == second.stdout
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700


def test_reading_settings_creates_nothing(tmp_path):
    done = _python("import blazr_site.settings", BLAZR_DATA_DIR=str(tmp_path / "data"))
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_postgres_by_database_url(postgres_url, tmp_path):
    """Migrations run and a row is written and read back on a real PostgreSQL."""
    code = (
        "import os; os.environ['DJANGO_SETTINGS_MODULE'] = 'blazr_site.settings'\n"
        "import django; django.setup()\n"
        "from django.core.management import call_command; call_command('migrate', verbosity=0)\n"
        "from django.db import connection; from django.contrib.auth.models import User\n"
        "User.objects.create_user('ada'); print(connection.vendor, User.objects.get(username='ada').username)"
    )
    done = _python(code, DATABASE_URL=postgres_url, BLAZR_DATA_DIR=str(tmp_path / "data"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["postgresql", "ada"]
