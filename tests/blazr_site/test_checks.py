"""System checks: the data directory, misspelt variables, host names, and what the kernel can't confine."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from blazr_site import checks
from inference.host.confinement import Confinement


def test_a_secret_that_others_can_read_is_an_error(tmp_path, settings):
    settings.BLAZR_DATA_DIR = tmp_path / "data"
    assert checks.data_directory(None) == []
    settings.BLAZR_DATA_DIR.mkdir()
    secret = settings.BLAZR_DATA_DIR / "secret_key"
    secret.write_text("x")
    secret.chmod(0o644)
    assert [message.id for message in checks.data_directory(None)] == ["blazr.E002"]
    secret.chmod(0o600)
    assert checks.data_directory(None) == []


def test_a_data_directory_that_is_a_file_is_an_error(tmp_path, settings):
    settings.BLAZR_DATA_DIR = tmp_path / "file"
    settings.BLAZR_DATA_DIR.write_text("")
    assert [message.id for message in checks.data_directory(None)] == ["blazr.E001"]


def test_misspelt_variables_are_named(monkeypatch):
    monkeypatch.setenv("BLAZR_PROT", "8080")
    messages = checks.variable_names(None)
    assert [message.id for message in messages] == ["blazr.W001"]
    assert "BLAZR_PROT" in messages[0].msg


def test_any_host_name_is_a_warning_of_a_deployment(settings):
    settings.ALLOWED_HOSTS = ["*"]
    assert [message.id for message in checks.host_names(None)] == ["blazr.W002"]
    settings.ALLOWED_HOSTS = ["llm.example"]
    assert checks.host_names(None) == []


@pytest.mark.parametrize(("found", "num"), [(Confinement(7, True), 0), (Confinement(0, True), 1)])
def test_what_the_kernel_cannot_confine_is_a_warning(monkeypatch, found, num):
    monkeypatch.setattr(checks, "confinement", lambda: found)
    assert [message.id for message in checks.confinement_of_children(None)] == ["blazr.W003"] * num


def test_a_site_behind_tls_passes_the_checks_of_a_deployment(tmp_path):
    """The settings of docker-compose.yml with BLAZR_HTTPS, in a process of their own."""
    environment = {
        "PATH": os.environ["PATH"],
        "BLAZR_SECRET_KEY": secrets.token_urlsafe(50),
        "BLAZR_DATA_DIR": str(tmp_path),
        "BLAZR_HOST": "0.0.0.0",
        "BLAZR_ALLOWED_HOSTS": "llm.example",
        "BLAZR_HTTPS": "true",
    }
    done = subprocess.run(
        [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"],
        cwd=Path(__file__).resolve().parents[2],
        env=environment,
        capture_output=True,
        text=True,
    )
    # Only a kernel without Landlock may add something.
    assert set(re.findall(r"\((\w+\.\w+)\)", done.stderr)) <= {"blazr.W003"}, done.stderr
    assert "System check identified" in done.stderr + done.stdout
