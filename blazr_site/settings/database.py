"""Settings of the database: SQLite in the data directory, or the one of ``DATABASE_URL``."""

from __future__ import annotations

from typing import Any

import dj_database_url
from django.core.exceptions import ImproperlyConfigured

from blazr_site.settings import read
from blazr_site.settings.storage import BLAZR_DATA_DIR, DATABASE_FILE

# A deferred transaction that turns from reading to writing ignores the busy timeout and fails with "database is
# locked", so transactions start as IMMEDIATE.
SQLITE_OPTIONS = {
    "timeout": 20,
    "transaction_mode": "IMMEDIATE",
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA busy_timeout=20000;",
}
POSTGRESQL_LIMITS_MS = {
    "statement_timeout": 30_000,
    "lock_timeout": 5_000,
    # Of a process that hangs between two statements: else what it has locked, the work of a lost worker too, stays so.
    "idle_in_transaction_session_timeout": 5_000,
}
_ENGINES = ("django.db.backends.sqlite3", "django.db.backends.postgresql")


def database_config(url: str | None, place: str = "DATABASE_URL") -> dict[str, Any]:
    """Return Django's connection settings for a database URL; None: the embedded SQLite file. Errors name ``place``.

    Raises:
        ImproperlyConfigured: The URL can't be read, or names a database that isn't supported.
    """
    if url is None:
        url = f"sqlite:///{BLAZR_DATA_DIR / DATABASE_FILE}"
    expected = "a URL such as postgres://user:password@host:5432/name or sqlite:////path/db.sqlite3"
    scheme = url.split(":", 1)[0]
    try:
        config: dict[str, Any] = dict(dj_database_url.parse(url))
    except Exception as error:  # the parser raises its own, ValueError and KeyError
        raise ImproperlyConfigured(f"{place} (scheme {scheme!r}) can't be read, it must be {expected}.") from error
    if config.get("ENGINE") not in _ENGINES:
        raise ImproperlyConfigured(f"{place} has the scheme {scheme!r}, it must be {expected}.")
    if config["ENGINE"] == _ENGINES[0]:
        config["OPTIONS"] = {**config.get("OPTIONS", {}), **SQLITE_OPTIONS}
        return config
    # Connections end with their request, because async views run on short-lived threads.
    config["CONN_MAX_AGE"] = 0
    config["OPTIONS"] = {
        "connect_timeout": 5,
        "options": " ".join(f"-c {name}={limit_ms}" for name, limit_ms in POSTGRESQL_LIMITS_MS.items()),
        **config.get("OPTIONS", {}),
    }
    return config


DATABASES = {
    "default": database_config(
        read.text(
            "DATABASE_URL", help="PostgreSQL (or SQLite) URL. Default: SQLite in the data directory.", is_secret=True
        ),
        read.place_of("DATABASE_URL"),
    )
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
