"""Files of batches and uploads on a full disk, under `kill -9` and with wrong declarations: whole, or not there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import signal
import socket
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

import httpx
import pytest

from inference.demo.paths import PREBUILT_DIRECTORY
from models_registry.upload_rules import CHUNK_BYTES
from tests.faults.records import written_files
from tests.faults.site import Site, answers, wait_until
from tests.faults.upload import Upload
from tests.faults.work import Work, right_tokens

pytestmark = pytest.mark.live

NUM_LINES = 60
FILE_LIMIT = 16 << 10
"""Bytes of a file that a full disk takes: less than the output of the batch."""
SEED = 1


def published(site: Site) -> list[Path]:
    """The files of the API that have a name."""
    return [path for path in (site.directory / "files").iterdir() if len(path.name) == 64]


def batch(site: Site, batch_id: str) -> tuple[str, str]:
    """State and output file of a batch."""
    ((state, output),) = site.rows("select state, output_file_id from inference_batch where batch_id = ?", batch_id)
    return state, output


@pytest.mark.fault(
    "F23",
    provoked="the disk takes no more bytes when the workers write the output of a batch of 60 lines",
    holds="the batch stays in `finalizing`, without a file; jobs and a batch with a short output go on; when there is "
    "space it completes by itself, with every line once; a file with a name is always whole",
)
def test_f23_a_full_disk_delays_the_end_of_a_batch(database_site):
    site = database_site
    work = Work(site, right_tokens(site))
    with contextlib.ExitStack() as limits:
        for worker_id in site.workers:
            limits.enter_context(site.file_limit(worker_id, size_bytes=FILE_LIMIT))
        batch_id = work.submit_batch(NUM_LINES, "f23")
        wait_until(lambda: batch(site, batch_id)[0] == "finalizing", 60, "the end of all lines")
        job_id, short = work.submit_job(0).replace("-", ""), work.submit_batch(1, "short")
        state = "select state from inference_generationjob where job_id = ?"
        wait_until(lambda: site.rows(state, job_id) == [("succeeded",)], 30, "the end of the job")
        wait_until(lambda: batch(site, short)[0] == "completed", 30, "the end of the short batch")
        time.sleep(3)
        assert batch(site, batch_id) == ("finalizing", "")
        assert written_files(site) == []
    # The next attempt comes when the lease of the last one has lapsed, 30 s after it: now. An attempt that is still
    # under way takes a lease again, and its failure waits for that.
    site.rows("update inference_batch set lease_until = now() where lease_until > now()")
    wait_until(lambda: batch(site, batch_id)[0] == "completed", 75, "the end of the batch")
    content = httpx.get(f"{site.urls[0]}/v1/files/{batch(site, batch_id)[1]}/content", timeout=20).raise_for_status()
    found = sorted(json.loads(line)["custom_id"] for line in content.text.splitlines())
    assert found == sorted(f"r{number}" for number in range(NUM_LINES))
    assert len(content.content) > FILE_LIMIT
    for path in published(site):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    assert written_files(site) == []


def checkpoints(site: Site) -> set[str]:
    """Ids of the registered checkpoints."""
    return {row[0] for row in site.rows("select id from models_registry_checkpoint")}


def killed_upload(site: Site, name: str, num_pieces: int | None, *, pause_s: float) -> Upload:
    """Return an upload under which the web process was killed, when the server is up again.

    Args:
        num_pieces: The kill comes so many pieces after the beginning; None: after the last one, in the check.
        pause_s: Seconds from there to the kill.
    """
    upload = Upload(site, name)

    def send() -> None:
        with contextlib.suppress(httpx.HTTPError):
            # Without a check to be killed in, all pieces may be there before the kill.
            if upload.send() is None and num_pieces is None:
                upload.finish()

    thread = threading.Thread(target=send)
    thread.start()
    wait_until(
        lambda: upload.is_sent if num_pieces is None else upload.num_pieces >= num_pieces, 30, "that part of the upload"
    )
    time.sleep(pause_s)
    process = site.processes["web-0"]
    site.signal("web-0", signal.SIGKILL)
    thread.join(30)
    wait_until(lambda: site.processes["web-0"] is not process, 10, "the restart of web-0")
    wait_until(lambda: answers(site.urls[0]), 60, "the start of web-0")
    swept = site.manage("sweep_uploads")  # as at the start of the server
    assert swept.returncode == 0, swept.stderr
    return upload.reopened()


@pytest.mark.fault(
    "F24",
    provoked="`kill -9` of the web process at two random moments of an upload of a model, and in its check",
    holds="an upload that was being received goes on behind the bytes that the server has, and becomes a model with "
    "the same files; one that was being checked is checked again and becomes one, too (by command: 5 GB, with kills of "
    "the client as well, in 64 MiB of the web process); no model is registered in part",
)
def test_f24_kills_under_an_upload_register_nothing_in_part(site):
    dice = random.Random(SEED)
    before = checkpoints(site)
    registered: set[str] = set()
    for number, num_pieces in enumerate([dice.randrange(1, 6), dice.randrange(6, 11), None]):
        upload = killed_upload(site, f"f24-{number}", num_pieces, pause_s=dice.uniform(0, 0.05))
        state = upload.state()["state"]
        assert num_pieces is None or state == "receiving", state
        found = upload.register() if state == "receiving" else upload.wait("done")["checkpoint"]
        registered.add(found.replace("-", ""))
        assert checkpoints(site) == before | registered
        for file in PREBUILT_DIRECTORY.iterdir():
            assert (site.directory / "checkpoints" / found / file.name).read_bytes() == file.read_bytes()
    assert checkpoints(site) == before | registered
    assert list((site.directory / "uploads").rglob("*.part")) == []
    with site.browser() as browser:
        for key in registered:
            browser.delete(f"/registry/checkpoints/{UUID(key)}").raise_for_status()
    assert not any((site.directory / "blobs").glob("?" * 64))


class Sender:
    """Requests with bodies that no client library would send, to the first web process."""

    def __init__(self, site: Site) -> None:
        url = urlsplit(site.urls[0])
        self._address = (url.hostname, url.port)

    def send(self, method: str, path: str, headers: Iterable[str], body: Iterable[bytes], *, is_closed: bool) -> int:
        """Return the status of the response; 0: the connection ended without one.

        Args:
            is_closed: Whether the client closes its side behind the body.
        """
        with socket.create_connection(self._address, timeout=20) as connection:
            head = "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", *headers, "", ""])
            connection.sendall(head.encode())
            with contextlib.suppress(ConnectionError):  # the server has refused the rest
                for piece in body:
                    connection.sendall(piece)
                if is_closed:
                    connection.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                first = connection.makefile("rb").readline().split()
                return int(first[1]) if first else 0
            return 0


def form(*parts: tuple[str, bytes]) -> bytes:
    """A multipart form; each part is its Content-Disposition and its content."""
    lines = [f"--b\r\nContent-Disposition: form-data; {name}\r\n\r\n".encode() + value for name, value in parts]
    return b"\r\n".join(lines) + b"\r\n--b--\r\n"


def chunks(piece: bytes, number: int) -> Iterable[bytes]:
    """A chunked body."""
    for _ in range(number):
        yield f"{len(piece):x}\r\n".encode() + piece + b"\r\n"
    yield b"0\r\n\r\n"


def peak_memory(pid: int) -> int:
    """The most bytes that a process has had since ``forget_peak``."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def forget_peak(pid: int) -> int:
    """Begin to measure the most bytes of a process; return what it has now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return peak_memory(pid)


PURPOSE = ('name="purpose"', b"batch")
FILE = ('name="file"; filename="in.jsonl"', b'{"custom_id": "a"}\n')
NAMES = (
    "../../etc/passwd", "..\\..\\x", "/etc/passwd", "a\x00b.jsonl", "a\u202egnp.jsonl", "\x1b[2J.jsonl", "n" * 2000,
    "..", "",
)  # fmt: skip


@pytest.mark.fault(
    "F54",
    provoked="files and pieces of models whose length is missing, too small, too large, negative, twice or no number; "
    "endless chunked bodies; 100,000 form fields; wrong digests and sizes; names with NUL, `../`, newlines, "
    "right-to-left marks and 2,000 characters",
    holds="each is refused with 4xx, or stored under a harmless name; nothing of a refused one is left; the web "
    "process takes at most 32 MiB more",
)
def test_f54_uploads_that_lie_are_refused_in_bounded_memory(site):
    pid = site.processes["web-0"].pid
    before, known = forget_peak(pid), set(published(site))
    send_wrong_forms(site)
    send_wrong_pieces(site)
    assert set(published(site)) == known
    assert written_files(site) == []
    send_wrong_names(site)
    assert peak_memory(pid) - before < 32 << 20


def send_wrong_forms(site: Site) -> None:
    """Files whose length or form is wrong."""
    sender, whole = Sender(site), form(PURPOSE, FILE)
    kind = "Content-Type: multipart/form-data; boundary=b"
    lengths = {
        "missing": ([], {400, 411}),
        "too small": ([f"Content-Length: {len(whole) // 2}"], {400}),
        "too large": ([f"Content-Length: {len(whole) + 1000}"], {0, 400, 408}),
        "negative": (["Content-Length: -5"], {400}),
        "no number": (["Content-Length: many"], {400}),
        "twice": ([f"Content-Length: {len(whole)}", "Content-Length: 3"], {400}),
        "a TiB": ([f"Content-Length: {1 << 40}"], {413}),
        "and chunked": ([f"Content-Length: {len(whole)}", "Transfer-Encoding: chunked"], {400}),
    }
    for what, (headers, statuses) in lengths.items():
        found = sender.send("POST", "/v1/files", [kind, *headers], [whole], is_closed=what == "too large")
        assert found in statuses, f"a length that is {what}: {found}"
    fields = form(PURPOSE, FILE, *((f'name="f{number}"', b"x") for number in range(100_000)))
    length = f"Content-Length: {len(fields)}"
    assert sender.send("POST", "/v1/files", [kind, length], [fields], is_closed=False) in {400, 413}


def send_wrong_pieces(site: Site) -> None:
    """Pieces of models that are no pieces, and digests, sizes and names that are wrong."""
    upload = Upload(site, "f54")
    url, headers = f"/registry/uploads/{upload.id}/files/0?offset=0", upload.headers()
    endless = [*headers, "Transfer-Encoding: chunked"]
    found = Sender(site).send("PUT", url, endless, chunks(b"x" * 65536, 1000), is_closed=False)
    assert found in {0, 413}, found
    for length in ("-1", "x", str(1 << 40)):
        found = Sender(site).send("PUT", url, [*headers, f"Content-Length: {length}"], [b"x" * 100], is_closed=False)
        assert found in {400, 413}, f"{length}: {found}"
    with site.browser() as browser:
        kind = {"Content-Type": "application/octet-stream"}
        for size, offset, status in ((CHUNK_BYTES + 1, 0, 413), (5000, 0, 413), (10, 7, 409), (10, -1, 400)):
            path = f"/registry/uploads/{upload.id}/files/0?offset={offset}"
            assert browser.put(path, content=b"x" * size, headers=kind).status_code == status, (size, offset)
        finished = browser.post(f"/registry/uploads/{upload.id}/finish")
        assert finished.status_code == 409, finished.text  # bytes are missing
        browser.delete(f"/registry/uploads/{upload.id}").raise_for_status()
        for declared in [
            *({"name": name, "size_bytes": 5} for name in NAMES),
            *({"name": "model.safetensors", "size_bytes": size} for size in (-1, 1 << 63, "x", 1.5)),
            *({"name": "model.safetensors", "size_bytes": 5, "sha256": sha} for sha in ("x", "0" * 63)),
        ]:
            body = {"served_model_name": "f54", "label": "f54", "files": [declared]}
            refused = browser.post("/registry/uploads", json=body)
            assert 400 <= refused.status_code < 500, (declared, refused.text)
    wrong = Upload(site, "f54-digest", digests={"config.json": "0" * 64})
    assert wrong.send() is None
    wrong.finish()
    assert "SHA-256" in wrong.wait("refused")["reason"]
    assert upload.left_behind() == wrong.left_behind() == []


def send_wrong_names(site: Site) -> None:
    """Files of the API with hostile names: they are refused, or shown without what could harm."""
    for name in NAMES:
        with httpx.Client(base_url=site.urls[0], timeout=20) as client:
            content = {"file": (name, FILE[1] + name.encode()[:50].hex().encode())}
            response = client.post("/v1/files", files=content, data={"purpose": "batch"})
            if response.status_code == 200:
                shown = response.json()["filename"]
                assert shown == shown.strip() and "/" not in shown and "\\" not in shown and len(shown) <= 255, shown
                assert shown.isprintable(), shown
                client.delete(f"/v1/files/{response.json()['id']}").raise_for_status()
            else:
                assert 400 <= response.status_code < 500, response.text
