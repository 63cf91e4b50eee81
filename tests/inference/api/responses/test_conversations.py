"""A conversation is read no further than it has to be, and not at all if it is too large."""

from __future__ import annotations

import openai
import pytest

from inference.api.responses import conversations
from inference.api.responses.conversations import conversation, input_items, stored_chain, stored_turn
from inference.errors import InvalidRequest, NotFound
from inference.models import StoredResponse
from inference.records.stored_responses import response_delete, response_get, response_store
from inference.values.principal import LOCAL, Principal

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def read(monkeypatch) -> list[str]:
    """The ids of the responses whose texts are read, in order."""
    found: list[str] = []

    def recorded(*, response_id: str, principal: Principal) -> StoredResponse:
        found.append(response_id)
        return response_get(response_id=response_id, principal=principal)

    monkeypatch.setattr(conversations, "response_get", recorded)
    return found


def store(name: str, previous: str | None = None, *, status: str = "completed", state: str | None = None) -> None:
    """A response of one input item and one output item."""
    body = {"id": name, "status": status, "previous_response_id": previous, "output": [{"id": f"out_{name}"}]}
    response_store(body=body | {"state": state}, items=[{"id": f"in_{name}"}], principal=LOCAL)


@pytest.fixture
def three() -> None:
    store("a", state="manual")
    store("b", "a")
    store("c", "b")


def ids(items) -> list[str]:
    return [item["id"] for item in items]


def test_a_conversation_is_oldest_first(three):
    turns = stored_chain(response_id="c", principal=LOCAL)
    assert [turn.response_id for turn in turns] == ["c", "b", "a"]
    found = conversation(turns, LOCAL)
    assert ids(found.items) == ["in_a", "out_a", "in_b", "out_b", "in_c", "out_c"]
    assert found.state == "manual"
    assert stored_chain(response_id="", principal=LOCAL) == []


def test_a_conversation_above_the_limit_is_refused_before_it_is_read(three, settings, read):
    sizes = dict(StoredResponse.objects.values_list("response_id", "size_bytes"))
    settings.BLAZR_MAX_BODY_BYTES = sizes["b"] + sizes["c"]
    with pytest.raises(InvalidRequest, match="last 3 responses of the conversation") as refused:
        stored_chain(response_id="c", principal=LOCAL)
    for part in (f"{sum(sizes.values()):,} bytes", f"{sizes['b'] + sizes['c']:,} bytes", "Begin a new conversation"):
        assert part in refused.value.message
    settings.BLAZR_MAX_BODY_BYTES = sum(sizes.values())
    assert len(stored_chain(response_id="c", principal=LOCAL)) == 3
    assert read == []


def test_a_conversation_of_too_many_items_is_refused(three, monkeypatch):
    monkeypatch.setattr(conversations, "MAX_CONVERSATION_ITEMS", 5)
    turns = stored_chain(response_id="c", principal=LOCAL)
    with pytest.raises(InvalidRequest, match="over 5 items"):
        conversation(turns, LOCAL)
    monkeypatch.setattr(conversations, "MAX_CONVERSATION_ITEMS", 2)
    with pytest.raises(InvalidRequest, match="over 2 items"):
        stored_chain(response_id="c", principal=LOCAL)


def test_what_can_not_be_continued_names_the_field(three):
    store("open", "c", status="in_progress")
    with pytest.raises(InvalidRequest, match="'open' is in_progress") as refused:
        conversation(stored_chain(response_id="open", principal=LOCAL), LOCAL)
    assert refused.value.param == "previous_response_id"
    turns = stored_chain(response_id="c", principal=LOCAL)
    response_delete(response_id="a", principal=LOCAL)
    for read_again in (
        lambda: stored_chain(response_id="c", principal=LOCAL),
        lambda: conversation(turns, LOCAL),
    ):
        with pytest.raises(InvalidRequest, match="no response with the id 'a'"):
            read_again()
    for name in ("a", "a\0"):
        with pytest.raises(NotFound):
            stored_turn(response_id=name, principal=LOCAL)


@pytest.mark.parametrize(
    ("is_descending", "after", "limit", "page", "has_more", "turns"),
    [
        (True, None, 1, "in_c", True, "c b"),
        (True, None, 2, "in_c out_b", True, "c b"),
        (True, "in_c", 2, "out_b in_b", True, "c b a"),
        (True, "out_b", 3, "in_b out_a in_a", False, "c b a"),
        (True, None, 5, "in_c out_b in_b out_a in_a", False, "c b a"),
        (False, None, 1, "in_a", True, "a"),
        (False, "out_a", 1, "in_b", True, "a b"),
        (False, "out_b", 1, "in_c", False, "a b c"),
        (False, "in_c", 1, "", False, "a b c"),
    ],
)
def test_a_page_reads_no_turn_behind_it(three, read, is_descending, after, limit, page, has_more, turns):
    own, *earlier = stored_chain(response_id="c", principal=LOCAL)
    found = input_items(own, earlier, LOCAL, is_descending=is_descending, after=after, limit=limit)
    assert (ids(found[0]), found[1]) == (page.split(), has_more)
    assert read == turns.split()


def test_a_page_behind_an_unknown_item_is_refused(three):
    own, *earlier = stored_chain(response_id="c", principal=LOCAL)
    with pytest.raises(InvalidRequest, match="no item of this response"):
        input_items(own, earlier, LOCAL, is_descending=True, after="out_c", limit=1)


def test_a_conversation_grows_up_to_the_limit_of_a_body(client, worker, settings):
    """Each request is small, and the conversation isn't."""
    settings.BLAZR_MAX_BODY_BYTES = 5000
    last = client.responses.create(model="tiny", input="one")
    with pytest.raises(openai.BadRequestError, match=r"5,000 bytes \(BLAZR_MAX_BODY_BYTES\)") as refused:
        for _ in range(9):
            last = client.responses.create(model="tiny", input="next", previous_response_id=last.id)
    assert refused.value.param == "previous_response_id"
    page = client.responses.input_items.list(last.id, limit=1)
    assert (page.data[0].content[0].text, page.has_more) == ("next", True)
