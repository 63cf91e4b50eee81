"""Run ``blazr serve``: start all processes on this machine and supervise them."""

from __future__ import annotations

import argparse
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import connection, connections
from rich.console import Console

from blazr_site.commands.models import resolve_model
from blazr_site.listeners import open_listeners
from blazr_site.running_servers import LOCK_FILE, announced
from blazr_site.settings.models import ConfiguredModel
from blazr_site.settings.storage import write_secret_once
from blazr_site.supervisor import Site, device_list, run_site
from inference.access.api_keys import api_key_create, key_prefix
from inference.demo.paths import PREBUILT_DIRECTORY, SERVED_MODEL_NAME
from inference.errors import CheckpointError, ChecksumMismatch, Conflict
from inference.host.confinement import confinement
from inference.host.disk import try_lock
from inference.host.units import format_bytes, format_count
from inference.models import ApiKey
from inference.values.principal import SCOPES
from models_registry.aliases import alias_checkpoint_id, alias_promote
from models_registry.detection.child import inspect_in_child
from models_registry.model_paths import model_origin
from models_registry.models import Checkpoint, ModelAlias
from models_registry.passport_gaps import passport_gap
from models_registry.services import (
    checkpoint_files_verify,
    checkpoint_refresh,
    checkpoint_register,
    checkpoint_settings_update,
)
from models_registry.sweep import storage_sweep

ADMIN_NAME = "admin"
_LOCK_ATTEMPTS = 5
"""Other commands hold the lock for a moment to see whether a server runs."""


def run(arguments: argparse.Namespace) -> int:
    """Start all processes and supervise them until a signal."""
    with _only_one(settings.BLAZR_DATA_DIR) as lock, announced(settings.BLAZR_DATA_DIR):
        return _serve(lock)


@contextmanager
def _only_one(data_dir: Path) -> Iterator[IO[str]]:
    """Hold the lock that allows one server per data directory; yields its file, which other commands read.

    Raises:
        Conflict: Another server runs on the directory.
    """
    with (data_dir / LOCK_FILE).open("a+") as lock:
        for _ in range(_LOCK_ATTEMPTS):
            if try_lock(lock.fileno()):
                break
            time.sleep(0.02)
        else:
            raise Conflict(
                f"another blazr serve runs on the data directory {str(data_dir)!r}; stop it, or choose --data-dir."
            )
        lock.truncate(0)
        yield lock


def _serve(lock: IO[str]) -> int:
    console = Console(highlight=False)
    listeners = open_listeners(settings.BLAZR_HOST, settings.BLAZR_PORT)
    console.print("[bold]blazr[/bold]")
    for gap in confinement().gaps:
        console.print(f"  [yellow]note:[/yellow] {gap}", soft_wrap=True)
    _migrate(console)
    storage_sweep()  # removes the files of interrupted uploads and quantisations
    models = _register(settings.BLAZR_MODELS, console)
    password = admin_password(settings.BLAZR_DATA_DIR)
    key = first_api_key(settings.BLAZR_DATA_DIR) if settings.BLAZR_API_KEY_REQUIRED else None
    # Forked children must not share the connection.
    connections.close_all()
    site = Site(
        host=settings.BLAZR_HOST,
        port=listeners[0].getsockname()[1],
        data_dir=settings.BLAZR_DATA_DIR,
        log_dir=settings.BLAZR_LOG_DIR,
        runtime_dir=settings.BLAZR_RUNTIME_DIR,
        redis_url=settings.BLAZR_REDIS_URL,
        redis_socket=settings.BLAZR_EMBEDDED_REDIS_SOCKET if settings.BLAZR_REDIS_EMBEDDED else None,
        devices=device_list(settings.BLAZR_DEVICE),
        preload={model.checkpoint_id: model.name for model in models if model.preload},
        drain_grace_s=settings.BLAZR_DRAIN_GRACE_S,
        listeners=listeners,
    )

    def on_ready() -> None:
        lock.write(site.url + "\n")
        lock.flush()
        _welcome(console, site.url, models, password, key)

    return run_site(site, console, on_ready)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A registered model, with the fields that the welcome shows.

    Attributes:
        preload: Load it at the start.
        example: What the printed request sends: a chat message, a text to continue, or token ids.
    """

    checkpoint_id: str
    name: str
    preload: bool
    example: Literal["chat", "text", "token_ids"]


def _migrate(console: Console) -> None:
    call_command("migrate", interactive=False, verbosity=0)
    console.print(f"  [green]✓[/green] database {connection.vendor}")


def _register(models: Sequence[ConfiguredModel], console: Console) -> list[ServedModel]:
    """Register the configured models; the demo model, if none is configured or registered.

    Models of earlier starts load at their first request; the demo is small enough to load at once.
    """
    if not models and not Checkpoint.objects.exists():
        models = [ConfiguredModel(SERVED_MODEL_NAME)]
    _refresh_shipped()
    served = [_register_one(model, console) for model in models]
    if not served:
        served = [
            ServedModel(str(row.pk), row.served_model_name, row.path == str(PREBUILT_DIRECTORY), _example(row))
            for row in Checkpoint.objects.order_by("created_at")[:1]
        ]
    return served


def _refresh_shipped() -> None:
    """Inspect the demo model again if its files are others than before: an update of blazr replaces them."""
    row = Checkpoint.objects.filter(path=str(PREBUILT_DIRECTORY)).first()
    if row is None:
        return
    try:
        checkpoint_files_verify(row)
    except ChecksumMismatch:
        with suppress(CheckpointError):  # its row says what is wrong with it
            checkpoint_refresh(checkpoint=row)


def _register_one(model: ConfiguredModel, console: Console) -> ServedModel:
    path = resolve_model(model.model)
    is_demo = path == PREBUILT_DIRECTORY
    is_hub = not Path(model.model).expanduser().exists() and not is_demo
    row = checkpoint_register(
        path=path,
        served_model_name=model.name or (SERVED_MODEL_NAME if is_demo else None),
        source=Checkpoint.Source.HUB if is_hub else Checkpoint.Source.PATH,
        origin=model_origin(model.model) if is_hub else "",
        overrides=model.overrides,
        inspect=inspect_in_child,
    )
    if model.settings:
        checkpoint_settings_update(checkpoint=row, values=model.settings)
    for alias in model.aliases:
        if alias_checkpoint_id(alias) != row.pk:
            _promote(alias, row, console)
    console.print(
        f"  [green]✓[/green] model    {row.served_model_name}: {row.architecture}, "
        f"{format_count(row.num_parameters)} parameters, {format_bytes(row.size_bytes)}",
        soft_wrap=True,
    )
    return ServedModel(str(row.pk), row.served_model_name, model.load, _example(row))


def _promote(alias: str, row: Checkpoint, console: Console) -> None:
    """Point a configured alias to its model; one that demands a passport waits for it, as only a server makes any."""
    known = ModelAlias.objects.filter(name=alias).first()
    gap = passport_gap(row) if known is not None and known.demands_passport else ""
    if gap:
        console.print(
            f"  [yellow]note:[/yellow] the alias {alias} demands a passport and stays as it is; of "
            f"{row.served_model_name}: {gap}.",
            soft_wrap=True,
        )
        return
    alias_promote(name=alias, checkpoint=row)


def _example(row: Checkpoint) -> Literal["chat", "text", "token_ids"]:
    tokenizer = row.inspection["tokenizer"]
    if tokenizer["kind"] == "none":
        return "token_ids"
    # The demo model has a template, but it only continues text in a sensible way.
    return "chat" if tokenizer["chat_template"] and row.path != str(PREBUILT_DIRECTORY) else "text"


def admin_password(data_dir: Path) -> str | None:
    """Return the generated password of the first administrator while it is valid.

    The first start creates the account, and stores the password in a file that only the owner can read. The file is
    removed once the password was changed.
    """
    file = data_dir / "admin_password"
    users = get_user_model().objects
    if not users.filter(is_superuser=True).exists():
        file.unlink(missing_ok=True)
        write_secret_once(file, secrets.token_urlsafe(12))
        users.create_superuser(ADMIN_NAME, password=file.read_text().strip())
    if not file.exists():
        return None
    password = file.read_text().strip()
    user = users.filter(username=ADMIN_NAME).first()
    if user is None or not user.check_password(password):
        file.unlink()
        return None
    return password


def first_api_key(data_dir: Path) -> str | None:
    """Return the API key of the first start that needed one, while the key is valid."""
    file = data_dir / "api_key"
    if not ApiKey.objects.exists():
        file.unlink(missing_ok=True)
        write_secret_once(file, api_key_create(name="first start", scopes=tuple(SCOPES))[1])
    if not file.exists():
        return None
    key = file.read_text().strip()
    prefix = key_prefix(key)
    if prefix is None or not ApiKey.objects.filter(prefix=prefix, revoked_at=None).exists():
        file.unlink()
        return None
    return key


def _welcome(console: Console, url: str, models: list[ServedModel], password: str | None, key: str | None) -> None:
    console.print(f"\n  [bold]{url}[/bold]")
    if password is not None:
        console.print(f"  user [bold]{ADMIN_NAME}[/bold], password [bold]{password}[/bold]")
    else:
        console.print(f"  user [bold]{ADMIN_NAME}[/bold], password as you set it")
    if models:
        console.print("\n  Try:", curl_line(url, models[0], key), sep="\n  ", soft_wrap=True, markup=False)
    console.print("\n  [dim]Ctrl-C stops everything.[/dim]\n")


_EXAMPLES = {
    "chat": ("chat/completions", '"messages": [{"role": "user", "content": "Who are you?"}]'),
    "text": ("completions", '"prompt": "The statement"'),
    "token_ids": ("completions", '"prompt": [1, 2, 3]'),
}
"""Endpoint and prompt of the printed request."""


def curl_line(url: str, model: ServedModel, key: str | None) -> str:
    """Return a curl command that streams a response of the served model."""
    endpoint, prompt = _EXAMPLES[model.example]
    header = f" -H 'Authorization: Bearer {key}'" if key else ""
    body = f'{{"model": "{model.name}", {prompt}, "max_tokens": 48, "stream": true}}'
    return f"curl -N {url}/v1/{endpoint} -H 'Content-Type: application/json'{header} -d '{body}'"
