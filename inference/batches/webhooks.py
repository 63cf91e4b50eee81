"""Send webhooks: a signed message to the client's URL at the end of a batch.

Messages are rows (an outbox), stored in the transaction that ends the batch. Any worker sends a due message. Failed
messages are retried with growing pauses, and dropped after the last one. Form and signature:
https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md; the body is OpenAI's event
(https://platform.openai.com/docs/guides/webhooks), which its SDK verifies.

The server calls no URL unless the operator allows it (``BLAZR_WEBHOOKS``). The host is resolved once, each address is
checked, and the connection uses a checked address, which prevents DNS rebinding. Redirects aren't followed, and
response bodies aren't read.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import http.client
import ipaddress
import logging
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import orjson
from django.conf import settings
from django.db import DatabaseError, connections
from django.db.models import Min
from django.utils import timezone

from inference.errors import InvalidRequest, UnsupportedFeature
from inference.models import Batch, WebhookDelivery

logger = logging.getLogger(__name__)

PAUSES_S = (5, 60, 300, 1800, 7200, 18_000, 36_000)
"""Seconds between attempts; about 18 hours in all."""
TIMEOUT_S = 10.0
TOTAL_S = 20.0
TRYING_S = 60.0
"""Lease of a sender in seconds; after a sender's death, another one sends the message."""
MAX_DELIVERIES = 20
"""Messages that a sender sends before it ends."""
NUM_SENDERS = 2
"""Threads of a worker that send messages at the same time."""
SECRET_MARK = "whsec_"  # noqa: S105 - the beginning of every secret
_PORTS = {"https": 443, "http": 80}
_senders = threading.BoundedSemaphore(NUM_SENDERS)
_turns_lock = threading.Lock()
_sending: set[str] = set()
"""Tenants of which this process sends a message now."""
_turns: dict[str, float] = {}
"""Monotonic time of the last turn of each tenant with due messages."""
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class AddressRefused(Exception):
    """The URL refers to an address that must not be called."""


# --- at the creation of a batch ----------------------------------------------------------------


def checked(webhook: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return (URL, secret) of a request's ``webhook``; a missing secret is drawn. Empty strings: no webhook.

    Raises:
        UnsupportedFeature: Webhooks are off.
        InvalidRequest: The URL or the secret is wrong.
    """
    if webhook is None:
        return "", ""
    if settings.BLAZR_WEBHOOKS == "off":
        raise UnsupportedFeature(
            "webhook: this server calls nobody; its operator can allow it with BLAZR_WEBHOOKS=public.", param="webhook"
        )
    url = webhook["url"]
    try:
        split_url(url)
    except AddressRefused as error:
        raise InvalidRequest(f"webhook.url {error}", param="webhook.url") from None
    secret = webhook.get("secret")
    if secret is None:
        return url, SECRET_MARK + base64.b64encode(secrets.token_bytes(32)).decode()
    if not 24 <= len(_key(secret)) <= 64:
        raise InvalidRequest(
            f"webhook.secret must be {SECRET_MARK!r} and the base64 of 24 to 64 bytes.", param="webhook.secret"
        )
    return url, secret


def split_url(url: str) -> tuple[str, str, int, str]:
    """Return (scheme, host, port, path with query) of a webhook's URL.

    Raises:
        AddressRefused: The URL isn't valid for a webhook.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise AddressRefused("can't be read.") from None
    allowed = ("https", "http") if settings.BLAZR_WEBHOOKS == "any" else ("https",)
    if parts.scheme not in allowed or not parts.hostname:
        raise AddressRefused(f"must begin with {' or '.join(f'{name}://' for name in allowed)} and name a host.")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise AddressRefused("must hold no login and no fragment.")
    if not url.isascii() or any(ord(letter) <= 32 or ord(letter) == 127 for letter in url):
        raise AddressRefused("must be ASCII without spaces and control characters; encode them.")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return parts.scheme, parts.hostname, port or _PORTS[parts.scheme], path


def _key(secret: str) -> bytes:
    try:
        return base64.b64decode(secret.removeprefix(SECRET_MARK), validate=True)
    except (binascii.Error, ValueError):
        return b""


# --- at its end ----------------------------------------------------------------------------------


def schedule(batch: Batch) -> None:
    """Store the message about a batch's end in the outbox; called in the transaction that ends the batch."""
    if not batch.webhook_url:
        return
    now = timezone.now()
    message_id = f"evt_{batch.batch_id.removeprefix('batch_')}"
    event = {
        "id": message_id,
        "object": "event",
        "created_at": int(now.timestamp()),
        "type": f"batch.{batch.state}",
        "data": {"id": batch.batch_id},
    }
    WebhookDelivery.objects.create(
        message_id=message_id,
        batch=batch,
        payload=orjson.dumps(event).decode(),
        next_attempt_at=now,
        created_at=now,
    )


def signature(secret: str, message_id: str, timestamp: int, payload: str) -> str:
    """Return the header ``webhook-signature``."""
    signed = f"{message_id}.{timestamp}.{payload}".encode()
    return "v1," + base64.b64encode(hmac.new(_key(secret), signed, hashlib.sha256).digest()).decode()


def start_delivery() -> bool:
    """Send the due messages in a thread, because a slow receiver must not keep a thread of the worker's tasks.

    Returns:
        False: ``NUM_SENDERS`` threads are sending already.
    """
    if not _senders.acquire(blocking=False):
        return False
    threading.Thread(target=_send_due, name="webhooks", daemon=True).start()
    return True


def _send_due() -> None:
    try:
        deliver_due()
    except DatabaseError as error:
        logger.warning("webhooks can't be sent at the moment: %s", error)
    finally:
        connections.close_all()
        _senders.release()


def deliver_due() -> int:
    """Send the due messages and return their number. Several processes may run this at once.

    One sender at most of this process sends messages of a tenant, and the tenants take turns, so that a slow receiver
    delays the messages of its own tenant only.
    """
    done = 0
    for _ in range(MAX_DELIVERIES):
        with _turns_lock:
            row = _next_due()
            if row is None:
                break
            tenant = row.batch.tenant
            _sending.add(tenant)
        try:
            done += _claim_and_try(row)
        finally:
            with _turns_lock:
                _sending.discard(tenant)
    return done


def _next_due() -> WebhookDelivery | None:
    """Return the oldest due message of the tenant that waits longest, and begin the tenant's turn."""
    due = WebhookDelivery.objects.filter(next_attempt_at__lte=timezone.now())
    found = dict(due.order_by().values_list("batch__tenant").annotate(first=Min("next_attempt_at")))
    # Tenants without due messages are forgotten, so that the record stays small.
    for tenant in _turns.keys() - found.keys():
        del _turns[tenant]
    free = found.keys() - _sending
    if not free:
        return None
    chosen = min(free, key=lambda tenant: (_turns.get(tenant, 0.0), found[tenant]))
    _turns[chosen] = time.monotonic()
    return due.filter(batch__tenant=chosen).select_related("batch").order_by("next_attempt_at").first()


def _claim_and_try(row: WebhookDelivery) -> bool:
    """Try to deliver a message, unless another process has claimed it."""
    until = timezone.now() + timedelta(seconds=TRYING_S)
    same = WebhookDelivery.objects.filter(pk=row.pk, attempts=row.attempts)
    if not same.update(attempts=row.attempts + 1, next_attempt_at=until):
        return False
    row.attempts += 1
    _try(row)
    return True


def _try(row: WebhookDelivery) -> None:
    now = timezone.now()
    is_final = row.attempts > len(PAUSES_S)
    try:
        if settings.BLAZR_WEBHOOKS == "off":
            raise AddressRefused("is not called: BLAZR_WEBHOOKS is off.")
        status = post(row.batch.webhook_url, row.payload, secret=row.batch.webhook_secret, message_id=row.message_id)
        if 200 <= status < 300:
            WebhookDelivery.objects.filter(pk=row.pk).update(delivered_at=now, next_attempt_at=None, last_error="")
            return
        error, is_final = f"answered {status}", is_final or status == 410
    except AddressRefused as refused:
        error = f"the URL {refused}"
    except (OSError, http.client.HTTPException, ValueError) as failed:
        error = f"{type(failed).__name__}: {failed}"[:300]
    logger.info("webhook of %s, try %d: %s", row.batch.batch_id, row.attempts, error)
    next_at = None if is_final else now + timedelta(seconds=PAUSES_S[row.attempts - 1])
    WebhookDelivery.objects.filter(pk=row.pk).update(last_error=error, next_attempt_at=next_at)


def post(url: str, payload: str, *, secret: str, message_id: str) -> int:
    """Send one message; returns the status of the response.

    Raises:
        AddressRefused: The address must not be called.
        OSError, HTTPException: The message could not be sent.
    """
    scheme, host, port, path = split_url(url)
    timestamp = int(timezone.now().timestamp())
    connection = _Pinned(host, port, address=resolve(host, port), is_tls=scheme == "https")
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "blazr-webhooks",
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature(secret, message_id, timestamp, payload),
    }
    # The socket's timeout applies to each read; this timer limits the whole request to a slow server.
    timer = threading.Timer(TOTAL_S, connection.cut)
    timer.daemon = True
    timer.start()
    try:
        connection.request("POST", path, body=payload.encode(), headers=headers)
        return connection.getresponse().status
    finally:
        timer.cancel()
        connection.close()


def resolve(host: str, port: int) -> str:
    """Resolve ``host`` to an address that may be called.

    Raises:
        AddressRefused: One of the addresses isn't public.
        OSError: The name can't be resolved.
    """
    found = [str(item[4][0]) for item in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    if settings.BLAZR_WEBHOOKS != "any":
        for address in found:
            if not is_public(address):
                raise AddressRefused(f"leads to {address}, which is not a public address.")
    return found[0]


def is_public(address: str) -> bool:
    """Whether an address is public; an IPv4 address embedded in an IPv6 address is checked too."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address):
        inner = [parsed.ipv4_mapped, parsed.sixtofour, *(parsed.teredo or ())]
        if parsed in _NAT64:
            inner.append(ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF))
        if any(item is not None and not is_public(str(item)) for item in inner):
            return False
        if parsed.ipv4_mapped is not None:
            return True
    return parsed.is_global and not parsed.is_multicast and not parsed.is_reserved


class _Pinned(http.client.HTTPConnection):
    """Connects to a checked address; the certificate is verified against the host name."""

    def __init__(self, host: str, port: int, *, address: str, is_tls: bool) -> None:
        super().__init__(host, port, timeout=TIMEOUT_S)
        self.default_port = _PORTS["https" if is_tls else "http"]
        self._address = address
        self._is_tls = is_tls

    def connect(self) -> None:
        self.sock = socket.create_connection((self._address, self.port), TIMEOUT_S)
        if self._is_tls:
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.host)

    def cut(self) -> None:
        """Close the connection now; called from another thread."""
        found = self.sock
        if found is not None:
            try:
                found.shutdown(socket.SHUT_RDWR)
            except OSError:
                found.close()
