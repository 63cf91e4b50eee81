"""Measure what a person waits for in the console: ``python -m tests.browser.figures`` starts a server of its own.

The report of an upload (its weights are a hole of a gibibyte), and the list of 200 models of 100 layers: its first
paint, and the rows from a letter in the search to their drawing.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.browser.actions import PAINT
from tests.browser.chromium import chromium_binary
from tests.browser.screenshots import demo_server, sign_in
from tests.live.conftest import LiveServer, wait_until
from tests.models_registry.detection.builders import shapes_of, write_header_only, write_json

TIMES = 7
NUM_MODELS, NUM_LAYERS = 200, 100
DEEP = {
    "hidden_size": 64, "num_layers": NUM_LAYERS, "vocab_size": 1000, "num_attention_heads": 4, "intermediate_size": 96,
    "mamba_layers": [number for number in range(NUM_LAYERS) if number % 4], "mamba2_num_heads": 4,
    "mamba2_head_dim": 32, "mamba2_state_size": 16,
}  # fmt: skip
LARGE = {
    "hidden_size": 2048, "num_layers": 4, "vocab_size": 32_000, "num_attention_heads": 16, "intermediate_size": 4096,
}  # fmt: skip
COPIES = """
import uuid
from models_registry.models import Checkpoint
row = Checkpoint.objects.get(served_model_name="deep")
for number in range({count}):
    row.pk = row.id = uuid.uuid4()
    row.served_model_name, row.path = f"deep-{{number}}", f"/nowhere/{{row.pk}}"
    row.save(force_insert=True)
"""
SEARCH = """async (query) => {
  const field = document.querySelector("#search");
  const rows = () => document.querySelectorAll("#models tbody tr").length;
  const before = rows();
  const begin = performance.now();
  field.value = query;
  field.dispatchEvent(new Event("input", { bubbles: true }));
  while (rows() === before) await new Promise(requestAnimationFrame);
  return performance.now() - begin;
}"""
REPORT = """() => new Promise((done) => {
  const begin = performance.now();
  const look = () => {
    if (document.querySelector("#report").checkVisibility()) done(performance.now() - begin);
    else requestAnimationFrame(look);
  };
  document.querySelector("#start").click();
  look();
})"""


def checkpoint(directory: Path, config: dict) -> Path:
    """A checkpoint whose weights are a hole."""
    directory.mkdir()
    write_json(directory / "config.json", config)
    write_header_only(directory / "model.safetensors", shapes_of(config))
    return directory


def report_times(page: Page, place: Path) -> Iterator[float]:
    """Milliseconds from the start of an upload until its report is there; each upload is cancelled then."""
    for number in range(TIMES):
        page.goto("/models/upload/")
        page.set_input_files("#files-input", [str(file) for file in place.iterdir()])
        page.fill("#name", f"large-{number}")
        yield page.evaluate(REPORT)
        page.click("#cancel")
        page.wait_for_timeout(500)


def paint_times(page: Page) -> Iterator[float]:
    for _ in range(TIMES):
        page.goto("/models/")
        yield wait_until(lambda: page.evaluate(PAINT), 60, "the first paint")


def search_times(page: Page) -> Iterator[float]:
    for number in range(TIMES):
        page.goto("/models/")
        yield page.evaluate(SEARCH, f"deep-{number + 20}")


def shown(words: str, times: Iterator[float]) -> None:
    found = list(times)
    sys.stdout.write(f"{words}: {statistics.median(found):.0f} ms (median of {len(found)}, most {max(found):.0f})\n")
    sys.stdout.flush()


def fill(site: LiveServer, directory: Path) -> None:
    """Register the models of the list; only the first one has files."""
    site.register(checkpoint(directory / "deep", DEEP), "deep")
    site.manage(COPIES.format(count=NUM_MODELS - 1))


def main() -> int:
    binary = chromium_binary()
    if binary is None:
        sys.stderr.write("There is no Chromium. Try: apt-get install chromium\n")
        return 1
    with tempfile.TemporaryDirectory() as place, demo_server() as site, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        page = browser.new_context(base_url=site.url, storage_state=sign_in(browser, site)).new_page()
        large = checkpoint(Path(place) / "large", LARGE)
        size = (large / "model.safetensors").stat().st_size
        shown(f"report of an upload of {size >> 20} MiB", report_times(page, large))
        fill(site, Path(place))
        shown(f"list of {NUM_MODELS} models of {NUM_LAYERS} layers, first paint", paint_times(page))
        shown("the same, a search", search_times(page))
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
