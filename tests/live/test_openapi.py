"""Every operation of the OpenAPI document with requests made from it, by callers of three roles."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live.conformance import MAX_BLOCK_S, Campaign
from tests.live.conftest import DEVICE, LiveServer

pytestmark = pytest.mark.live

EXAMPLES = 3
"""Of each operation and kind (fitting the document or not); more: ``python -m tests.live.conformance``."""


@pytest.fixture
def own_server(django_db_setup: None, tmp_path) -> Iterator[LiveServer]:
    """The requests make, change and delete what they can: not on the server of other tests."""
    server = LiveServer(tmp_path / "data", *DEVICE)
    try:
        server.wait_ready()
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()


@pytest.mark.fault(
    "F58",
    provoked="requests made from the OpenAPI document, fitting and not, to all operations as a caller without a key, "
    "with an ordinary key and with all scopes, with ids that the others and deleted objects have; "
    "100,000 with `python -m tests.live.conformance`",
    holds="no server error; every response is one of the document; none without the key; nothing of another caller; "
    "deleted objects stay gone; nothing blocks the event loop for 50 ms",
)
@pytest.mark.timeout(900)  # a processor is busy for half a minute
def test_responses_are_those_of_the_document(own_server):
    campaign = Campaign(own_server, number=1)
    campaign.run_round(EXAMPLES)
    assert not campaign.problems, "\n\n".join(campaign.problems)
    assert len(campaign.operations) > 60
    assert campaign.num_requests > 270
    assert {role for role, status in campaign.statuses if status == 200} == {"local", "member", "admin"}
    assert campaign.blocks()[MAX_BLOCK_S] == 0, campaign.blocks()
    assert own_server.process.poll() is None
