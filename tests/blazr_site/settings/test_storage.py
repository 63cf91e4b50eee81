"""The data directory and its secrets."""

from __future__ import annotations

import stat

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
