"""A model's adapters in Chromium: shown with their kind, promoted to an alias, not removed while it means them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import APIResponse, Page, Route, expect

from tests.browser.actions import MISALIGNED
from tests.browser.conftest import Complaints
from tests.live.conftest import LiveServer, wait_until

pytestmark = pytest.mark.browser

ROWS = """
from models_registry.models import *
base = Checkpoint.objects.get(served_model_name="demo")
for name, kind in (("sql", "lora"), ("mix", "xlora")):
    Adapter.objects.create(
        base=base, name=name, kind=kind, path=base.path, digest="d", rank=16,
        targets=["q_proj", "v_proj"], num_values=1, size_bytes=1 << 20,
    )
"""
REMOVAL = "from models_registry.models import *; ModelAlias.objects.all().delete(); Adapter.objects.all().delete()"


@pytest.fixture
def adapters(site: LiveServer) -> Iterator[None]:
    site.manage(ROWS)
    yield
    site.manage(REMOVAL)


@pytest.mark.usefixtures("adapters")
def test_an_adapter_is_promoted_and_then_kept(page: Page, site: LiveServer, complaints: Complaints) -> None:
    page.goto(f"/models/{site.checkpoint_id('demo')}/?tab=adapters")
    row = page.locator("#adapter-region tr", has_text="demo:mix")
    expect(row).to_contain_text("X-LoRA")
    assert page.evaluate(MISALIGNED) == []
    row.get_by_role("button", name="Promote").click()
    expect(page.locator("#promote-title")).to_have_text("Promote demo:mix")
    page.fill("#promote-alias", "best")
    page.keyboard.press("Enter")
    expect(page.locator("#toasts")).to_contain_text("best means demo:mix now (revision 1).")
    expect(row).to_contain_text("best")
    row.get_by_role("button", name="Remove").click()
    page.get_by_role("button", name="Remove it").click()
    expect(page.locator("#toasts")).to_contain_text("'demo:mix' is what the alias 'best' means")
    page.locator("#adapter-region tr", has_text="demo:sql").get_by_role("button", name="Remove").click()
    page.get_by_role("button", name="Remove it").click()
    expect(page.locator("#adapter-region")).not_to_contain_text("demo:sql")
    complaints[:] = [text for text in complaints if "409" not in text]


@pytest.mark.usefixtures("adapters")
def test_an_older_page_does_not_replace_the_parts_of_a_newer_one(page: Page, site: LiveServer) -> None:
    page.goto(f"/models/{site.checkpoint_id('demo')}/?tab=adapters")
    region = page.locator("#adapter-region")
    expect(region).to_contain_text("demo:sql")
    held: list[tuple[Route, APIResponse]] = []

    def hold_first(route: Route) -> None:
        if held:
            return route.continue_()
        return held.append((route, route.fetch()))

    page.route("**/?tab=adapters", hold_first)
    page.evaluate(
        """async () => {
          window.kit = await import("/static/registry/kit.js");
          window.first = window.kit.redrawParts("adapter-region");
        }"""
    )
    wait_until(lambda: page.title() and held, 60, "the first page")
    site.manage("from models_registry.models import Adapter; Adapter.objects.filter(name='sql').delete()")
    page.evaluate("window.kit.redrawParts('adapter-region')")
    expect(region).not_to_contain_text("demo:sql")
    route, response = held[0]
    route.fulfill(response=response)
    page.evaluate("window.first")
    expect(region).to_contain_text("demo:mix")
    expect(region).not_to_contain_text("demo:sql")
