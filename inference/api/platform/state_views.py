"""Serve saved states: save, list, look at, pin, delete, download and upload."""

from __future__ import annotations

from dataclasses import replace
from typing import IO, Any

from asgiref.sync import sync_to_async
from channels.db import database_sync_to_async
from django.conf import settings
from django.http import HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter

from inference.api.base import ApiView, generation_body, json_body, json_response
from inference.api.openai.file_upload import receive_file
from inference.api.openai.file_views import page_of
from inference.api.paging import check_parameters, page_size
from inference.api.platform.state_serializers import (
    StateChangeSerializer,
    StateCreateSerializer,
    StateDeletedSerializer,
    StateListSerializer,
    StateSerializer,
    StateUploadSerializer,
)
from inference.api.schemas import GENERATION_ERRORS, documented
from inference.dialects.openai.requests import plan_from_body
from inference.errors import InvalidRequest, NotFound
from inference.files.services import expiry_seconds
from inference.files.store import file_pieces, open_file
from inference.llm.state_header import read_state_header
from inference.serving.generation import ApiName, generation_start
from inference.states.services import (
    StateFacts,
    check_name_is_free,
    check_state_name,
    state_create,
    state_delete,
    state_get,
    state_list,
    state_object,
    state_saved,
    state_set_pinned,
)
from inference.values.messages import StateOrder
from inference.values.plan import GenerationPlan

_API_NAME = ApiName("state", "state-")
_OWN_MEMBERS = frozenset({"name", "pinned", "expires_after", "replace"})
MAX_PAGE = 1000


class StatesView(ApiView):
    """/v1/states."""

    admits_itself = True

    @documented(
        operation_id="states_create",
        summary="Save the state after a prompt",
        description="Reads a prompt or messages, and keeps the model's state after them under a name. A completion or "
        "chat with state: NAME goes on from there without reading them again.",
        request=StateCreateSerializer,
        responses={200: StateSerializer},
        errors=(*GENERATION_ERRORS, 409),
        tags=["states"],
    )
    async def post(self, request: HttpRequest) -> HttpResponseBase:
        """Read the prompt and save its state."""
        plan, order = await generation_body(request, self._read, principal=self.principal, endpoint=_API_NAME.name)
        if not order["replaces"]:
            await database_sync_to_async(check_name_is_free)(name=order["name"], tenant=order["tenant"])
        generation = await generation_start(plan=plan, principal=self.principal, api_name=_API_NAME)
        await generation.wait()
        row = await database_sync_to_async(state_saved)(
            name=order["name"], tenant=order["tenant"], request_id=generation.request_id
        )
        return json_response(state_object(row), headers={"x-request-id": generation.request_id})

    def _read(self, body: Any) -> tuple[GenerationPlan, StateOrder]:
        values = StateCreateSerializer.shared().parse(body)
        check_state_name(values["name"])
        given = [name for name in ("prompt", "messages") if name in values]
        if len(given) != 1:
            raise InvalidRequest(
                f"give either prompt or messages, not {' and '.join(given) or 'neither'}.", param="prompt"
            )
        rest = {name: value for name, value in body.items() if name not in _OWN_MEMBERS}
        if given == ["messages"]:
            plan = plan_from_body("chat", {**rest, "add_generation_prompt": False})
        else:
            plan = plan_from_body("completion", rest)
        if len(plan.prompts) > 1:
            raise InvalidRequest(f"a state has one prompt, this has {len(plan.prompts)}.", param="prompt")
        if values.get("pinned") and values.get("expires_after") is not None:
            raise InvalidRequest("a pinned state doesn't expire; leave out pinned or expires_after.", param="pinned")
        order = StateOrder(
            name=values["name"],
            tenant=self.principal.tenant,
            model=values["model"],
            is_pinned=values.get("pinned", False),
            expires_s=expiry_seconds(values.get("expires_after"), param="expires_after"),
            replaces=values.get("replace", False),
        )
        params = replace(plan.params, max_tokens=0, temperature=0.0)
        return replace(plan, params=params, saves_state=order), order

    @documented(
        operation_id="states_list",
        summary="List saved states",
        parameters=[
            OpenApiParameter("after", str, description="Continue after the state with this name (the last one seen)."),
            OpenApiParameter("limit", int, description=f"1 to {MAX_PAGE}, default {MAX_PAGE}."),
        ],
        responses={200: StateListSerializer},
        errors=(400, 401, 403, 404, 503),
        tags=["states"],
    )
    async def get(self, request: HttpRequest) -> HttpResponseBase:
        """Return a page of the caller's states, the latest first."""
        check_parameters(request, "after", "limit")
        limit = page_size(request, default=MAX_PAGE, largest=MAX_PAGE)

        def read() -> dict[str, Any]:
            rows = state_list(tenant=self.principal.tenant, after=request.GET.get("after"), limit=limit + 1)
            return page_of([state_object(row) for row in rows], limit)

        return json_response(await sync_to_async(read)())


class StateView(ApiView):
    """/v1/states/{name}."""

    @documented(
        operation_id="states_retrieve",
        summary="One saved state",
        responses={200: StateSerializer},
        errors=(401, 403, 404, 503),
        tags=["states"],
    )
    async def get(self, request: HttpRequest, name: str) -> HttpResponseBase:
        """Return the state object."""
        row = await sync_to_async(state_get)(name=name, tenant=self.principal.tenant)
        return json_response(state_object(row))

    @documented(
        operation_id="states_update",
        summary="Pin or unpin a saved state",
        request=StateChangeSerializer,
        responses={200: StateSerializer},
        errors=(400, 401, 403, 404, 415, 429, 503),
        tags=["states"],
    )
    async def post(self, request: HttpRequest, name: str) -> HttpResponseBase:
        """Change whether the state is pinned."""
        values = await json_body(request, StateChangeSerializer.shared().parse)
        row = await sync_to_async(state_set_pinned)(name=name, tenant=self.principal.tenant, is_pinned=values["pinned"])
        return json_response(state_object(row))

    @documented(
        operation_id="states_delete",
        summary="Delete a saved state",
        responses={200: StateDeletedSerializer},
        errors=(401, 403, 404, 503),
        tags=["states"],
    )
    async def delete(self, request: HttpRequest, name: str) -> HttpResponseBase:
        """Delete a state."""
        await sync_to_async(state_delete)(name=name, tenant=self.principal.tenant)
        return json_response({"id": name, "object": "state", "deleted": True})


class StateContentView(ApiView):
    """/v1/states/{name}/content."""

    @documented(
        operation_id="states_download",
        summary="The file of a saved state",
        description="One safetensors file, which blazr generate --state reads, too. It has the text in it.",
        responses={(200, "application/octet-stream"): OpenApiTypes.BINARY},
        errors=(401, 403, 404, 503),
        tags=["states"],
    )
    async def get(self, request: HttpRequest, name: str) -> HttpResponseBase:
        """Stream the file."""

        def find() -> tuple[IO[bytes], int]:
            row = state_get(name=name, tenant=self.principal.tenant)
            try:
                return open_file(row.file.sha256), row.file.size_bytes
            except FileNotFoundError:
                raise NotFound(f"The content of the state {row.name} is gone.", param="name") from None

        file, size_bytes = await sync_to_async(find)()
        response = StreamingHttpResponse(file_pieces(file), content_type="application/octet-stream")
        response["Content-Length"] = str(size_bytes)
        response["X-Content-Type-Options"] = "nosniff"
        response["Content-Disposition"] = f'attachment; filename="{name}.state"'
        return response

    @documented(
        operation_id="states_upload",
        summary="Upload the file of a saved state",
        description="A form with the part file. Whether the model fits is checked when a request goes on from it.",
        request={"multipart/form-data": StateUploadSerializer},
        responses={200: StateSerializer},
        errors=(400, 401, 403, 409, 413, 415, 429, 503),
        tags=["states"],
    )
    async def post(self, request: HttpRequest, name: str) -> HttpResponseBase:
        """Store an uploaded state."""
        check_state_name(name)
        tenant = self.principal.tenant

        def store() -> dict[str, Any]:
            check_name_is_free(name=name, tenant=tenant)  # before the file is received
            received = receive_file(request, max_bytes=settings.BLAZR_MAX_FILE_BYTES)
            try:
                for field in received.fields:
                    raise InvalidRequest(f"{field[:80]!r} is not a field of this form; remove it.", param=field[:80])
                received.writer.flush()
                header = read_state_header(received.writer.path, "the file")
            except BaseException:
                received.writer.discard()
                raise
            facts = StateFacts.of_file(header)
            order = StateOrder(
                name=name, tenant=tenant, model=header.model, is_pinned=False, expires_s=None, replaces=False
            )
            return state_object(state_create(writer=received.writer, facts=facts, order=order))

        return json_response(await sync_to_async(store)())
