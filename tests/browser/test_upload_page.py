"""Uploading checkpoints in Chromium: files, folders, paths on the server, refusals, lost connections."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.actions import DEMO, assert_fits_and_can_be_read, delete, demo_files, upload
from tests.browser.conftest import TIMEOUT_MS, Complaints, NewFiles
from tests.browser.slow_line import SlowLine
from tests.live.conftest import LiveServer, wait_until
from tests.models_registry.detection.builders import (
    LLAMA_CONFIG,
    UNKNOWN_TYPE,
    llama_shapes,
    small_hybrid,
    write_checkpoint,
)

pytestmark = pytest.mark.browser


def test_upload_load_try_unload_delete(page: Page, site: LiveServer, tmp_path: Path, new_files: NewFiles) -> None:
    upload(page, "sent-demo", demo_files(tmp_path))
    expect(page.locator("#outcome h2")).to_have_text("sent-demo is registered")
    page.click("text=Quantise it")
    expect(page.locator("#quantise-name")).to_have_value("sent-demo-quantised")
    page.click("#quantise-close")
    expect(page.locator("h1")).to_have_text("sent-demo")
    page.click("#load")
    expect(page.locator("#live")).to_have_text("ready")
    page.click("#try")
    expect(page.locator("#model")).to_have_value("sent-demo")
    page.fill("#prompt", "What is a module?")
    page.keyboard.press("Enter")
    expect(page.locator(".turn.assistant .figures")).to_contain_text("ended by")
    page.goto(f"/models/{site.checkpoint_id('sent-demo')}/?tab=settings")
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
    wait_until(lambda: not new_files("checkpoints", "blobs", "uploads"), 60, "the removal of all files")


def test_a_path_on_the_server_is_inspected_and_registered(page: Page, site: LiveServer, complaints: Complaints) -> None:
    place = site.data_dir.parent / "runs" / "lesson"
    shutil.copytree(DEMO, place)
    page.goto("/models/upload/")
    page.fill("#by-path-path", f"{place}/nothing")
    page.keyboard.press("Enter")
    expect(page.locator("#by-path-problem")).to_contain_text("does not exist")
    page.fill("#by-path-path", str(place))
    page.click("#by-path summary")
    page.select_option("#by-path-fact", "max_position_embeddings")
    page.fill("#by-path-value", "77")
    page.locator("#by-path-path").press("Enter")
    expect(page.locator("#by-path-report")).to_contain_text("context of 77 tokens")
    expect(page.locator("#by-path-set-1")).to_be_checked()
    assert_fits_and_can_be_read(page)
    page.fill("#by-path-name", "lesson-1")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("lesson-1")
    complaints[:] = [text for text in complaints if "422" not in text]  # of the path that isn't there
    assert complaints == []
    delete(page, site, "lesson-1")
    assert (place / "config.json").exists()
    shutil.rmtree(place.parent)
    complaints.clear()  # the deleted model's page may have been drawn again before it was left


def test_a_broken_checkpoint_is_refused_with_the_reason(
    page: Page, site: LiveServer, tmp_path: Path, new_files: NewFiles
) -> None:
    shapes, config = small_hybrid()
    place = write_checkpoint(tmp_path / "broken", shapes, config)
    weights = place / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-64])
    upload(page, "broken", [str(weights), str(place / "config.json")])
    expect(page.locator("#outcome h2")).to_have_text("Refused")
    expect(page.locator("#outcome")).to_contain_text("model.safetensors")
    expect(page.locator("#outcome")).to_contain_text("truncated")
    wait_until(lambda: not new_files("uploads", "blobs"), 60, "the cleaning up")


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
    page.click("nav >> text=Facts")
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
    edge = page.locator("#work").bounding_box()["x"]
    assert all(name.bounding_box()["x"] >= edge + 8 for name in page.locator("#files .font-monospace").all())
    page.set_input_files("#files-input", [str(tmp_path / "run.py")])
    expect(page.locator("#work + #outcome")).to_contain_text("no .safetensors, .gguf or .ggml file")
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


@pytest.fixture
def line(site: LiveServer) -> Iterator[SlowLine]:
    """A way to the server that tests can cut and slow down; requests of a shared worker can't be intercepted."""
    found = SlowLine(int(site.url.rpartition(":")[2]))
    yield found
    found.close()


@pytest.fixture
def on_the_line(chromium: Browser, line: SlowLine, session_state: dict, complaints: Complaints) -> Iterator[Page]:
    context = chromium.new_context(base_url=line.url, storage_state=session_state)
    context.set_default_timeout(TIMEOUT_MS)
    page = context.new_page()
    complaints.watch(page)
    yield page
    context.close()


def big_llama(tmp_path: Path, *, rows: int = 100_000) -> Path:
    """A llama of some megabytes, so that its upload takes a while on a slow line."""
    shapes = {**llama_shapes(), "model.embed_tokens.weight": (rows, 16), "lm_head.weight": (rows, 16)}
    return write_checkpoint(tmp_path / "big-llama", shapes, {**LLAMA_CONFIG, "vocab_size": rows})


def sent(page: Page) -> float:
    return page.locator("#transfers progress").evaluate("(bar) => bar.value")


def test_an_upload_goes_on_while_pages_change(
    on_the_line: Page, line: SlowLine, site: LiveServer, tmp_path: Path, complaints: Complaints
) -> None:
    page, place = on_the_line, big_llama(tmp_path, rows=300_000)  # a minute: the pages may take their time
    line.bytes_per_s = 700_000
    upload(page, "traveller", [str(file) for file in place.iterdir()])
    expect(page.locator("#report")).to_contain_text("It can be served: llama")
    for path in ("/jobs/", "/models/", "/"):
        before = sent(page)
        page.goto(path)
        expect(page.locator("#transfers")).to_contain_text("traveller")
        wait_until(lambda before=before: sent(page) > before, 60, "more of the upload")
    page.goto("/models/upload/")
    expect(page.locator("#total")).to_be_visible()
    line.bytes_per_s = None
    expect(page.locator("#outcome h2")).to_have_text("traveller is registered")
    assert complaints == []
    delete(page, site, "traveller")


def test_an_upload_is_resumed_by_another_browser(
    chromium: Browser, line: SlowLine, session_state: dict, page: Page, site: LiveServer, tmp_path: Path
) -> None:
    place = big_llama(tmp_path)
    line.bytes_per_s = 700_000
    context = chromium.new_context(base_url=line.url, storage_state=session_state)
    first = context.new_page()
    upload(first, "taken-up", [str(file) for file in place.iterdir()])
    expect(first.locator("#report")).to_be_visible()
    wait_until(lambda: sent(first) > 0.25, 60, "a quarter of the upload")
    line.cut()  # the browser is gone, whatever its worker would still do
    context.close()
    page.goto("/models/upload/")
    row = page.locator("#unfinished li", has_text="taken-up")
    expect(row).to_contain_text("last byte")
    received = row.inner_text()
    with page.expect_file_chooser() as chooser:
        row.get_by_role("button", name="Go on").click()
    chooser.value.set_files(str(place))
    expect(page.locator("#outcome h2")).to_have_text("taken-up is registered")
    assert "0 B of" not in received
    delete(page, site, "taken-up")


def test_other_files_are_not_taken_for_the_rest_of_an_upload(
    page: Page, site: LiveServer, tmp_path: Path, complaints: Complaints
) -> None:
    place = big_llama(tmp_path)
    weights = place / "model.safetensors"
    upload_id = site.manage(
        "import io; from models_registry import uploads; from models_registry.upload_rules import DeclaredFile;"
        f"content = open({str(weights)!r}, 'rb').read();"
        "u = uploads.upload_create(owner=None, served_model_name='halved',"
        " files=[DeclaredFile('model.safetensors', len(content))]);"
        "uploads.upload_receive(upload_id=u.pk, number=0, offset=0, body=io.BytesIO(content[:70000])); print(u.pk)"
    ).strip()
    content = bytearray(weights.read_bytes())
    content[60_000] ^= 1
    weights.write_bytes(content)
    page.goto("/models/upload/")
    row = page.locator("#unfinished li", has_text="halved")
    with page.expect_file_chooser() as chooser:
        row.get_by_role("button", name="Go on").click()
    chooser.value.set_files(str(place))
    expect(page.locator("#outcome")).to_contain_text("isn't the file whose upload began")
    page.reload()
    page.locator("#unfinished li", has_text="halved").get_by_role("button", name="Discard").click()
    expect(page.locator("#unfinished li", has_text="halved")).to_have_count(0)
    assert not (site.data_dir / "uploads" / upload_id).exists()
    complaints[:] = [text for text in complaints if "409" not in text]


def test_an_upload_whose_name_was_taken_is_finished_under_another(
    page: Page, site: LiveServer, tmp_path: Path, complaints: Complaints
) -> None:
    place = big_llama(tmp_path)
    site.manage(
        "import io, pathlib; from models_registry import uploads;"
        "from models_registry.upload_rules import DeclaredFile;"
        f"files = [(p.name, p.read_bytes()) for p in pathlib.Path({str(place)!r}).iterdir()];"
        "u = uploads.upload_create(owner=None, served_model_name='late',"
        " files=[DeclaredFile(name, len(content)) for name, content in files]);"
        "[uploads.upload_receive(upload_id=u.pk, number=n, offset=at, body=io.BytesIO(content[at:at + (2 << 20)]))"
        " for n, (_, content) in enumerate(files) for at in range(0, len(content), 2 << 20)]"
    )
    site.register(place, "late")
    page.goto("/models/upload/")
    row = page.locator("#unfinished li", has_text="late")
    row.get_by_role("button", name="Finish").click()
    expect(page.locator("#outcome")).to_contain_text("keeps its bytes")
    expect(row).to_contain_text("its name is taken")
    row.get_by_role("textbox").fill("late-2")
    row.get_by_role("button", name="Finish").click()
    expect(page.locator("#outcome h2")).to_have_text("late-2 is registered")
    expect(row).to_have_count(0)
    complaints[:] = [text for text in complaints if "409" not in text]
    assert complaints == []
    delete(page, site, "late-2")
    delete(page, site, "late")


def test_a_lost_connection_is_survived(
    on_the_line: Page, line: SlowLine, site: LiveServer, tmp_path: Path, complaints: Complaints
) -> None:
    page = on_the_line
    line.bytes_per_s = 700_000
    upload(page, "survivor", [str(file) for file in big_llama(tmp_path).iterdir()])
    expect(page.locator("#report")).to_be_visible()
    line.cut()
    expect(page.locator("#total-text")).to_contain_text("connection trouble")
    line.bytes_per_s = None
    line.mend()
    expect(page.locator("#outcome h2")).to_have_text("survivor is registered")
    complaints.clear()  # of the cut line
    delete(page, site, "survivor")


def test_a_piece_that_changes_on_its_way_is_sent_again(
    on_the_line: Page, line: SlowLine, site: LiveServer, tmp_path: Path, complaints: Complaints
) -> None:
    page = on_the_line
    line.num_changed = 2
    upload(page, "unharmed", [str(file) for file in big_llama(tmp_path).iterdir()])
    expect(page.locator("#outcome h2")).to_have_text("unharmed is registered")
    assert line.num_changed == 0
    complaints.clear()  # of the pieces that were refused
    (stored,) = site.data_dir.glob("checkpoints/*/model.safetensors")
    assert stored.read_bytes() == (tmp_path / "big-llama" / "model.safetensors").read_bytes()
    delete(page, site, "unharmed")


def test_a_server_that_is_away_from_the_start_is_said(
    on_the_line: Page, line: SlowLine, tmp_path: Path, complaints: Complaints
) -> None:
    page = on_the_line
    page.goto("/models/upload/")
    page.set_input_files("#files-input", demo_files(tmp_path))
    line.cut()
    page.click("#start")
    expect(page.locator("#outcome h2")).to_have_text("Interrupted")
    expect(page.locator("#start")).to_be_enabled()
    complaints.clear()  # of the cut line


RUN_WITHOUT_A_SERVER = """
async (replies) => {
  const script = document.querySelector("script[src*='registry/upload.js']");
  const { Uploader } = await import(script.src.replace("upload.js", "uploader.js"));
  const asked = [];
  globalThis.fetch = async (url, { method }) => {
    asked.push(`${method} ${url}`);
    const [status, body] = replies.shift();
    if (!status) throw new TypeError("Failed to fetch");
    return new Response(JSON.stringify(body), { status });
  };
  const { state, reason, checkpoint } = await new Promise((resolve) => {
    const isOn = ({ state }) => ["starting", "sending", "checking"].includes(state);
    const files = [{ name: "m.gguf", file: new File(["GGUF"], "m.gguf") }];
    new Uploader(([run]) => isOn(run) || resolve(run)).start({ key: "a", name: "a", overrides: {}, id: "x", files });
  });
  return { state, reason, checkpoint, asked };
}
"""


def test_a_check_is_followed_through_a_restart_of_the_server(page: Page) -> None:
    page.goto("/models/upload/")
    upload = {"chunk_bytes": 100, "served_model_name": "a", "stage": "", "reason": ""}
    upload["files"] = [{"name": "m.gguf", "size_bytes": 4, "received_bytes": 4}]
    checking = {**upload, "state": "checking"}
    restart = [[0, None], [503, {"error": {"message": "It starts."}}]]
    replies = [[200, {**upload, "state": "receiving"}], [202, checking], *restart, [200, checking]]
    replies += [[200, {**upload, "state": "done", "checkpoint": "made"}]]
    found = page.evaluate(RUN_WITHOUT_A_SERVER, replies)
    assert (found["state"], found["checkpoint"]) == ("done", "made"), found
    # Files that the server has whole are neither compared nor looked into again.
    assert [line.partition(" ")[0] for line in found["asked"]] == ["GET", "POST", *["GET"] * 4]


CANCEL_AT_ONCE = """
async () => {
  const script = document.querySelector("script[src*='registry/upload.js']");
  const { Uploader } = await import(script.src.replace("upload.js", "uploader.js"));
  const asked = [];
  let answer;
  globalThis.fetch = (url, { method, signal }) => {
    asked.push(`${method} ${url}`);
    if (method === "DELETE") return Promise.resolve(new Response(null, { status: 204 }));
    return new Promise((resolve, reject) => {
      signal?.addEventListener("abort", () => reject(signal.reason));
      answer = () => resolve(new Response(JSON.stringify({ id: "x", chunk_bytes: 100 }), { status: 201 }));
    });
  };
  const uploader = new Uploader(() => {});
  const files = [{ name: "m.gguf", file: new File(["GGUF"], "m.gguf") }];
  uploader.start({ key: "a", name: "a", overrides: {}, files });
  await uploader.cancel("a");
  answer();
  await new Promise((resolve) => setTimeout(resolve, 100));
  return asked;
}
"""


def test_an_upload_that_is_cancelled_while_it_is_made_is_removed(page: Page) -> None:
    page.goto("/models/upload/")
    assert page.evaluate(CANCEL_AT_ONCE) == ["POST /registry/uploads", "DELETE /registry/uploads/x"]


def test_a_page_that_is_shown_again_hears_of_its_upload(page: Page, site: LiveServer, tmp_path: Path) -> None:
    page.goto("/models/upload/")
    for kind in ("pagehide", "pageshow"):  # as when the browser keeps a page that was left
        page.evaluate("(kind) => dispatchEvent(new PageTransitionEvent(kind, { persisted: true }))", kind)
    page.set_input_files("#files-input", demo_files(tmp_path))
    page.fill("#name", "shown-again")
    page.keyboard.press("Enter")
    expect(page.locator("#outcome h2")).to_have_text("shown-again is registered")
    delete(page, site, "shown-again")


def test_cancelling_an_upload(
    on_the_line: Page, line: SlowLine, site: LiveServer, tmp_path: Path, new_files: NewFiles
) -> None:
    page = on_the_line
    line.bytes_per_s = 300_000
    upload(page, "given-up", [str(file) for file in big_llama(tmp_path).iterdir()])
    expect(page.locator("#report")).to_be_visible()
    assert new_files("uploads")
    page.click("#cancel")
    expect(page.locator("#outcome h2")).to_have_text("Cancelled")
    wait_until(lambda: not new_files("uploads"), 60, "the cleaning up")


def test_a_model_that_is_not_known_is_refused_before_its_weights_are_sent(
    on_the_line: Page, line: SlowLine, tmp_path: Path, complaints: Complaints
) -> None:
    page = on_the_line
    place = big_llama(tmp_path)
    (place / "config.json").write_text((place / "config.json").read_text().replace('"llama"', '"brandnew"'))
    line.bytes_per_s = 700_000
    upload(page, "unknown", [str(file) for file in place.iterdir()])
    expect(page.locator("#outcome h2")).to_have_text("Refused")
    amounts = page.locator("#files").inner_text()
    received = float(re.search(r"model\.safetensors\s+([\d.]+) MiB of", amounts).group(1))
    assert received <= 2.1, amounts
    complaints.clear()  # the refusal, in the browser's words
