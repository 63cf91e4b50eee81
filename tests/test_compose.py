"""docker-compose.yml: names only variables that the settings know, with values that they accept."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn
import yaml

import blazr_site.settings  # noqa: F401 - reading them declares the variables
from blazr_site.settings import celery, read
from blazr_site.supervisor import POOL

ROOT = Path(__file__).resolve().parents[1]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
OURS = ("migrate", "web", "worker", "beat")
GIVEN = {"BLAZR_SECRET_KEY": "x" * 50, "POSTGRES_PASSWORD": "secret", "REDIS_PASSWORD": "hidden"}


def _expand(value: str) -> str:
    """What compose makes of ${NAME}, ${NAME:-default} and ${NAME:?message}."""

    def one(match: re.Match[str]) -> str:
        name, _, rest = match[1].partition(":")
        if name in GIVEN:
            return GIVEN[name]
        assert rest.startswith("-"), f"{name} has no default"
        return rest[1:]

    return re.sub(r"\$\{([^}]*)\}", one, value)


def _environment(service: str) -> dict[str, str]:
    return {key: _expand(str(value)) for key, value in COMPOSE["services"][service]["environment"].items()}


def test_the_services_are_those_of_the_design():
    assert set(COMPOSE["services"]) == {*OURS, "redis", "postgres"}


@pytest.mark.parametrize("service", OURS)
def test_every_variable_is_known_to_the_settings(service):
    assert set(_environment(service)) <= {
        *read.KNOWN,
        "CELERY_CUSTOM_WORKER_POOL",
        "FORWARDED_ALLOW_IPS",
    }


async def test_the_web_process_takes_the_client_address_from_the_proxies_that_it_is_told(monkeypatch):
    """By default from none: the port is open to others."""
    clients = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        clients.append(scope["client"][0])

    for given in (None, "172.16.0.0/12"):
        if given is not None:
            monkeypatch.setitem(GIVEN, "FORWARDED_ALLOW_IPS", given)
        monkeypatch.setenv("FORWARDED_ALLOW_IPS", _environment("web")["FORWARDED_ALLOW_IPS"])
        config = uvicorn.Config(app, lifespan="off")
        config.load()
        scope = {"type": "http", "client": ("172.18.0.1", 5), "headers": [(b"x-forwarded-for", b"192.0.2.60")]}
        await config.loaded_app(scope, None, None)  # type: ignore[arg-type]
    assert clients == ["172.18.0.1", "192.0.2.60"]


@pytest.mark.parametrize("service", OURS)
def test_the_settings_accept_every_value(service):
    code = (
        "from blazr_site import settings as s; print(s.DATABASES['default']['ENGINE'], s.DATABASES['default']['HOST'],"
        " s.BLAZR_REDIS_URL, s.BLAZR_API_KEY_REQUIRED, s.SECRET_KEY == 'x' * 50)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PATH": os.environ["PATH"], **_environment(service)}, cwd=ROOT,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        "django.db.backends.postgresql", "postgres", "redis://:hidden@redis:6379/0", "True", "True",
    ]  # fmt: skip


def test_addresses_name_services_of_the_file():
    environment = _environment("web")
    for name in ("REDIS_URL", "DATABASE_URL"):
        assert urlsplit(environment[name]).hostname in COMPOSE["services"]


def test_nothing_secret_has_a_default_and_only_the_web_port_is_open():
    text = (ROOT / "docker-compose.yml").read_text()
    assert all(
        rest.startswith(":?")
        for rest in re.findall(r"\$\{(?:BLAZR_SECRET_KEY|POSTGRES_PASSWORD|REDIS_PASSWORD)([^}]*)\}", text)
    )
    assert [name for name, service in COMPOSE["services"].items() if "ports" in service] == ["web"]


def test_processes_are_started_as_the_supervisor_starts_them():
    assert _environment("worker")["CELERY_CUSTOM_WORKER_POOL"] == POOL
    source = (ROOT / "blazr_site" / "supervisor.py").read_text()
    assert COMPOSE["services"]["web"]["command"] == ["python", "-m", "blazr_site.web"]
    assert '"-m", "blazr_site.web"' in source
    for service in ("worker", "beat"):
        for argument in COMPOSE["services"][service]["command"]:
            if argument.startswith("--"):
                assert f'"{argument}"' in source, f"the supervisor doesn't pass {argument} to {service}"


def test_redis_has_a_password_that_its_clients_know():
    redis = COMPOSE["services"]["redis"]
    assert '--requirepass "$$REDISCLI_AUTH"' in redis["command"][-1]
    assert _expand(redis["environment"]["REDISCLI_AUTH"]) == urlsplit(_environment("web")["REDIS_URL"]).password


def test_images_are_pinned_by_digest():
    pinned = r"[a-z]+:[0-9a-z.-]+@sha256:[0-9a-f]{64}"
    images = {_expand(service["image"]) for service in COMPOSE["services"].values()} - {"blazr"}
    assert len(images) == 2 and all(re.fullmatch(pinned, image) for image in images), images
    python = _expand(COMPOSE["services"]["web"]["build"]["args"]["PYTHON_IMAGE"])
    assert re.fullmatch(pinned, python), python
    assert f"ARG PYTHON_IMAGE={python}\nFROM ${{PYTHON_IMAGE}}" in (ROOT / "Dockerfile").read_text()


def test_the_grace_times_leave_room_for_the_drain():
    drain_s = celery.BLAZR_DRAIN_GRACE_S
    for service in ("web", "worker"):
        assert int(COMPOSE["services"][service]["stop_grace_period"].rstrip("s")) > drain_s
