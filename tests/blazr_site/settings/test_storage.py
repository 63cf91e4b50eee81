"""The data directory and its secrets."""

from __future__ import annotations

import stat

import pytest

from blazr_site.settings.storage import write_secret_once
from tests.blazr_site.settings.harness import run_python


def test_secret_is_written_once_and_private(tmp_path):
    secret = tmp_path / "secret"
    assert write_secret_once(secret, "one")
    assert not write_secret_once(secret, "two")
    assert secret.read_text() == "one\n"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [secret]


def test_first_start_makes_one_secret_key_for_all(tmp_path):
    code = (
        "import os; os.environ['DJANGO_SETTINGS_MODULE'] = 'blazr_site.settings'\n"
        "from blazr_site.settings.storage import prepare_data_dir; prepare_data_dir()\n"
        "from django.conf import settings; print(settings.SECRET_KEY)"
    )
    first, second = (run_python(code, BLAZR_DATA_DIR=str(tmp_path / "data")) for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert len(first.stdout.strip()) > 40
    assert first.stdout == second.stdout
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700


def test_a_data_directory_that_cannot_be_made_is_refused_with_the_reason(tmp_path):
    (tmp_path / "data").write_text("a file")
    code = "from blazr_site.settings.storage import prepare_data_dir; prepare_data_dir()"
    done = run_python(code, BLAZR_DATA_DIR=str(tmp_path / "data"))
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("django.core.exceptions.ImproperlyConfigured: the data directory")
    assert "File exists; choose another --data-dir." in last


def test_reading_settings_creates_nothing(tmp_path):
    done = run_python("import blazr_site.settings", BLAZR_DATA_DIR=str(tmp_path / "data"))
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


PREPARE = (
    "import os; os.environ['DJANGO_SETTINGS_MODULE'] = 'blazr_site.settings'\n"
    "from blazr_site.settings.storage import prepare_data_dir; prepare_data_dir()\n"
    "from django.core.management import call_command; import django; django.setup()\n"
    "from django.db import connection; connection.ensure_connection()"
)


@pytest.mark.parametrize("name", ["secret_key", "admin_password", "api_key"])
def test_a_secret_that_others_can_read_is_refused_with_the_command_that_mends_it(tmp_path, name):
    data = tmp_path / "data"
    data.mkdir(0o700)
    (data / name).write_text("secret")
    (data / name).chmod(0o640)
    done = run_python(PREPARE, BLAZR_DATA_DIR=str(data))
    assert done.returncode != 0
    assert f"Run: chmod go-rwx {data / name}" in done.stderr
    (data / name).chmod(0o600)
    assert run_python(PREPARE, BLAZR_DATA_DIR=str(data)).returncode == 0


def test_the_database_is_private_in_a_directory_that_others_can_enter(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    first = run_python(PREPARE, BLAZR_DATA_DIR=str(data))
    assert first.returncode == 0, first.stderr
    assert stat.S_IMODE((data / "db.sqlite3").stat().st_mode) == 0o600
    assert run_python(PREPARE, BLAZR_DATA_DIR=str(data)).returncode == 0
    (data / "db.sqlite3").chmod(0o644)
    assert f"chmod go-rwx {data / 'db.sqlite3'}" in run_python(PREPARE, BLAZR_DATA_DIR=str(data)).stderr
    data.chmod(0o700)
    assert run_python(PREPARE, BLAZR_DATA_DIR=str(data)).returncode == 0


@pytest.mark.parametrize("line", ['redis_url = "redis://:pw@cache"', 'database_url = "postgres://a:pw@db/b"'])
def test_a_settings_file_with_a_password_is_for_its_owner(tmp_path, line):
    file = tmp_path / "blazr.toml"
    file.write_text(line)
    file.chmod(0o644)
    done = run_python("import blazr_site.settings", cwd=tmp_path)
    assert f"Run: chmod go-rwx {file}" in done.stderr
    assert "pw" not in done.stderr.splitlines()[-1]
    file.chmod(0o600)
    assert run_python("import blazr_site.settings", cwd=tmp_path).returncode == 0
