"""List variables of earlier versions, with advice for environments that still set them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from django.core.exceptions import ImproperlyConfigured

from blazr_site.settings import sources

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Retired:
    """An earlier variable.

    Attributes:
        advice: What to set or do instead.
        is_read: Whether this version still uses the value if the new variable isn't set.
    """

    advice: str
    is_read: bool = False


_FIXED = "Remove it: the value is fixed."
_PREFIX = "Set BLAZR_PREFIX_CACHE, such as on,snapshots=4GiB,host=16GiB."
_LIMITS = "Set BLAZR_KEY_LIMITS, such as rpm=600,tpm=200000,concurrent=16,lines=50000."
_DAYS = "Set BLAZR_RETENTION_DAYS, which holds for files, stored responses and the request log."
_CHILD = "Remove it: blazr passes it to its own processes."

RETIRED = {
    "BLAZR_BATCH_MAX_INPUTS": Retired(_FIXED),
    "BLAZR_BATCH_MAX_LINES": Retired(_FIXED),
    "BLAZR_BATCH_MAX_OPEN": Retired(_FIXED),
    "BLAZR_BATCH_WINDOW": Retired(_FIXED),
    "BLAZR_DEBUG": Retired("Remove it: Django's debug pages are gone; BLAZR_LOG_LEVEL=DEBUG logs more."),
    "BLAZR_DRAIN_GRACE_S": Retired(_FIXED),
    "BLAZR_FILE_EXPIRE_DAYS": Retired(_DAYS, is_read=True),
    "BLAZR_GRAMMAR_COMPILE_S": Retired(_FIXED),
    "BLAZR_GRAMMAR_MAX_BYTES": Retired(_FIXED),
    "BLAZR_IDEMPOTENCY_MAX_BYTES": Retired(_FIXED),
    "BLAZR_IDEMPOTENCY_TTL_S": Retired(_FIXED),
    "BLAZR_KEY_CONCURRENT": Retired(_LIMITS, is_read=True),
    "BLAZR_KEY_LINES": Retired(_LIMITS, is_read=True),
    "BLAZR_KEY_RPM": Retired(_LIMITS, is_read=True),
    "BLAZR_KEY_TPM": Retired(_LIMITS, is_read=True),
    "BLAZR_MIN_RESIDENCE_S": Retired(_FIXED),
    "BLAZR_NATIVE_DIR": Retired("Set XDG_CACHE_HOME: built kernels are kept in blazr/native there."),
    "BLAZR_PRELOAD": Retired(_CHILD),
    "BLAZR_REDIS_TIMEOUT_S": Retired(_FIXED),
    "BLAZR_REQUEST_LOG_CHARS": Retired(_FIXED),
    "BLAZR_REQUEST_LOG_CONTENTS": Retired("Set BLAZR_LOG_REQUESTS=contents."),
    "BLAZR_REQUEST_LOG_DAYS": Retired(_DAYS, is_read=True),
    "BLAZR_RESPONSE_RETENTION_DAYS": Retired(_DAYS, is_read=True),
    "BLAZR_RESPONSE_STREAMS": Retired(_FIXED),
    "BLAZR_SNAPSHOT_BYTES": Retired(_PREFIX),
    "BLAZR_SNAPSHOT_HOST_BYTES": Retired(_PREFIX),
    "BLAZR_STREAM_INTERVAL_MS": Retired(_FIXED),
    "BLAZR_TRUSTED_ORIGINS": Retired("Set BLAZR_ALLOWED_HOSTS and BLAZR_HTTPS: the origins follow from both."),
    "BLAZR_VISIBILITY_TIMEOUT_S": Retired(_FIXED),
    "BLAZR_WORKER_ADMISSION": Retired(_FIXED),
    "BLAZR_WORKER_ID": Retired(_CHILD),
    "BLAZR_WORKER_LOST_TIMEOUT_S": Retired(_FIXED),
}


def former_integer(name: str, default: T, *, low: int) -> int | T:
    """Return the value of a retired variable that is still read; if unset, ``default``.

    Raises:
        ImproperlyConfigured: The value isn't a number, or is too small.
    """
    assert RETIRED[name].is_read
    text = sources.from_environment(name)
    if text is None:
        return default
    if not text.isdecimal() or int(text) < low:
        raise ImproperlyConfigured(f"{name} is {text[:60]!r}, it must be a whole number from {low}.")
    return int(text)
