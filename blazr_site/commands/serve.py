"""``blazr serve``: the whole platform on this machine, with one command."""

from __future__ import annotations

import argparse
import fcntl
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from blazr_site.process_environment import ProcessOptions, use_options, use_settings
from inference.errors import Conflict

if TYPE_CHECKING:
    from rich.console import Console

    from models_registry.models import Checkpoint

HELP = "start the whole platform: web, worker, queue, and the models that are named"
ADMIN_NAME = "admin"
_NAMED_MODEL = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,99})=(.+)")

# Option, environment variable that it sets, and its place in --help. The settings check the values.
_OPTIONS: tuple[tuple[str, str, str, str], ...] = (
    ("--host", "BLAZR_HOST", "ADDRESS", "address to listen on (127.0.0.1; beyond loopback, API keys are needed)"),
    ("--port", "BLAZR_PORT", "PORT", "port to listen on (8080; 0: any free one)"),
    ("--data-dir", "BLAZR_DATA_DIR", "DIR", "directory of database, uploads, logs and secrets (./data)"),
    ("--device", "BLAZR_DEVICE", "DEVICE", "cpu, cuda:N, several with commas: one worker each (auto)"),
    ("--dtype", "BLAZR_DTYPE", "TYPE", "float32, bfloat16, float16 (auto: what fits device and weights)"),
    ("--quant", "BLAZR_QUANT", "KIND", "int8 or int4: quantise the matrices as they are loaded (none)"),
    ("--speculative", "BLAZR_SPECULATIVE", "HOW", "draft tokens: ngram or draft:MODEL, and perhaps ,k=N (off)"),
    ("--max-model-len", "BLAZR_MAX_MODEL_LEN", "N", "longest prompt plus output in tokens (the model's)"),
    ("--max-num-seqs", "BLAZR_MAX_NUM_SEQS", "N", "requests of a model that are computed together (64)"),
    (
        "--memory-budget",
        "BLAZR_MEMORY_BUDGET",
        "BYTES",
        "memory for all models, e.g. 24GiB (70 %% of RAM, 90 %% of a GPU)",
    ),
    ("--cache-bytes", "BLAZR_CACHE_BYTES", "BYTES", "memory for the states of one model (by what is free)"),
    ("--cache-dir", "BLAZR_CACHE_DIR", "DIR", "directory in which the prefix cache outlives a restart (none)"),
    ("--cache-dir-bytes", "BLAZR_CACHE_DIR_BYTES", "BYTES", "most bytes in that directory (16GiB)"),
    ("--prefix-cache", "BLAZR_PREFIX_CACHE", "HOW", "on, off, or on,snapshots=BYTES,host=BYTES (on)"),
    ("--keep-alive", "BLAZR_KEEP_ALIVE_S", "SECONDS", "unload unused models after so long (300; -1: never)"),
    ("--threads", "BLAZR_NUM_THREADS", "N", "compute threads of a CPU worker (the cores)"),
    ("--log-level", "BLAZR_LOG_LEVEL", "LEVEL", "DEBUG, INFO, WARNING or ERROR (INFO)"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command; each has an environment variable, which the option overrules."""
    parser.add_argument(
        "--model",
        action="append",
        metavar="[NAME=]MODEL",
        help="directory, .safetensors file or HuggingFace id to load and keep; repeatable (BLAZR_MODEL)",
    )
    for option, variable, metavar, text in _OPTIONS:
        parser.add_argument(option, dest=variable, metavar=metavar, help=f"{text} ({variable})")
    parser.add_argument("--no-prefix-cache", action="store_true", help="the same as --prefix-cache off")
    parser.add_argument("--cpu", action="store_true", help="the same as --device cpu")
    parser.add_argument(
        "--no-auth", action="store_true", help="serve the API without keys even beyond loopback (BLAZR_NO_AUTH)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Set everything up, then supervise it until a signal."""
    _set_environment(arguments)
    from blazr_site.settings.storage import prepare_data_dir

    data_dir = prepare_data_dir()
    with _only_one(data_dir):
        return _serve(arguments)


def _set_environment(arguments: argparse.Namespace) -> None:
    options = {variable: (option, getattr(arguments, variable)) for option, variable, _, _ in _OPTIONS}
    if arguments.cpu:
        options["BLAZR_DEVICE"] = ("--cpu", "cpu")
    if arguments.no_prefix_cache:
        options["BLAZR_PREFIX_CACHE"] = ("--no-prefix-cache", "off")
    if arguments.no_auth:
        options["BLAZR_NO_AUTH"] = ("--no-auth", "true")
    use_options(ProcessOptions({name: given for name, given in options.items() if given[1] is not None}))
    use_settings()


@contextmanager
def _only_one(data_dir: Path) -> Iterator[None]:
    """One server for one data directory.

    Raises:
        Conflict: Another one runs.
    """
    with (data_dir / "serve.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(
                f"another blazr serve runs on the data directory {str(data_dir)!r}; stop it, or choose --data-dir."
            ) from None
        yield


def _serve(arguments: argparse.Namespace) -> int:
    import django
    from rich.console import Console

    django.setup()
    from django.conf import settings

    from blazr_site.supervisor import Site, check_port, device_list, free_port, run_site
    from models_registry.uploads import storage_sweep

    console = Console(highlight=False)
    port = settings.BLAZR_PORT or free_port(settings.BLAZR_HOST)
    check_port(settings.BLAZR_HOST, port)
    console.print("[bold]blazr[/bold]")
    _migrate(console)
    storage_sweep()  # what an interrupted upload left behind
    models = _register(arguments.model or settings.BLAZR_MODEL, console)
    password = admin_password(settings.BLAZR_DATA_DIR)
    key = first_api_key(settings.BLAZR_DATA_DIR) if settings.BLAZR_API_KEY_REQUIRED else None
    # Forked children must not share the connection.
    from django.db import connections

    connections.close_all()
    site = Site(
        host=settings.BLAZR_HOST,
        port=port,
        data_dir=settings.BLAZR_DATA_DIR,
        log_dir=settings.BLAZR_LOG_DIR,
        runtime_dir=settings.BLAZR_RUNTIME_DIR,
        redis_url=settings.BLAZR_REDIS_URL,
        redis_socket=settings.BLAZR_EMBEDDED_REDIS_SOCKET if settings.BLAZR_REDIS_EMBEDDED else None,
        devices=device_list(settings.BLAZR_DEVICE),
        preload={model.checkpoint_id: model.name for model in models if model.preload},
        drain_grace_s=settings.BLAZR_DRAIN_GRACE_S,
        max_body_bytes=settings.BLAZR_MAX_BODY_BYTES,
    )
    return run_site(site, console, lambda: _welcome(console, site.url, models, password, key))


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A registered model, as far as the welcome needs it."""

    checkpoint_id: str
    name: str
    preload: bool
    has_text: bool


def _migrate(console: Console) -> None:
    from django.core.management import call_command
    from django.db import connection

    call_command("migrate", interactive=False, verbosity=0)
    console.print(f"  [green]✓[/green] database {connection.vendor}")


def _register(models: list[str], console: Console) -> list[ServedModel]:
    """Register what was named; the demo model, if nothing was and nothing is registered.

    Models of earlier starts load with their first request; the demo is small enough to be there at once.
    """
    from inference.demo.paths import PREBUILT_DIRECTORY, SERVED_MODEL_NAME
    from models_registry.models import Checkpoint

    if not models and not Checkpoint.objects.exists():
        models = [SERVED_MODEL_NAME]
    served = [_register_one(text, console) for text in models]
    if not served:
        served = [
            ServedModel(str(row.pk), row.served_model_name, row.path == str(PREBUILT_DIRECTORY), _has_text(row))
            for row in Checkpoint.objects.order_by("created_at")[:1]
        ]
    return served


def _register_one(text: str, console: Console) -> ServedModel:
    from blazr_site.commands.models import resolve_model
    from inference.demo.paths import PREBUILT_DIRECTORY, SERVED_MODEL_NAME
    from inference.host.units import format_bytes, format_count
    from models_registry.models import Checkpoint
    from models_registry.services import checkpoint_register

    name, place = None, text
    match = _NAMED_MODEL.fullmatch(text)
    if match and not Path(text).expanduser().exists():
        name, place = match[1], match[2]
    path = resolve_model(place)
    if path == PREBUILT_DIRECTORY and name is None:
        name = SERVED_MODEL_NAME
    is_hub = not Path(place).expanduser().exists() and path != PREBUILT_DIRECTORY
    row = checkpoint_register(
        path=path,
        served_model_name=name,
        source=Checkpoint.Source.HUB if is_hub else Checkpoint.Source.PATH,
        origin=place if is_hub else "",
    )
    console.print(
        f"  [green]✓[/green] model    {row.served_model_name}: {row.architecture}, "
        f"{format_count(row.num_parameters)} parameters, {format_bytes(row.size_bytes)}",
        soft_wrap=True,
    )
    return ServedModel(str(row.pk), row.served_model_name, True, _has_text(row))


def _has_text(row: Checkpoint) -> bool:
    return bool(row.inspection["tokenizer"]["kind"] != "none")


def admin_password(data_dir: Path) -> str | None:
    """The generated password of the first administrator, as long as it is still in force.

    At the first start the account is made, and its password kept in a file that only the owner can read. Once the
    password was changed the file is removed.
    """
    from django.contrib.auth import get_user_model

    from blazr_site.settings.storage import write_secret_once

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
    """The API key made at the first start that needed one, as long as it is valid."""
    from blazr_site.settings.storage import write_secret_once
    from inference.access.api_keys import api_key_create, key_prefix
    from inference.models import ApiKey
    from inference.values.principal import SCOPES

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


def curl_line(url: str, model: ServedModel, key: str | None) -> str:
    """A command that streams a completion from the served model."""
    prompt = '"The statement"' if model.has_text else "[1, 2, 3]"
    header = f" -H 'Authorization: Bearer {key}'" if key else ""
    body = f'{{"model": "{model.name}", "prompt": {prompt}, "max_tokens": 48, "stream": true}}'
    return f"curl -N {url}/v1/completions -H 'Content-Type: application/json'{header} -d '{body}'"
