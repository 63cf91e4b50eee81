"""Files to upload, and what several tests do on the pages."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect
from safetensors.torch import load_file, save_file

from tests.live.conftest import ROOT, LiveServer, wait_until

DEMO = ROOT / "inference" / "demo" / "checkpoint"
HOSTILE = "<img src=x onerror=alert(1)>{{7*7}}"
AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
RULES = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    "reporter": "no-passes",  # a list of all elements that pass takes longer than the rules
}
RULES_OF_COLOURS = RULES | {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
"""Those that depend on the scheme; the document is the same in both."""
CONTRAST = """
() => {
  const parse = (text) => {
    const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
    return { r, g, b, a };
  };
  const luminance = ({ r, g, b }) => {
    const part = (v) => ((v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.a === 1) return colour;
    }
    return { r: 255, g: 255, b: 255 };
  };
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility()) continue;
    if (element.closest(":disabled, noscript, script, option")) continue;
    const style = getComputedStyle(element);
    const [high, low] = [luminance(parse(style.color)), luminance(ground(element))].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < 4.5) poor.push(`${ratio.toFixed(2)} ${element.tagName} ${walker.currentNode.data.trim().slice(0, 40)}`);
  }
  return poor;
}
"""
MISALIGNED = """
() => [...document.querySelectorAll("main table")].flatMap((table) => {
  const heads = [...(table.tHead?.rows[0]?.cells ?? [])];
  const row = [...(table.tBodies[0]?.rows ?? [])].find((each) => each.cells.length === heads.length);
  return heads.filter((head, i) => head.innerText.trim() && !head.querySelector(".visually-hidden")
    && row && head.classList.contains("num") !== row.cells[i].classList.contains("num")).map((e) => e.innerText);
})
"""
"""Headings of table columns that stand at another side than their numbers."""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
"""Milliseconds until the page was painted first; nothing yet: undefined."""


def axe_findings(page: Page, rules: dict[str, Any] = RULES) -> list[list[str]]:
    """The rules that axe finds broken, each with an element that breaks it."""
    if not page.evaluate("Boolean(window.axe)"):
        page.evaluate(AXE)
    return page.evaluate(
        "async (rules) => (await axe.run(document, rules)).violations"
        ".map((item) => [item.id, item.nodes[0].html.slice(0, 300)])",
        rules,
    )


def schemes_of(page: Page, *schemes: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Switch the page to each scheme in turn; yields it, with the rules for axe that are new in it."""
    for scheme in schemes:
        page.emulate_media(color_scheme=scheme)
        expect(page.locator("html")).to_have_attribute("data-theme", scheme)
        yield scheme, RULES if scheme == schemes[0] else RULES_OF_COLOURS


def assert_fits_and_can_be_read(page: Page, *, with_axe: bool = False) -> None:
    """In both schemes nothing is wider than the page or has a poor contrast, nor is found by axe."""
    assert page.evaluate(MISALIGNED) == [], page.url
    for scheme, rules in schemes_of(page, "light", "dark"):
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, (page.url, scheme)
        assert page.evaluate(CONTRAST) == [], (page.url, scheme)
        if with_axe:
            assert axe_findings(page, rules) == [], (page.url, scheme)


def demo_files(tmp_path: Path) -> list[str]:
    """A copy of the demo model's files."""
    place = shutil.copytree(DEMO, tmp_path / "copy")
    return [str(file) for file in sorted(place.iterdir())]


def second_revision(site: LiveServer, place: Path) -> str:
    """Register a copy of the demo with a tensor that has doubled and a token that looks like markup, without a chat
    template; both are revisions of ``best``. Returns its id."""
    shutil.copytree(DEMO, place)
    tensors = load_file(place / "model.safetensors")
    name = next(name for name in tensors if "layers.2." in name)
    tensors[name] = tensors[name] * 2
    save_file(tensors, place / "model.safetensors")
    content = json.loads((place / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary[HOSTILE] = vocabulary.pop(content["added_tokens"][0]["content"])
    content["added_tokens"][0]["content"] = HOSTILE
    (place / "tokenizer.json").write_text(json.dumps(content))
    (place / "tokenizer_config.json").unlink()
    return site.manage(
        "from models_registry import aliases, services; from models_registry.models import Checkpoint;"
        f"row = services.checkpoint_register(path={str(place)!r});"
        "demo = Checkpoint.objects.get(served_model_name='demo');"
        "[aliases.alias_promote(name='best', checkpoint=one, author_name='vera') for one in (demo, row)];"
        "print(row.pk)"
    ).strip()


@contextmanager
def row_like_demo(site: LiveServer, name: str, changes: str = "") -> Iterator[str]:
    """A checkpoint's row that is a copy of the demo's, without files, until the block ends; yields its id.

    Args:
        changes: Python statements that change ``row`` before it is saved, each with a semicolon.
    """
    made = site.manage(
        "from models_registry.models import Checkpoint; import uuid;"
        "row = Checkpoint.objects.get(served_model_name='demo'); row.pk = row.id = uuid.uuid4();"
        f"row.served_model_name = {name!r}; row.path = f'/nowhere/{{row.pk}}';"
        f"{changes}row.save(force_insert=True); print(row.pk)"
    ).strip()
    try:
        yield made
    finally:
        site.manage(f"from models_registry.models import Checkpoint; Checkpoint.objects.filter(pk={made!r}).delete()")


def upload(page: Page, name: str, files: list[str]) -> None:
    page.goto("/models/upload/")
    page.set_input_files("#files-input", files)
    page.fill("#name", name)
    page.keyboard.press("Enter")


def delete(page: Page, site: LiveServer, name: str) -> None:
    page.goto(f"/models/{site.checkpoint_id(name)}/?tab=settings")
    page.click("#delete")
    page.click("dialog >> text=Delete it")
    page.wait_for_url("**/models/")


def await_loaded(site: LiveServer) -> None:
    """Load the demo model where an earlier test has left it unloaded, and wait until its worker says so."""
    assert site.complete(max_tokens=1).status_code == 200
    wait_until(lambda: site.model().status == "ready", 120, "the load of the model")


def show_texts(page: Page, path: str, texts: Collection[str]) -> None:
    """Open a page without scripts, again until it has the texts: what workers and records say may come later."""
    deadline = time.monotonic() + 60
    while True:
        page.goto(path)
        seen = page.locator("body").inner_text()
        missing = [text for text in texts if text not in seen]
        if not missing:
            return
        assert time.monotonic() < deadline, (path, missing)


def children_of(site: LiveServer, module: str) -> list[int]:
    """Processes that do a job of this kind for this server."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if module.encode() in command and str(site.data_dir).encode() in environment:
                found.append(int(entry.name))
    return found


def held_child(site: LiveServer, module: str) -> int:
    """The process of a job, stopped at whatever it does: it would be done before a hand could end it."""
    (child,) = wait_until(lambda: children_of(site, module), 60, "the start of the process")
    os.kill(child, signal.SIGSTOP)
    return child


def assert_job_card_fits(page: Page, site: LiveServer, *, rows: str, button: str, num_images: int, tab: str) -> None:
    """Look at four rows of jobs on the demo's page, and at their dialog: widths, contrasts, in both schemes.

    Args:
        tab: Of the model's page.
        rows, button: Selectors of the list and of what opens the dialog, whose id is the button's with ``-dialog``.
    """
    page.emulate_media(reduced_motion="reduce")  # colours change at once
    for width in (360, 1440):
        page.set_viewport_size({"width": width, "height": 844})
        page.goto(f"/models/{site.checkpoint_id('demo')}/?tab={tab}")
        expect(page.locator(f"{rows} > li")).to_have_count(4)
        assert page.locator(f"{rows} img").count() == num_images
        for step in ("rows", "dialog"):
            assert_fits_and_can_be_read(page)
            if step == "rows":
                page.click(button)
        outside = page.locator(f"{button}-dialog *").evaluate_all(
            "(all) => all.filter((e) => e.getBoundingClientRect().right > innerWidth).map((e) => e.outerHTML)"
        )
        assert outside == []
