"""Saved states on a full disk, under `kill -9`, and while their model and their rows change."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import threading
import time
from pathlib import Path

import httpx
import pytest

from inference.demo.paths import PREBUILT_DIRECTORY
from inference.llm.state_header import read_state_header
from tests.faults.records import written_files
from tests.faults.site import Site, answers, wait_until

pytestmark = pytest.mark.live

PROMPT = [40 + number % 60 for number in range(600)]
FILE_LIMIT = 64 << 10
"""Bytes of a file that a full disk takes: less than a state of the demo model has."""
UPLOAD_BYTES = 24 << 20
"""Django keeps a body of this size on disk while it arrives."""
MODEL = "select id from models_registry_checkpoint where served_model_name = ?"


def save(site: Site, name: str, web: int = 0, **members: object) -> httpx.Response:
    body = {"name": name, "model": "demo", "prompt": PROMPT, **members}
    return httpx.post(f"{site.urls[web]}/v1/states", json=body, timeout=110)


def state(site: Site, name: str) -> httpx.Response:
    return httpx.get(f"{site.urls[-1]}/v1/states/{name}", timeout=20)


def complete(site: Site, **members: object) -> httpx.Response:
    body = {"model": "demo", "max_tokens": 8, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **members}
    return httpx.post(f"{site.urls[-1]}/v1/completions", json=body, timeout=60)


def tokens(response: httpx.Response) -> list[int]:
    assert response.status_code == 200, response.text
    found: list[int] = response.json()["choices"][0]["token_ids"]
    return found


def published(site: Site) -> set[str]:
    """The files of the API that have a name; each is whole."""
    found = [path for path in (site.directory / "files").iterdir() if len(path.name) == 64]
    for path in found:
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    return {path.name for path in found}


def named(site: Site) -> list[str]:
    """The digests that rows of states name."""
    query = "select sha256 from inference_storedfile f join inference_storedstate s on s.file_id = f.id"
    return [row[0] for row in site.rows(query)]


def large_file(site: Site, directory: Path) -> Path:
    """A whole state of the demo model, with more bytes behind it than its model takes."""
    content = httpx.get(f"{site.urls[0]}/v1/states/whole/content", timeout=20).raise_for_status().content
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    end = max(info["data_offsets"][1] for name, info in header.items() if name != "__metadata__")
    (last,) = (name for name, info in header.items() if name != "__metadata__" and info["data_offsets"][1] == end)
    begin = header[last]["data_offsets"][0]
    header[last] |= {"shape": [end + UPLOAD_BYTES - begin], "data_offsets": [begin, end + UPLOAD_BYTES]}
    text = json.dumps(header).encode()
    path = directory / "large.state"
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :] + bytes(UPLOAD_BYTES))
    return path


@pytest.mark.fault(
    "F70",
    provoked="the disk takes no more bytes when workers store a state, and when a web process receives one",
    holds="507 with the reason; no row and no byte is left; other requests go on; with space the same requests succeed",
)
def test_f70_a_full_disk_under_a_state(database_site, tmp_path):
    site = database_site
    assert save(site, "whole").status_code == 200
    content = httpx.get(f"{site.urls[0]}/v1/states/whole/content", timeout=20).content
    upload = tmp_path / "large.state"
    upload.write_bytes(content + bytes(UPLOAD_BYTES))
    before = published(site)
    for worker_id in site.workers:
        with site.file_limit(worker_id, size_bytes=FILE_LIMIT):
            others = [name for name in site.workers if name != worker_id]
            with site.stopped(others[0]):
                refused = save(site, "full", prompt=[*PROMPT, 50])
                assert refused.status_code == 507 and "no room" in refused.json()["error"]["message"], refused.text
                assert tokens(complete(site, prompt=[40, 50]))
    with site.file_limit("web-0", size_bytes=4 << 20), upload.open("rb") as file:
        refused = httpx.post(f"{site.urls[0]}/v1/states/full/content", files={"file": file}, timeout=60)
    assert refused.status_code == 507 and "no room" in refused.json()["error"]["message"], refused.text
    assert state(site, "full").status_code == 404
    assert published(site) == before and written_files(site) == []
    assert save(site, "full", prompt=[*PROMPT, 50]).status_code == 200


@pytest.mark.fault(
    "F71",
    provoked="`kill -9` of both workers before and behind the naming of a state's file, and of a web process in the "
    "middle of an upload of 24 MiB",
    holds="the request that saves goes on in the next worker and its state is stored once; an upload that was cut "
    "leaves no row and no named file; the same upload then succeeds",
)
@pytest.mark.parametrize("point", ["file.publish", "file.published"])
def test_f71_kills_under_a_state(site, tmp_path, point):
    assert save(site, "whole").status_code == 200
    for worker_id in site.workers:
        process = site.processes[worker_id]
        site.arm(worker_id, f"{point}:kill:1")
        site.signal(worker_id, signal.SIGKILL)
        wait_until(lambda worker_id=worker_id, old=process: site.processes[worker_id] is not old, 20, "a restart")
    wait_until(lambda: len(site.ready_workers()) == 2, 120, "the load of the model by both workers")
    expected = tokens(complete(site, prompt=[*PROMPT, 41]))
    site.deaths.clear()
    saved = save(site, "killed")
    assert saved.status_code == 200, saved.text
    assert site.deaths, "the point was reached"
    assert saved.json()["tokens"] == len(PROMPT)
    assert tokens(complete(site, state="killed", prompt=[41])) == expected
    assert len(named(site)) == 2 and set(named(site)) <= published(site)
    large = large_file(site, tmp_path)
    assert read_state_header(large).num_tokens == len(PROMPT)
    cut_upload(site, large)
    assert state(site, "large").status_code == 404 and written_files(site) == [] and len(named(site)) == 2
    with large.open("rb") as file:
        again = httpx.post(f"{site.urls[0]}/v1/states/large/content", files={"file": file}, timeout=60)
    assert again.status_code == 200, again.text
    refused = complete(site, state="large", prompt=[41])
    assert refused.status_code == 400, "it isn't what its model has"


def cut_upload(site: Site, path: Path) -> None:
    """Kill the web process when half of a form has come."""
    process = site.processes["web-0"]

    def pieces():
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        with path.open("rb") as file:
            yield file.read(UPLOAD_BYTES // 2)
            site.signal("web-0", signal.SIGKILL)
            yield file.read()
        yield b"\r\n--b--\r\n"

    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    with pytest.raises(httpx.HTTPError):
        httpx.post(f"{site.urls[0]}/v1/states/large/content", content=pieces(), headers=headers, timeout=30)
    wait_until(lambda: site.processes["web-0"] is not process, 10, "the restart of web-0")
    wait_until(lambda: answers(site.urls[0]), 60, "the start of web-0")


@pytest.mark.fault(
    "F72",
    provoked="a state whose model is registered again, whose row expires and is swept while a stream goes on from it, "
    "and which is replaced under another stream",
    holds="the same weights under another registration go on from it; streams end with the tokens that they had "
    "without the change; later requests get 404",
)
def test_f72_states_whose_model_or_row_changes(site, tmp_path):
    copied = shutil.copytree(PREBUILT_DIRECTORY, tmp_path / "again")
    saved = save(site, "old")
    assert saved.status_code == 200, saved.text
    expected = tokens(complete(site, state="old", prompt=[41], max_tokens=300))
    with site.browser() as browser:
        register = (
            "from pathlib import Path\n"
            "from models_registry.services import checkpoint_register\n"
            f"checkpoint_register(path=Path({str(copied)!r}), served_model_name='again')"
        )
        made = site.manage("shell", "--no-imports", "-c", register)
        assert made.returncode == 0, made.stderr
        ((key,),) = site.rows(MODEL, "again")
        assert tokens(complete(site, model="again", state="old", prompt=[41])) == expected[:8]
        deleted = f"{key[:8]}-{key[8:12]}-{key[12:16]}-{key[16:20]}-{key[20:]}"
        browser.delete(f"/registry/checkpoints/{deleted}").raise_for_status()
    for change in (expire, replace):
        assert stream_beside(site, lambda change=change: change(site)) == expected
    assert state(site, "old").status_code == 200, "it was replaced by another one"
    expire(site)
    assert state(site, "old").status_code == 404
    gone = complete(site, state="old", prompt=[41])
    assert gone.status_code == 404 and gone.json()["error"]["param"] == "state"


def expire(site: Site) -> None:
    """Let all states expire, and sweep them."""
    site.rows("update inference_storedfile set expires_at = '2020-01-01 00:00:00+00:00' where purpose = 'state'")
    swept = site.manage("shell", "--no-imports", "-c", "from inference.files.services import *; files_sweep()")
    assert swept.returncode == 0, swept.stderr
    assert named(site) == []


def replace(site: Site) -> None:
    assert save(site, "old", prompt=[*PROMPT, 50], replace=True).status_code == 200


def stream_beside(site: Site, change) -> list[int]:
    """The tokens of a stream from the state, which ``change`` meets in its middle."""
    if state(site, "old").status_code == 404:
        assert save(site, "old").status_code == 200
    body = {"model": "demo", "state": "old", "prompt": [41], "max_tokens": 300, "temperature": 0, "ignore_eos": True}
    found: list[int] = []
    changing = threading.Thread(target=change)
    url = f"{site.urls[0]}/v1/completions"
    with httpx.stream("POST", url, json={**body, "stream": True, "return_token_ids": True}, timeout=110) as response:
        assert response.status_code == 200, (change, response.read())
        for line in response.iter_lines():
            if line.startswith("data: {"):
                found += json.loads(line[6:])["choices"][0].get("token_ids") or []
                if len(found) > 20 and changing.ident is None:
                    changing.start()
                    time.sleep(0.1)
    changing.join(110)
    return found
