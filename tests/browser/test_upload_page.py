"""Uploading checkpoints in Chromium: by file and folder, with refusals, lost connections and cancelling."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.actions import DEMO, delete, demo_files, files_in, upload
from tests.browser.conftest import Complaints
from tests.live.conftest import LiveServer, wait_until
from tests.models_registry.detection.builders import UNKNOWN_TYPE, llama_shapes, small_hybrid, write_checkpoint

pytestmark = pytest.mark.browser


def test_upload_load_try_unload_delete(page: Page, site: LiveServer, tmp_path: Path) -> None:
    upload(page, "sent-demo", demo_files(tmp_path))
    expect(page.locator("#outcome h2")).to_have_text("sent-demo is registered")
    page.click("text=Look at it")
    expect(page.locator("h1")).to_have_text("sent-demo")
    page.click("#load")
    expect(page.locator("#live")).to_have_text("ready")
    page.click("a:has-text('Playground') >> nth=-1")
    expect(page.locator("#model")).to_have_value("sent-demo")
    page.fill("#prompt", "What is a module?")
    page.keyboard.press("Enter")
    expect(page.locator("#readout")).to_contain_text("ended by")
    page.goto(f"/models/{site.checkpoint_id('sent-demo')}/")
    expect(page.locator("#load")).to_have_text("Unload")
    page.click("#load")
    expect(page.locator("#live")).to_have_text("not loaded")
    page.click("#delete")
    page.click("dialog >> text=Keep it")
    expect(page.locator("h1")).to_have_text("sent-demo")
    page.click("#delete")
    page.click("dialog >> text=Delete it")
    page.wait_for_url("**/models/")
    expect(page.locator("#models")).not_to_contain_text("sent-demo")
    assert files_in(site.data_dir / "checkpoints", site.data_dir / "blobs", site.data_dir / "uploads") == []


def test_a_broken_checkpoint_is_refused_with_the_reason(page: Page, site: LiveServer, tmp_path: Path) -> None:
    shapes, config = small_hybrid()
    place = write_checkpoint(tmp_path / "broken", shapes, config)
    weights = place / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-64])
    upload(page, "broken", [str(weights), str(place / "config.json")])
    expect(page.locator("#outcome h2")).to_have_text("Refused")
    expect(page.locator("#outcome")).to_contain_text("model.safetensors")
    expect(page.locator("#outcome")).to_contain_text("truncated")
    wait_until(lambda: not files_in(site.data_dir / "uploads", site.data_dir / "blobs"), 60, "the cleaning up")


def test_an_unknown_type_is_read_as_the_one_that_is_set_by_hand(
    page: Page, site: LiveServer, tmp_path: Path, complaints: Complaints
) -> None:
    place = write_checkpoint(tmp_path / "cousin", llama_shapes(), UNKNOWN_TYPE)
    upload(page, "cousin", [str(place / "model.safetensors"), str(place / "config.json")])
    expect(page.locator("#outcome h2")).to_have_text("Refused")
    expect(page.locator("#outcome")).to_contain_text("The nearest is llama")
    page.click("#facts summary")
    page.select_option("#fact", "model_type")
    page.select_option("#fact-value", "llama")
    page.click("#fact-form button")
    expect(page.locator("#facts-set")).to_have_text('model_type = "llama"Remove')
    page.click("#start")
    expect(page.locator("#outcome h2")).to_have_text("cousin is registered")
    page.click("text=Look at it")
    page.click("text=History of overrides (1)")
    history = page.locator("details", has_text="History of overrides").locator("li")
    expect(history).to_contain_text("model_type = llama by admin")
    delete(page, site, "cousin")


def test_what_does_not_belong_is_left_out_or_refused(page: Page, tmp_path: Path) -> None:
    files = demo_files(tmp_path)
    for name in ("run.py", "pytorch_model.bin"):
        (tmp_path / name).write_text("no")
        files.append(str(tmp_path / name))
    page.goto("/models/upload/")
    page.set_input_files("#files-input", files)
    expect(page.locator("#files")).to_contain_text("a pickle: could run code, never read")
    expect(page.locator("#files")).to_contain_text("not part of a checkpoint")
    expect(page.locator("#summary")).to_contain_text("4 files")
    page.set_input_files("#files-input", [str(tmp_path / "run.py")])
    expect(page.locator("#outcome")).to_contain_text("no .safetensors, .gguf or .ggml file")
    expect(page.locator("#start")).to_be_disabled()


@pytest.mark.parametrize("suffix", ["gguf", "ggml"])
def test_a_single_file_with_everything_in_it_gives_the_name(page: Page, tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"small.{suffix}").write_bytes(b"GGUF")
    page.goto("/models/upload/")
    page.set_input_files("#files-input", str(tmp_path / f"small.{suffix}"))
    expect(page.locator("#name")).to_have_value("small")
    expect(page.locator("#start")).to_be_enabled()
    page.click("text=Set facts by hand")
    page.select_option("#fact", "chat_template")
    page.fill("#fact-value", "{# " + "x" * 300 + " #}\n{{ messages }}")
    page.click("#fact-form >> text=Set")
    expect(page.locator("#facts-set")).to_contain_text("xxx…")


def test_a_folder_gives_the_name(page: Page, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(DEMO, tmp_path / "Night Sky 7B"))
    (folder / "sub").mkdir()
    (folder / "sub" / "model.safetensors").write_bytes(b"no")
    page.goto("/models/upload/")
    page.set_input_files("#folder-input", str(folder))
    expect(page.locator("#name")).to_have_value("Night-Sky-7B")
    expect(page.locator("#files")).to_contain_text("in a subfolder")


def test_a_lost_connection_is_survived(page: Page, tmp_path: Path, complaints: Complaints, site: LiveServer) -> None:
    """Pieces that get lost are sent again, those that arrived (their answer got lost) are not."""
    seen = {"lost": 0, "answer lost": 0}

    def trouble(route: Route) -> None:
        if seen["lost"] < 1:
            seen["lost"] += 1
            route.abort()
        elif "files/2" in route.request.url and seen["answer lost"] < 1:
            seen["answer lost"] += 1
            route.fetch()
            route.abort()
        else:
            route.continue_()

    page.route("**/registry/uploads/*/files/**", trouble)
    upload(page, "survivor", demo_files(tmp_path))
    expect(page.locator("#outcome h2")).to_have_text("survivor is registered")
    assert seen == {"lost": 1, "answer lost": 1}
    complaints[:] = [text for text in complaints if "ERR_FAILED" not in text]
    delete(page, site, "survivor")


def test_cancelling_an_upload(page: Page, site: LiveServer, tmp_path: Path, complaints: Complaints) -> None:
    page.route("**/registry/uploads/*/files/0**", lambda route: None)  # never answered: the line is slow
    upload(page, "given-up", demo_files(tmp_path))
    expect(page.locator("#total")).to_be_visible()
    wait_until(lambda: files_in(site.data_dir / "uploads"), 60, "the first piece")
    page.click("#cancel")
    expect(page.locator("#outcome h2")).to_have_text("Cancelled")
    wait_until(lambda: not files_in(site.data_dir / "uploads"), 60, "the cleaning up")
    complaints[:] = [text for text in complaints if "409" not in text and "ERR_FAILED" not in text]
