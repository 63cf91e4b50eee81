"""The database of a URL."""

from __future__ import annotations

import pytest
from django.core.exceptions import ImproperlyConfigured

from blazr_site.settings.database import database_config
from tests.blazr_site.settings.harness import run_python


def test_sqlite_is_opened_for_many_processes(tmp_path):
    config = database_config(f"sqlite:///{tmp_path}/x.sqlite3")
    assert config["OPTIONS"]["transaction_mode"] == "IMMEDIATE"
    assert "journal_mode=WAL" in config["OPTIONS"]["init_command"]


@pytest.mark.parametrize("url", ["mysql://u:hunter2@h/db", "nonsense", "postgres://u:hunter2@h:port/x"])
def test_bad_database_url_is_refused_by_name_and_keeps_its_password(url):
    with pytest.raises(ImproperlyConfigured, match="DATABASE_URL") as caught:
        database_config(url)
    assert "hunter2" not in str(caught.value)


def test_postgres_ends_what_hangs_and_what_waits_for_it():
    options = database_config("postgres://u:p@h/db")["OPTIONS"]["options"]
    assert options == (
        "-c statement_timeout=30000 -c lock_timeout=5000 -c idle_in_transaction_session_timeout=5000"
    )  # F73 shows why the last is needed


def test_postgres_by_database_url(postgres_url, tmp_path):
    """Migrations run and a row is written and read back on a real PostgreSQL."""
    code = (
        "import os; os.environ['DJANGO_SETTINGS_MODULE'] = 'blazr_site.settings'\n"
        "import django; django.setup()\n"
        "from django.core.management import call_command; call_command('migrate', verbosity=0)\n"
        "from django.db import connection; from django.contrib.auth.models import User\n"
        "User.objects.create_user('ada'); print(connection.vendor, User.objects.get(username='ada').username)"
    )
    done = run_python(code, DATABASE_URL=postgres_url, BLAZR_DATA_DIR=str(tmp_path / "data"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["postgresql", "ada"]
