"""Check what a schedule is to do, and when, and write it into its row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

import orjson

from inference.access.accounts import can_load
from inference.batches.services import batch_members_check
from inference.errors import InvalidRequest
from inference.files.services import file_hold
from inference.models import Schedule, ScheduleAction
from inference.models.readable_rows import DamagedRow, json_value
from inference.schedules.cron import Cron, cron_parse, zone_of
from inference.values.principal import LOCAL
from models_registry.selectors import checkpoint_get_by_name

if TYPE_CHECKING:
    from inference.values.principal import Principal

MAX_NAME_CHARS = 100
_BATCH_MEMBERS = ("endpoint", "completion_window")


def times_set(row: Schedule, values: Mapping[str, Any]) -> None:
    """Write ``cron`` and ``time_zone``, where given, into a row.

    Raises:
        InvalidRequest: One is wrong.
    """
    if "cron" in values:
        row.cron = cron_parse(values["cron"]).text
    if "time_zone" in values:
        row.time_zone = zone_of(values["time_zone"]).key


def times_of(row: Schedule) -> tuple[Cron, ZoneInfo]:
    """Return when a schedule runs.

    Raises:
        InvalidRequest: What is stored isn't understood.
    """
    return cron_parse(row.cron, min_interval_min=0), zone_of(row.time_zone)


def name_set(row: Schedule, values: Mapping[str, Any]) -> None:
    """Write the name, if one is given, into a row.

    Raises:
        InvalidRequest: It is too long.
    """
    name = " ".join(str(values.get("name", row.name)).split())
    if len(name) > MAX_NAME_CHARS or "\0" in name:
        raise InvalidRequest(
            f"name has {len(name)} characters; at most {MAX_NAME_CHARS} are allowed, and no NUL.", param="name"
        )
    row.name = name


def action_set(row: Schedule, values: Mapping[str, Any], principal: Principal) -> None:
    """Check what is to be done, as far as it can be known now, and write it into a row; hold the file that it needs.

    Args:
        values: Members ``action``, ``batch`` and ``model``, as far as they are given.
        principal: The owner.

    Raises:
        InvalidRequest: A member is wrong or missing, or isn't one of this action.
        NotFound: The file or the model doesn't exist.
        PermissionRefused: The owner may not do this.
    """
    row.action = values.get("action", row.action)
    needed, other = ("batch", "model") if row.action == ScheduleAction.BATCH else ("model", "batch")
    if values.get(other):
        raise InvalidRequest(
            f"{other} isn't a member of a schedule that is to {row.get_action_display()}.", param=other
        )
    if not values.get(needed, row.model if needed == "model" else None):
        raise InvalidRequest(f"{needed} is required to {row.get_action_display()}.", param=needed)
    if row.action == ScheduleAction.BATCH:
        _batch_set(row, values["batch"], principal)
        return
    row.input_file_id = row.request = ""
    row.model = values.get("model", row.model)
    check_order_allowed(principal, row.action, row.model)
    checkpoint_get_by_name(row.model)


def check_order_allowed(principal: Principal, action: str, model: str) -> None:
    """Refuse a load or an unload that the caller may not order on the model's page or over HTTP.

    Raises:
        PermissionRefused: A scope or a permission is missing, or the key isn't for this model.
    """
    principal.check_model(model)
    if not can_load(principal):
        principal.check_scope("POST", f"/v1/models/{quote(model, safe='')}/{action}")


def _batch_set(row: Schedule, batch: Mapping[str, Any], principal: Principal) -> None:
    principal.check_scope("POST", "/v1/batches")
    checked = batch_members_check(batch, principal)
    request = {name: value for name, value in batch.items() if name != "input_file_id"}
    if checked.webhook_url:
        request["webhook"] = {"url": checked.webhook_url, "secret": checked.webhook_secret}
    if checked.file.tenant not in (principal.tenant, LOCAL.tenant):
        raise InvalidRequest(
            f"The file {checked.file.file_id} belongs to somebody else, who could not delete it any more; upload it "
            "yourself.",
            param="input_file_id",
        )
    file_hold(checked.file)
    row.model = ""
    row.input_file_id = checked.file.file_id
    row.request = orjson.dumps(request).decode()


def webhook_clear(row: Schedule) -> None:
    """Let batches of a schedule send no messages.

    Raises:
        DamagedRow: What is stored isn't the body of a batch.
    """
    if row.request:
        request: dict[str, Any] = json_value(row, "request")
        row.request = orjson.dumps({name: value for name, value in request.items() if name != "webhook"}).decode()


def batch_values(row: Schedule) -> dict[str, Any]:
    """Return the members of ``POST /v1/batches`` for the batches of a schedule.

    Raises:
        DamagedRow: What is stored isn't such a body.
    """
    request: dict[str, Any] = json_value(row, "request")
    for name in _BATCH_MEMBERS:
        if name not in request:
            raise DamagedRow(f"request has no {name}")
    return {**request, "input_file_id": row.input_file_id}


def drawn_secret(row: Schedule, batch: Mapping[str, Any]) -> str | None:
    """Return the secret of a schedule's webhook if it was drawn for a request.

    Args:
        row: The schedule, as the request has left it.
        batch: The request's members of a batch.

    Returns:
        None: The request has no webhook, or has one with a secret.
    """
    webhook = batch.get("webhook")
    return None if webhook is None or "secret" in webhook else str(batch_values(row)["webhook"]["secret"])
