"""Settings of default limits of API keys, of retention, and of request logging."""

from __future__ import annotations

from typing import Any

from blazr_site.settings import read
from blazr_site.settings.retired import former_integer

_KEY_LIMITS = read.pairs(
    "BLAZR_KEY_LIMITS",
    dict.fromkeys(("rpm", "tpm", "concurrent", "lines"), lambda value: read.parse_integer(value, 1, 10**9)),
    kind="rpm=N,tpm=N,concurrent=N,lines=N",
    help="Limits of a key without its own: requests and tokens a minute, open requests, lines of batches and jobs. "
    "Default: no limit.",
)
BLAZR_KEY_RPM = former_integer("BLAZR_KEY_RPM", _KEY_LIMITS.get("rpm"), low=1)
BLAZR_KEY_TPM = former_integer("BLAZR_KEY_TPM", _KEY_LIMITS.get("tpm"), low=1)
BLAZR_KEY_CONCURRENT = former_integer("BLAZR_KEY_CONCURRENT", _KEY_LIMITS.get("concurrent"), low=1)
BLAZR_KEY_LINES = former_integer("BLAZR_KEY_LINES", _KEY_LIMITS.get("lines"), low=1)

BLAZR_RETENTION_DAYS: int = read.required_integer(
    "BLAZR_RETENTION_DAYS",
    30,
    low=0,
    high=36_500,
    help="Days after which files of the API (unless stored with a time of their own), finished jobs, stored responses "
    "and the request log are deleted; 0: never.",
)
BLAZR_FILE_EXPIRE_DAYS: int = former_integer("BLAZR_FILE_EXPIRE_DAYS", BLAZR_RETENTION_DAYS, low=0)
BLAZR_RESPONSE_RETENTION_DAYS: int = former_integer("BLAZR_RESPONSE_RETENTION_DAYS", BLAZR_RETENTION_DAYS, low=1)
BLAZR_REQUEST_LOG_DAYS: int = former_integer("BLAZR_REQUEST_LOG_DAYS", BLAZR_RETENTION_DAYS, low=1)


def _request_logging(value: Any) -> str:
    """Parse ``off``, ``lines`` or ``contents``; a switch sets one of the first two."""
    if isinstance(value, bool) or value in ("1", "true", "yes", "on", "0", "false", "no", "off"):
        return "lines" if value in (True, "1", "true", "yes", "on") else "off"
    if value not in ("lines", "contents"):
        raise read.Wrong("one of off, lines, contents")
    return str(value)


_REQUEST_LOGGING = read.custom(
    "BLAZR_LOG_REQUESTS",
    _request_logging,
    kind="off | lines | contents",
    default="off",
    help="lines: log each generation at its end, with caller, model, tokens, times; contents: keep prompts and "
    "outputs in the request log too.",
)
BLAZR_LOG_REQUESTS = _REQUEST_LOGGING in ("lines", "contents")
BLAZR_REQUEST_LOG_CONTENTS = _REQUEST_LOGGING == "contents"
