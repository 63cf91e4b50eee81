"""Settings of Redis: one address, in the notations of three client libraries.

Celery, redis-py and channels-redis write the address of a unix socket in different ways; this module derives all of
them. Without ``REDIS_URL``, ``blazr serve`` starts the server, on a socket in a short directory named after the data
directory, because a socket path holds about 107 bytes.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

from blazr_site.process_environment import SHORT_BASE, runtime_base
from blazr_site.settings import read
from blazr_site.settings.storage import BLAZR_DATA_DIR

_MAX_SOCKET_PATH_BYTES = 100


@dataclass(frozen=True, slots=True)
class RedisUrls:
    """The address of one server in the notations of three clients."""

    client: str  # redis-py: redis://, rediss://, unix://
    celery: str  # kombu: redis://, rediss://, redis+socket://
    channels: str  # channels-redis: as redis-py


def redis_urls(url: str, place: str = "REDIS_URL") -> RedisUrls:
    """Derive the three notations from any one of them; errors name ``place``.

    Raises:
        ImproperlyConfigured: The scheme is unknown or a part is missing.
    """
    expected = "redis://host:6379/0, rediss://host:6379/0 or unix:///run/redis.sock?db=0"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ImproperlyConfigured(f"{place} can't be read, it must look like {expected}.") from None
    query = parse_qs(parts.query)
    if parts.scheme in ("redis", "rediss"):
        database = parts.path.strip("/") or "0"
        if not parts.hostname or not database.isdigit():
            raise ImproperlyConfigured(f"{place} needs a host and a database number, such as {expected}.")
        login = parts.netloc.rpartition("@")[0]
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        same = f"{parts.scheme}://{login + '@' if login else ''}{host}:{port or 6379}/{database}"
        if parts.scheme == "rediss":
            return RedisUrls(same, f"{same}?ssl_cert_reqs=required", same)
        return RedisUrls(same, same, same)
    if parts.scheme in ("unix", "redis+socket"):
        path = unquote(parts.path)
        database = (query.get("db") or query.get("virtual_host") or ["0"])[0]
        if not path.startswith("/") or not database.isdigit():
            raise ImproperlyConfigured(f"{place} needs an absolute socket path, such as {expected}.")
        login = parts.netloc.rpartition("@")[0]
        login = login + "@" if login else ""
        client = f"unix://{login}{quote(path)}?db={database}"
        return RedisUrls(client, f"redis+socket://{login}{quote(path)}?virtual_host={database}", client)
    raise ImproperlyConfigured(f"{place} has the scheme {parts.scheme!r}, it must look like {expected}.")


def runtime_dir(data_dir: Path) -> Path:
    """Return the short directory for the sockets of the server of ``data_dir``; doesn't create it."""
    tag = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:10]
    base = runtime_base()
    if len(os.fsencode(base)) > _MAX_SOCKET_PATH_BYTES - 40:
        base = SHORT_BASE
    return base / f"blazr-{os.getuid()}-{tag}"


BLAZR_RUNTIME_DIR = runtime_dir(BLAZR_DATA_DIR)
BLAZR_EMBEDDED_REDIS_SOCKET = BLAZR_RUNTIME_DIR / "redis.sock"
_GIVEN_URL = read.text(
    "REDIS_URL", help="Redis (>= 6.2) of the cluster. Default: embedded, on a private unix socket.", is_secret=True
)
BLAZR_REDIS_EMBEDDED = _GIVEN_URL is None
_URLS = redis_urls(_GIVEN_URL or f"unix://{BLAZR_EMBEDDED_REDIS_SOCKET}?db=0", read.place_of("REDIS_URL"))
BLAZR_REDIS_URL = _URLS.client
# Timeout of one reply of Redis: far longer than a busy server needs, and short enough for a waiting client.
BLAZR_REDIS_TIMEOUT_S = 2.0
