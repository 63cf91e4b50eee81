"""Chat templates and tokenizers of other models on a model's page in Chromium: checked, set, used at once, removed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.actions import CONTRAST, DEMO, HOSTILE, delete
from tests.browser.conftest import Complaints
from tests.live.conftest import LiveServer

pytestmark = pytest.mark.browser

PLAIN = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
GOOD = PLAIN + "{% if add_generation_prompt %}[assistant]{% endif %}"
MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(autouse=True)
def own_template(site: LiveServer) -> Iterator[None]:
    """Each test begins and ends with the demo model's own template."""
    yield
    site.manage(
        "from models_registry import services; from models_registry.models import Checkpoint;"
        "row = Checkpoint.objects.get(served_model_name='demo');"
        "row.overrides.filter(cleared_at=None).exists() and "
        "services.checkpoint_override_clear(checkpoint=row, fact='chat_template')"
    )


def open_page(page: Page, site: LiveServer) -> None:
    page.goto(f"/models/{site.checkpoint_id('demo')}/?tab=template")


def preview(page: Page, source: str) -> None:
    page.fill("#template-source", source)
    page.click("#template-preview")
    expect(page.locator("#template-preview")).to_be_enabled()


def prompt(site: LiveServer) -> str:
    return httpx.post(f"{site.url}/apply-template", json={"model": "demo", "messages": MESSAGES}).json()["prompt"]


def test_check_set_use_and_take_away(page: Page, site: LiveServer) -> None:
    before = prompt(site)
    page.goto(f"/models/{site.checkpoint_id('demo')}/?tab=facts")
    page.click("[data-override=chat_template]")
    expect(page.locator("#template-source")).to_be_visible()
    preview(page, PLAIN)
    expect(page.locator("#template-verdict")).to_have_text("It can be used, with 1 warning.")
    expect(page.locator("#template-problems")).to_contain_text("warning: it ignores add_generation_prompt")
    preview(page, GOOD)
    expect(page.locator("#template-verdict")).to_contain_text("no problems were found")
    expect(page.locator("#template-problems")).to_be_hidden()
    sample = page.locator("#template-sample pre")
    expect(sample).to_contain_text("[user] Which star is over the pole?")
    expect(sample).to_contain_text("get_weather")
    page.focus("#template-preview")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#toasts")).to_contain_text("The chat template is set")
    expect(page.locator("#chat-template")).to_contain_text("Set by admin")
    page.goto(f"/models/{site.checkpoint_id('demo')}/?tab=facts")
    expect(page.locator("tr", has=page.locator("th:text-is('chat_template')"))).to_contain_text("instead of that of")
    open_page(page, site)
    assert prompt(site) == "[user] Hi\n[assistant]"
    page.click("text=The model's own template")
    expect(page.locator("#chat-template details pre")).to_be_visible()
    page.click("#template-clear")
    page.click("dialog >> text=Take it away")
    expect(page.locator("#toasts")).to_contain_text("taken away")
    expect(page.locator("#template-clear")).to_have_count(0)
    assert prompt(site) == before


def test_the_preview_follows_what_is_typed(page: Page, site: LiveServer) -> None:
    open_page(page, site)
    page.fill("#template-source", GOOD)
    expect(page.locator("#template-sample pre")).to_contain_text("[user] Which star is over the pole?")
    page.focus("#template-source")
    page.keyboard.press("Control+End")
    page.keyboard.type("{{ ")
    expect(page.locator("#template-verdict")).to_contain_text("It can't be used: 1 error.")
    expect(page.locator("#template-source")).to_be_focused()


def test_errors_are_told_with_their_line_and_refuse(page: Page, site: LiveServer, complaints: Complaints) -> None:
    open_page(page, site)
    preview(page, PLAIN + "\n{{ messages.pop() }}{% include 'x' %}")
    expect(page.locator("#template-verdict")).to_contain_text("It can't be used:")
    expect(page.locator("#template-problems")).to_contain_text("error: line 3: .pop() is refused")
    page.click("#template-form >> text=Set and inspect again")
    expect(page.locator("#template-error")).to_contain_text("The chat template can't be used: line 3")
    complaints[:] = [text for text in complaints if "400" not in text]


def test_a_model_without_a_tokenizer_takes_that_of_another_one(
    page: Page, site: LiveServer, complaints: Complaints, tmp_path: Path
) -> None:
    for name in ("config.json", "model.safetensors"):
        shutil.copy(DEMO / name, tmp_path / name)
    site.register(tmp_path, "bare")
    page.goto(f"/models/{site.checkpoint_id('bare')}/?tab=facts")
    page.click("[data-override=vocabulary]")
    page.select_option("#override-fact", "tokenizer_from")
    page.select_option("#override-value", "demo")
    page.click("#override >> text=Set and inspect again")
    expect(page.locator("#toasts")).to_contain_text("tokenizer_from is set")
    expect(page.locator("tr", has=page.locator("th:text-is('tokenizer_from')"))).to_contain_text(
        "tokenizer.json of it is used"
    )
    answer = httpx.post(f"{site.url}/apply-template", json={"model": "bare", "messages": MESSAGES}).json()
    assert answer["prompt"] == prompt(site)
    page.goto(f"/models/{site.checkpoint_id('demo')}/?tab=settings")
    page.click("#delete")
    page.click("dialog >> text=Delete it")
    expect(page.locator("#toasts")).to_contain_text("demo has the tokenizer of bare; take their override")
    complaints[:] = [text for text in complaints if "409" not in text]
    delete(page, site, "bare")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_and_can_be_read(
    chromium: Browser, site: LiveServer, session_state: dict, complaints: Complaints, width: int, scheme: str
) -> None:
    long = f"{{{{ '{'x' * 300}' }}}}{{# {HOSTILE.replace('{{7*7}}', '')} #}}"
    site.manage(
        "from models_registry import services; from models_registry.models import Checkpoint;"
        "row = Checkpoint.objects.get(served_model_name='demo');"
        f"services.checkpoint_override_set(checkpoint=row, fact='chat_template', value={long + PLAIN!r})"
    )
    context = chromium.new_context(
        base_url=site.url, storage_state=session_state, color_scheme=scheme, viewport={"width": width, "height": 844}
    )
    try:
        page = context.new_page()
        complaints.watch(page)
        page.goto(f"/models/{site.checkpoint_id('demo')}/?tab=template")
        for source in (long + PLAIN, PLAIN + "{% include 'x' %}" + "{{ messages.pop() }}" * 3):
            preview(page, source)
            expect(page.locator("#template-problems")).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
            assert page.evaluate(CONTRAST) == []
        assert page.locator("#chat-template img").count() == 0
    finally:
        context.close()
    assert complaints == []
