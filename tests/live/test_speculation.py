"""Guessing ahead over HTTP: a model's own setting turns it on, the text stays, and /metrics counts what held."""

from __future__ import annotations

import httpx
import pytest

from tests.live.conftest import wait_until
from tests.live.test_prefix_cache import metric

pytestmark = pytest.mark.live

SET = """
from models_registry.models import Checkpoint
from models_registry.services import checkpoint_settings_update
row = Checkpoint.objects.get(served_model_name="demo")
checkpoint_settings_update(checkpoint=row, values={{"speculative": {value!r}}})
"""


def test_the_setting_of_a_model(plain_server):
    server = plain_server

    def text() -> str:
        response = server.complete(prompt="The statement is executed. " * 8, max_tokens=48, ignore_eos=True)
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]["text"]

    def load_anew(value: str | None) -> None:
        server.manage(SET.format(value=value))
        assert httpx.post(f"{server.url}/v1/models/demo/unload", timeout=30).status_code == 202
        status = f"{server.url}/v1/models/demo/status"
        wait_until(lambda: httpx.get(status, timeout=30).json()["status"] == "unloaded", what="the unload")

    plain = text()
    assert "blazr_speculation_proposed_tokens_total{" not in httpx.get(f"{server.url}/metrics", timeout=30).text
    load_anew("ngram,adaptive=off")
    assert text() == plain
    name = "blazr_speculation_accepted_length"
    wait_until(lambda: metric(server, f"{name}_count", model="demo") > 0, what="the metric")

    def add_up() -> bool:  # each figure is asked for alone: a heartbeat may come between two of them
        proposed = metric(server, "blazr_speculation_proposed_tokens_total", model="demo")
        accepted = metric(server, "blazr_speculation_accepted_tokens_total", model="demo")
        return proposed >= accepted == metric(server, f"{name}_sum", model="demo")

    wait_until(add_up, what="that the figures add up")
    load_anew(None)
    assert text() == plain
