"""Settings of the data directory, which holds all files of the server.

Reading settings creates no files. ``prepare_data_dir`` creates them, and the entry points of processes
(``manage.py``, the ASGI and Celery modules, ``blazr serve``) call it before Django reads the settings.
"""

from __future__ import annotations

import os
import secrets
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
    help="Models that requests to /api/pull may fetch from the hub at once, per web process; 0: none at all.",
)
BLAZR_MAX_FILE_BYTES: int = read.required_size_bytes(
    "BLAZR_MAX_FILE_BYTES", 200 << 20, low=1 << 10, help="Largest file that POST /v1/files takes."
)

SECRET_KEY_FILE = "secret_key"


def prepare_data_dir() -> Path:
    """Create the data directory and its secret key if missing; several processes may call this at once.

    Returns:
        The data directory.

    Raises:
        ImproperlyConfigured: It can't be made or written.
    """
    places = (BLAZR_BLOBS_DIR, BLAZR_CHECKPOINTS_DIR, BLAZR_UPLOADS_DIR, BLAZR_FILES_DIR, BLAZR_LOG_DIR)
    try:
        for directory in (BLAZR_DATA_DIR, *places):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_secret_once(BLAZR_DATA_DIR / SECRET_KEY_FILE, secrets.token_urlsafe(50))
    except OSError as error:
        raise ImproperlyConfigured(
            f"the data directory {BLAZR_DATA_DIR} can't be written: {error.filename}: {error.strerror}; "
            "choose another --data-dir."
        ) from error
    # Importing this module has read the whole settings package, before the key was there. Django copies the values
    # later, at its first access.
    settings_module = sys.modules["blazr_site.settings"]
    settings_module.SECRET_KEY = _secret_key()  # type: ignore[attr-defined]
    return BLAZR_DATA_DIR


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
