"""Create, check and revoke API keys.

A key reads ``blazr_<id>_<secret><checksum>``: 12 characters that identify its row, 40 random base-62 characters, and 6
characters of the CRC-32 of all before. A mistyped key fails its checksum and costs no query. The row has the SHA-256 of
the key under a pepper (the site's SECRET_KEY), never the key. Rows are cached in the process for less than a second.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth import get_user_model
from django.utils import timezone

from inference.access.accounts import principal_of_user
from inference.errors import InvalidRequest, NotAuthenticated, NotFound
from inference.models import ApiKey
from inference.models.readable_rows import readable_rows
from inference.values.limits import MAX_LIMIT, KeyLimits
from inference.values.principal import DEFAULT_SCOPES, KEY_MARK, LOCAL, SCOPES, UNAUTHENTICATED, Principal
from inference.values.tenants import tenants_by_number

if TYPE_CHECKING:
    from datetime import datetime

_ALPHABET = string.digits + string.ascii_letters
_ID_CHARS, _SECRET_CHARS, _CHECKSUM_CHARS = 12, 40, 6
_KEY_PATTERN = re.compile(
    rf"{KEY_MARK}_([0-9A-Za-z]{{{_ID_CHARS}}})_([0-9A-Za-z]{{{_SECRET_CHARS + _CHECKSUM_CHARS}}})"
)

CACHE_S = 0.8
"""How long a row is cached. With the time of the query, a revoked key stops working within a second everywhere."""
MAX_CACHED_KEYS = 10_000
_NO_DIGEST = "0" * 64
MAX_MODEL_CHARS = 128
NO_OWN_LIMITS = KeyLimits()


@dataclass(frozen=True, slots=True)
class _CachedKey:
    digest: str
    principal: Principal
    expires_at: datetime | None


_cache: dict[str, tuple[float, _CachedKey | None]] = {}
"""Key prefix → (time of the read, the row if it is valid)."""


# --- the key itself ----------------------------------------------------------------------------


def _checksum(text: str) -> str:
    number = zlib.crc32(text.encode())
    characters = []
    for _ in range(_CHECKSUM_CHARS):
        number, rest = divmod(number, len(_ALPHABET))
        characters.append(_ALPHABET[rest])
    return "".join(characters)


def _random_text(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def _digest(key: str) -> str:
    return hmac.new(settings.SECRET_KEY.encode(), key.encode(), hashlib.sha256).hexdigest()


def key_prefix(key: str) -> str | None:
    """Return the public part of a well-formed key (the ``prefix`` of its row), or None; makes no query."""
    match = _KEY_PATTERN.fullmatch(key)
    if match is None or not key.endswith(_checksum(key[:-_CHECKSUM_CHARS])):
        return None
    return match.group(1)


def api_key_create(
    *,
    name: str,
    expires_at: datetime | None = None,
    scopes: Sequence[str] = DEFAULT_SCOPES,
    models: Sequence[str] = (),
    limits: KeyLimits = NO_OWN_LIMITS,
) -> tuple[ApiKey, str]:
    """Create a key.

    Args:
        name: Name for people.
        expires_at: None: never.
        scopes: Names of ``SCOPES`` that the key may use.
        models: Served names that the key may use; empty: all.
        limits: The key's own limits; None in them: the server's defaults.

    Returns:
        The row, and the key itself, which is stored nowhere.

    Raises:
        InvalidRequest: The name is empty or too long, the expiry has passed, a scope is unknown, a limit is no
            positive number.
    """
    if not name.strip() or len(name) > 100 or "\0" in name:
        raise InvalidRequest("the name of an API key needs 1 to 100 characters.", param="name")
    if expires_at is not None and expires_at <= timezone.now():
        raise InvalidRequest(f"the expiry {expires_at:%Y-%m-%d %H:%M} has passed.", param="expires_at")
    key_rules_check(scopes=scopes, models=models, limits=limits)
    identifier = _random_text(_ID_CHARS)
    body = f"{KEY_MARK}_{identifier}_{_random_text(_SECRET_CHARS)}"
    key = body + _checksum(body)
    row = ApiKey.objects.create(
        name=name.strip(),
        prefix=identifier,
        digest=_digest(key),
        expires_at=expires_at,
        scopes=sorted(set(scopes)),
        allowed_models=sorted(set(models)),
        requests_per_minute=limits.requests,
        tokens_per_minute=limits.tokens,
        max_concurrent=limits.concurrent,
        max_queued_lines=limits.lines,
    )
    return row, key


def key_rules_check(*, scopes: Sequence[str], models: Sequence[str], limits: KeyLimits) -> None:
    """Check the scopes, models and limits of a key.

    Raises:
        InvalidRequest: One is wrong; the message names it.
    """
    for scope in scopes:
        if scope not in SCOPES:
            raise InvalidRequest(f"the scope is {scope[:40]!r}; there are {', '.join(SCOPES)}.", param="scopes")
    if not scopes:
        raise InvalidRequest(f"a key needs at least one scope of {', '.join(SCOPES)}.", param="scopes")
    for model in models:
        if not 0 < len(model) <= MAX_MODEL_CHARS or "\0" in model:
            raise InvalidRequest(
                f"a model's name has 1 to {MAX_MODEL_CHARS} characters, without U+0000.", param="models"
            )
    for item in fields(limits):
        limit = getattr(limits, item.name)
        if limit is not None and not 1 <= limit <= MAX_LIMIT:
            raise InvalidRequest(
                f"the limit of {item.name} is {limit}, it must be from 1 to {MAX_LIMIT:,}; leave it out for the "
                "server's default.",
                param=item.name,
            )


def api_key_revoke(*, prefix: str) -> ApiKey:
    """Revoke a key for ever; revoking it twice changes nothing.

    Raises:
        NotFound: No key has this prefix, or its row is damaged, so that it lets nobody in.
    """
    rows = [] if "\0" in prefix else readable_rows(ApiKey.objects.filter(prefix=prefix), 1)
    if not rows:
        raise NotFound(f"There is no API key with the prefix {prefix[:40]!r}.", param="prefix")
    (row,) = rows
    if row.revoked_at is None:
        row.revoked_at = timezone.now()
        row.save(update_fields=["revoked_at"])
    key_cache_clear()
    return row


def key_cache_clear() -> None:
    """Clear the cached rows of this process."""
    _cache.clear()


# --- callers -----------------------------------------------------------------------------------


async def principal_of_key(authorization: str) -> Principal | None:
    """Return the caller of a Bearer key; None: the key is malformed, unknown, revoked or expired."""
    scheme, _, key = authorization.partition(" ")
    key = key.strip()
    if scheme.lower() != "bearer":
        return None
    prefix = key_prefix(key)
    if prefix is None:
        return None
    now = time.monotonic()
    read_at, cached = _cache.get(prefix, (-CACHE_S, None))
    if now - read_at > CACHE_S:
        cached = await sync_to_async(_read_key)(prefix)
        if len(_cache) >= MAX_CACHED_KEYS:
            key_cache_clear()
        _cache[prefix] = (now, cached)
    # Computed for unknown keys too, so that the time of a refusal doesn't tell which ids exist.
    is_right = hmac.compare_digest(_NO_DIGEST if cached is None else cached.digest, _digest(key))
    if cached is None or not is_right:
        return None
    if cached.expires_at is not None and cached.expires_at <= timezone.now():
        return None
    return cached.principal


def _read_key(prefix: str) -> _CachedKey | None:
    rows = readable_rows(ApiKey.objects.filter(prefix=prefix, revoked_at=None), 1)
    if not rows:
        return None
    (row,) = rows
    return _CachedKey(row.digest, _principal_of_row(row), row.expires_at)


def _principal_of_row(row: ApiKey) -> Principal:
    return Principal(
        "key",
        f"key:{row.pk}",
        row.name,
        row.pk,
        scopes=frozenset(row.scopes),
        models=frozenset(row.allowed_models) or None,
        limits=key_limits(row),
    )


def principal_of_tenant(tenant: str) -> Principal:
    """Return the caller of a stored ``tenant``, for work without a request.

    Raises:
        NotAuthenticated: The tenant's key was revoked or has expired, or its account is inactive.
    """
    kind, _, number = tenant.partition(":")
    if kind == "local":
        return UNAUTHENTICATED if settings.BLAZR_NO_AUTH else LOCAL
    if kind == "user":
        found = principal_of_user(get_user_model().objects.filter(pk=int(number)).first())
        if found is None:
            raise NotAuthenticated("The account that submitted this is inactive, or no staff account any more.")
        return found
    rows = readable_rows(ApiKey.objects.filter(pk=int(number), revoked_at=None), 1) if number.isdigit() else []
    row = next(iter(rows), None)
    if row is None or (row.expires_at is not None and row.expires_at <= timezone.now()):
        raise NotAuthenticated("The API key that asked for this was revoked or has expired.")
    return _principal_of_row(row)


def void_tenants(among: Iterable[str]) -> list[str]:
    """Return the tenants of ``among`` whose API key was revoked or has expired, or whose account may not sign in.

    An account that is gone may not either. Costs a query for keys and one for accounts, if there are any in ``among``.

    Args:
        among: Stored tenants.
    """
    tenants = list(among)
    keys, accounts = tenants_by_number("key", tenants), tenants_by_number("user", tenants)
    void = []
    if keys:
        rows = ApiKey.objects.exclude(ApiKey.valid()).filter(pk__in=keys)
        void += [keys[pk] for pk in rows.values_list("pk", flat=True)]
    if accounts:
        active = get_user_model().objects.filter(pk__in=accounts, is_active=True, is_staff=True)
        void += [accounts[pk] for pk in accounts.keys() - set(active.values_list("pk", flat=True))]
    return void


def key_limits(row: ApiKey) -> KeyLimits:
    """Return a key's limits: its own, else the server's defaults."""

    def first(own: int | None, default: int | None) -> int | None:
        return default if own is None else own

    return KeyLimits(
        requests=first(row.requests_per_minute, settings.BLAZR_KEY_RPM),
        tokens=first(row.tokens_per_minute, settings.BLAZR_KEY_TPM),
        concurrent=first(row.max_concurrent, settings.BLAZR_KEY_CONCURRENT),
        lines=first(row.max_queued_lines, settings.BLAZR_KEY_LINES),
    )
