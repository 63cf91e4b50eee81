"""Honour the header Idempotency-Key on every POST of the API: run once, then replay the response.

``ApiView.dispatch`` calls ``respond_once``; views need no code of their own. Only responses without an error are
stored: after an error or a disconnect, the client may send the request again. A stream is stored when it has
completed, and replayed as one piece; one whose end may be an error has ``has_failed`` then. After
https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/ and
https://docs.stripe.com/api/idempotent_requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from inference.api.event_stream import EventStream, SendPart, parts_of
from inference.errors import BlazrError, InvalidRequest
from inference.host.coroutines import run_in_background
from inference.host.outage import Outage
from inference.serving.idempotency import MAX_BYTES, RENEW_S, Claim, KeptResponse, idempotency_claim
from inference.values.principal import Principal
from inference.values.request_key import RequestKey

logger = logging.getLogger(__name__)

_outage = Outage(logger, "responses under idempotency keys")

HEADER = "Idempotency-Key"
META_KEY = "HTTP_IDEMPOTENCY_KEY"
"""Key in ``request.META``, which saves building ``request.headers``."""
REPLAYED = "Idempotent-Replayed"
MAX_KEY_CHARS = 255
_CHUNK_BYTES = 1 << 20
_OWN_HEADERS = ("x-ratelimit-", "date")
"""Response headers that a replay omits."""


async def respond_once(
    request: HttpRequest, principal: Principal, run: Callable[[RequestKey], Awaitable[HttpResponseBase]]
) -> HttpResponseBase:
    """Return the response of ``run``, or the stored response of an earlier equal request.

    The response is stored after ``run``. A job that a handler stores keeps the key that ``run`` gets, because the
    process may end between the two.

    Raises:
        InvalidRequest: The key is empty, too long, or not ASCII.
        IdempotencyKeyReused, IdempotencyKeyInUse, Conflict, Unavailable: See ``idempotency_claim``.
    """
    key = await request_key(request)
    claim = await idempotency_claim(tenant=principal.tenant, key=key.text, digest=key.digest)
    if isinstance(claim, KeptResponse):
        return HttpResponse(claim.body, status=claim.status, headers={**claim.headers, REPLAYED: "true"})
    holder = _Holder(claim)
    try:
        response = await run(key)
        if response.status_code >= 400:
            await holder.release()
        elif isinstance(response, StreamingHttpResponse):
            _record(response, holder)
        else:
            await holder.store(response, cast("HttpResponse", response).content)
    except BaseException:
        await asyncio.shield(run_in_background(holder.release()))
        raise
    return response


async def request_key(request: HttpRequest) -> RequestKey:
    """Return the idempotency key of a request that has one.

    Raises:
        InvalidRequest: The key is empty, too long, or not ASCII.
    """
    key = request.META[META_KEY].strip()
    if not 0 < len(key) <= MAX_KEY_CHARS or not key.isascii() or not key.isprintable():
        raise InvalidRequest(f"{HEADER} must have 1 to {MAX_KEY_CHARS} printable ASCII characters.", param=HEADER)
    return RequestKey(key, await _request_digest(request))


class _Holder:
    """Holds a claim and renews it until the response is stored or the claim is released."""

    def __init__(self, claim: Claim) -> None:
        self._claim = claim
        self.is_over = False
        self._renewing = run_in_background(self._renew())

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            with contextlib.suppress(BlazrError):
                if not await self._claim.renew():
                    return

    async def store(self, response: HttpResponseBase, body: bytes) -> None:
        """Store the response."""
        if self._end():
            headers = {name: value for name, value in response.items() if not name.lower().startswith(_OWN_HEADERS)}
            await self._try(self._claim.store(KeptResponse(response.status_code, headers, body)))

    async def release(self) -> None:
        """Release the claim, so that the next request with the key runs."""
        if self._end():
            await self._try(self._claim.release())

    def _end(self) -> bool:
        was_over, self.is_over = self.is_over, True
        self._renewing.cancel()
        return not was_over

    async def _try(self, work: Awaitable[None]) -> None:
        try:
            await work
        except BlazrError as error:
            # The response is sent anyway; the lease expires.
            _outage.failed(error)
        else:
            _outage.succeeded()


# --- streams -----------------------------------------------------------------------------------


def _record(response: StreamingHttpResponse, holder: _Holder) -> None:
    """Store the parts that ``response`` sends."""
    recording = _Recording(response, holder)
    if isinstance(response, EventStream):
        response.write_to = recording.write_to  # type: ignore[method-assign]
    response.streaming_content = recording


class _Recording:
    """The body of a stored stream; Django calls ``close`` even if it never read the first part."""

    def __init__(self, response: StreamingHttpResponse, holder: _Holder) -> None:
        self._response = response
        self._holder = holder
        self._loop = asyncio.get_running_loop()
        self._write_to: Callable[[SendPart], Awaitable[None]] = (
            response.write_to if isinstance(response, EventStream) else _writer_of(response.streaming_content)
        )

    def __aiter__(self) -> AsyncIterator[bytes]:
        return parts_of(self.write_to)

    async def write_to(self, send: SendPart) -> None:
        """Forward the parts, and store them if all were sent without an error."""
        kept: list[bytes] = []
        size, limit = 0, MAX_BYTES

        async def send_and_keep(part: bytes) -> None:
            nonlocal size
            if size <= limit:  # one part beyond the limit, to detect a body that is too large
                kept.append(part)
            size += len(part)
            await send(part)

        await self._write_to(send_and_keep)
        if getattr(self._response, "has_failed", False):
            await self._holder.release()
        else:
            await self._holder.store(self._response, b"".join(kept))

    def close(self) -> None:
        """Release the claim of a stream that wasn't stored; called from any thread."""
        if not self._holder.is_over:
            with contextlib.suppress(RuntimeError):  # the loop is closed; the lease expires
                self._loop.call_soon_threadsafe(lambda: run_in_background(self._holder.release()))


def _writer_of(content: Any) -> Callable[[SendPart], Awaitable[None]]:
    async def write_to(send: SendPart) -> None:
        async for part in content:
            await send(part)

    return write_to


# --- digests -----------------------------------------------------------------------------------


async def _request_digest(request: HttpRequest) -> str:
    """Return the SHA-256 of method, path, query, type and body, without the random boundary of a form."""
    boundary = (request.content_params or {}).get("boundary", "").encode()
    about = (request.method or "", request.path, request.META.get("QUERY_STRING", ""), request.content_type or "")
    head = "\n".join(about).encode(errors="surrogateescape")
    # Django keeps the body in memory or, if large, on disk; the parser reads it again from the start.
    stream: Any = request._stream
    if int(request.META.get("CONTENT_LENGTH") or 0) > _CHUNK_BYTES:
        return await sync_to_async(_stream_digest)(stream, head, boundary)
    return _stream_digest(stream, head, boundary)


def _stream_digest(stream: Any, head: bytes, boundary: bytes) -> str:
    digest = hashlib.sha256(head)
    rest = b""
    while chunk := stream.read(_CHUNK_BYTES):
        if not boundary:
            digest.update(chunk)
            continue
        # A boundary may span two chunks, so the possible start of a boundary is held back.
        found = (rest + chunk).replace(boundary, b"")
        cut = max(0, len(found) - len(boundary) + 1)
        digest.update(found[:cut])
        rest = found[cut:]
    digest.update(rest)
    stream.seek(0)
    return digest.hexdigest()


# --- the schema --------------------------------------------------------------------------------


def schema_hook(result: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
    """Add the header and its errors to every POST of the API that needs a key (drf-spectacular's hook)."""
    error = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    for path, methods in result["paths"].items():
        operation = methods.get("post")
        if operation is None or path.startswith("/registry") or {"ApiKey": []} not in operation.get("security", ()):
            continue
        header = {
            "in": "header",
            "name": HEADER,
            "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY_CHARS},
            "description": "The same key and request give the response that was given first.",
        }
        operation.setdefault("parameters", []).append(header)
        responses = operation["responses"]
        responses.setdefault("400", {**error, "description": "The request can't be served as it is written."})
        responses.setdefault(
            "409",
            {**error, "description": "A request with this idempotency key is running, or its response isn't stored."},
        )
        responses.setdefault("413", {**error, "description": "Too large."})
        responses.setdefault("422", {**error, "description": "The idempotency key came with another request before."})
        responses.setdefault("503", {**error, "description": "Not now."})
    return result
