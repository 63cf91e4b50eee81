"""Read the conversation before and with a stored response; the sizes of all its responses are read before a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import orjson
from django.conf import settings

from inference.api.responses.background import OPEN_STATES, response_body
from inference.dialects.responses.items import Item
from inference.errors import InvalidRequest, NotFound
from inference.models.readable_rows import readable_rows
from inference.records.stored_responses import response_get, responses_of
from inference.values.principal import Principal

MAX_CONVERSATION_ITEMS = 4096


class StoredTurn(NamedTuple):
    """A stored response without its texts.

    Attributes:
        size_bytes: Bytes of the texts.
        previous_id: Id of the response before it; empty: none.
    """

    response_id: str
    size_bytes: int
    previous_id: str


def stored_turn(*, response_id: str, principal: Principal) -> StoredTurn:
    """Return a response without its texts.

    Raises:
        NotFound: As ``response_get`` raises.
    """
    rows = responses_of(principal).filter(response_id=response_id).only("response_id", "size_bytes", "previous_id")
    found = [] if "\0" in response_id else readable_rows(rows, 1)
    row = found[0] if found else response_get(response_id=response_id, principal=principal)  # raises NotFound
    return StoredTurn(row.response_id, row.size_bytes, row.previous_id)


def stored_chain(*, response_id: str, principal: Principal) -> list[StoredTurn]:
    """Return a response and all earlier ones, the newest first; an empty id: none.

    Raises:
        InvalidRequest: A response is missing, or they are together larger than a request may be.
    """
    turns: list[StoredTurn] = []
    num_bytes, max_bytes = 0, settings.BLAZR_MAX_BODY_BYTES
    while response_id:
        try:
            turns.append(stored_turn(response_id=response_id, principal=principal))
        except NotFound as error:
            raise InvalidRequest(f"previous_response_id: {error.message}", param="previous_response_id") from None
        num_bytes += turns[-1].size_bytes
        if num_bytes > max_bytes:
            raise InvalidRequest(
                f"previous_response_id: the last {len(turns):,} responses of the conversation have {num_bytes:,} bytes "
                f"together; the limit is {max_bytes:,} bytes (BLAZR_MAX_BODY_BYTES). Begin a new conversation with the "
                "items that it needs.",
                param="previous_response_id",
            )
        if len(turns) > MAX_CONVERSATION_ITEMS:
            raise _too_many_items()
        response_id = turns[-1].previous_id
    return turns


class Conversation(NamedTuple):
    """What a response and all earlier ones hold.

    Attributes:
        items: Their input and output items, oldest first.
        state: Name of the saved state that they began behind; None: there is none.
    """

    items: list[Item]
    state: str | None


def conversation(turns: Sequence[StoredTurn], principal: Principal) -> Conversation:
    """Return what responses hold.

    Args:
        turns: As ``stored_chain`` returns them.

    Raises:
        InvalidRequest: A response is missing or unfinished, or the conversation has too many items.
    """
    items: list[list[Item]] = []
    num_items, state = 0, None
    for turn in turns:
        own, named = _turn_items(turn, principal)
        state = named or state
        items.append(own)
        num_items += len(own)
        if num_items > MAX_CONVERSATION_ITEMS:
            raise _too_many_items()
    return Conversation([item for own in reversed(items) for item in own], state)


def input_items(
    own: StoredTurn, earlier: Sequence[StoredTurn], principal: Principal, *, is_descending: bool, after: str | None,
    limit: int,
) -> tuple[list[Item], bool]:  # fmt: skip
    """Return a page of the items that a response was made from, and whether more follow; reads no turn behind it.

    Args:
        own: The response.
        earlier: The responses before it, the newest first.
        is_descending: The newest item first.
        after: Id of the item before the page; None: the page is the first one.
        limit: Most items of the page.

    Raises:
        InvalidRequest: An earlier response is missing or unfinished, or no item has the id ``after``.
    """
    turns = [own, *earlier]
    found: list[Item] = []
    has_begun = after is None
    for turn in turns if is_descending else reversed(turns):
        items = _own_input(turn, principal) if turn is own else _turn_items(turn, principal)[0]
        for item in reversed(items) if is_descending else items:
            if has_begun:
                found.append(item)
            has_begun = has_begun or item["id"] == after
        if len(found) > limit:
            break
    if after is not None and not has_begun:
        raise InvalidRequest(f"after is {after[:80]!r}, which is no item of this response.", param="after")
    return found[:limit], len(found) > limit


def _own_input(turn: StoredTurn, principal: Principal) -> list[Item]:
    row = response_get(response_id=turn.response_id, principal=principal)
    items: list[Item] = orjson.loads(row.input_items)
    return items


def _turn_items(turn: StoredTurn, principal: Principal) -> tuple[list[Item], str | None]:
    """Return the input and output items of an earlier response, and the name of its saved state."""
    try:
        row = response_get(response_id=turn.response_id, principal=principal)
    except NotFound as error:
        raise InvalidRequest(f"previous_response_id: {error.message}", param="previous_response_id") from None
    body = response_body(row)
    if body["status"] in OPEN_STATES:
        raise InvalidRequest(
            f"previous_response_id: the response {turn.response_id!r} is {body['status']}; wait until it has ended.",
            param="previous_response_id",
        )
    output = body.get("output")
    if not isinstance(output, list):
        raise InvalidRequest(
            f"previous_response_id: the stored output of the response {turn.response_id!r} is damaged; begin a new "
            "one.",
            param="previous_response_id",
        )
    return [*orjson.loads(row.input_items), *output], body.get("state")


def _too_many_items() -> InvalidRequest:
    return InvalidRequest(
        f"previous_response_id: the conversation has over {MAX_CONVERSATION_ITEMS} items; begin a new one.",
        param="previous_response_id",
    )
