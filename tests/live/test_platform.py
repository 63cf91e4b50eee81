"""The whole platform as processes: streams, cancels, killed workers, loads, drains, start and stop."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from blazr_site.settings.redis import runtime_dir
from inference.transport import keys as redis_keys
from tests.live.conftest import DEVICE, READY, ROOT, LiveServer, same_bits, token_ids, wait_until

pytestmark = pytest.mark.live
LONG = {"max_tokens": 400, "ignore_eos": True}


def test_ready_in_time_and_the_printed_command_works(server):
    assert float(READY.search(server.log())[1]) < 60  # three seconds where nothing else computes
    line = next(line.strip() for line in server.log().splitlines() if line.strip().startswith("curl -N"))
    done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=30)
    assert done.stdout.rstrip().endswith("data: [DONE]")
    assert "user admin, password" in server.log()
    assert httpx.get(f"{server.url}/readyz").json() == {"status": "ok"}


def test_web_process_is_small_and_without_torch(server):
    pid = server.pid_of("blazr_site.web")
    server.complete()
    status = Path(f"/proc/{pid}/status").read_text()
    resident = int(status.split("VmRSS:")[1].split()[0]) * 1024
    assert resident < 200 << 20
    assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()


def test_streamed_text_is_the_whole_text(server):
    whole = server.complete(max_tokens=64).json()["choices"][0]["text"]
    text, chunks = server.stream(max_tokens=64)
    assert text == whole
    assert chunks[-1]["choices"][0]["finish_reason"] in ("length", "stop")


@same_bits
def test_concurrent_streams_equal_their_lone_runs(server):
    prompts = [f"The {word}" for word in ("statement", "class", "function", "value", "name", "loop", "module", "list")]
    alone = [server.complete(prompt=prompt, max_tokens=32).json()["choices"][0]["text"] for prompt in prompts]
    together = [""] * len(prompts)

    def run(number: int) -> None:
        together[number] = server.stream(prompt=prompts[number], max_tokens=32)[0]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert together == alone


def test_disconnect_frees_the_slot(server):
    class Enough(Exception):
        pass

    def leave(number: int) -> None:
        if number == 5:
            raise Enough

    def num_whole() -> float:
        lines = httpx.get(f"{server.url}/metrics", timeout=30).text.splitlines()
        whole = (line for line in lines if line.startswith("blazr_requests_total{") and 'outcome="completed"' in line)
        return sum(float(line.rpartition(" ")[2]) for line in whole)

    before = num_whole()
    with pytest.raises(Enough):  # all choices take half a minute
        server.stream(leave, max_tokens=900, ignore_eos=True, n=128)
    left_at = time.time()
    wait_until(lambda: server.is_idle_since(left_at), 60, "the end of the request")
    assert num_whole() == before, "it was computed to its end"
    assert server.model().status == "ready"


@same_bits
def test_killed_worker_goes_on_without_gap_or_repetition(server):
    """Four streams, greedy and sampled; kill -9 of the worker in the middle; the texts are the undisturbed ones."""
    bodies = [
        {"prompt": "The statement", **LONG},
        {"prompt": "A class", **LONG},
        {"prompt": "The value", "temperature": 0.9, "seed": 7, **LONG},
        {"prompt": "A name", "temperature": 0.7, "seed": 8, "top_p": 0.9, **LONG},
    ]
    undisturbed = [server.stream(**body) for body in bodies]
    victim = server.pid_of("celery -q -A blazr_site.celery worker")
    results: list[tuple[str, list] | None] = [None] * len(bodies)
    killed = threading.Event()

    def kill(number: int) -> None:
        if number == 40 and not killed.is_set():
            killed.set()
            os.kill(victim, signal.SIGKILL)

    def run(number: int) -> None:
        results[number] = server.stream(kill, **bodies[number])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
        assert not thread.is_alive(), "a stream hangs"
    assert killed.is_set()
    for result, (text, chunks) in zip(results, undisturbed, strict=True):
        assert result is not None
        assert result[0] == text
        assert token_ids(result[1]) == token_ids(chunks)
    # Where this process was slow, the streams were through before the kill: then the next worker comes after them.
    wait_until(lambda: set(server.pids_of("celery -q -A blazr_site.celery worker")) - {victim}, 60, "the next worker")
    wait_until(lambda: server.client.hlen(redis_keys.MESSAGES) == 0, 60, "the last acknowledgement")


def test_worker_that_is_asked_to_stop_finishes_its_requests(server):
    text, _ = server.stream(**LONG)
    victim = server.pid_of("celery -q -A blazr_site.celery worker")

    def stop(number: int) -> None:
        if number == 20:
            os.kill(victim, signal.SIGTERM)

    assert server.stream(stop, **LONG)[0] == text
    wait_until(lambda: not Path(f"/proc/{victim}").exists(), 60, "the worker's end")
    wait_until(lambda: server.model().status == "ready", 60, "the next worker's start")


def test_load_error_reaches_the_request_and_a_later_one_tries_again(server, tmp_path):
    import shutil

    from inference.demo.paths import PREBUILT_DIRECTORY

    copy = tmp_path / "copy"
    shutil.copytree(PREBUILT_DIRECTORY, copy)
    server.register(copy, "copy")
    weights = next(copy.glob("*.safetensors"))
    content = weights.read_bytes()
    weights.write_bytes(content[:-100])
    answer = wait_until(lambda: (r := server.complete(model="copy")).status_code != 404 and r)
    assert answer.status_code >= 400
    assert weights.name in answer.json()["error"]["message"]
    assert server.complete().status_code == 200
    weights.write_bytes(content)
    server.manage(f"from models_registry.services import checkpoint_register; checkpoint_register(path={str(copy)!r})")
    wait_until(lambda: server.complete(model="copy").status_code == 200)
    # The answer may be here before the worker's next word on what it holds.
    wait_until(lambda: server.model("copy").status == "ready")


def test_unloaded_model_loads_again_with_the_next_request(server):
    unload = "from inference.transport.control import request_unload_sync; request_unload_sync({!r})"
    server.manage(unload.format(server.checkpoint_id("demo")))
    wait_until(lambda: server.model().status == "unloaded", 60, "the unload")
    assert server.complete().status_code == 200
    wait_until(lambda: server.model().status == "ready", 60, "the heartbeat that says so")


def test_queued_job_is_done(server):
    body = {"endpoint": "completion", "body": {"model": "demo", "prompt": "The", "max_tokens": 8, "temperature": 0}}
    made = httpx.post(f"{server.url}/api/jobs", json=body, timeout=10)
    assert made.status_code in (200, 201, 202), made.text
    job = made.json()
    job_id = job.get("id") or job["data"][0]["id"]
    wait_until(lambda: httpx.get(f"{server.url}/api/jobs/{job_id}").json()["state"] == "succeeded", 60, "the job's end")


def test_pages_and_static_files_are_served(server):
    assert httpx.get(f"{server.url}/login/").status_code == 200
    style = httpx.get(f"{server.url}/static/admin/css/base.css")
    assert style.status_code == 200
    assert style.headers["cache-control"] == "no-cache"
    again = httpx.get(style.url, headers={"If-Modified-Since": style.headers["last-modified"]})
    assert again.status_code == 304
    assert httpx.get(f"{server.url}/static/../settings/base.py").status_code in (400, 404)
    page = httpx.get(f"{server.url}/login/")
    assert "script-src 'self'" in page.headers["content-security-policy"]


def test_only_the_declared_port_listens_and_secrets_are_private(server):
    port = int(server.url.rpartition(":")[2])
    pids = {server.process.pid, *server._children()}
    inodes = set()
    for pid in pids:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = str(fd.readlink())
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    listening = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                listening.add((table, fields[1].split(":")[0], int(fields[1].split(":")[1], 16)))
    assert listening == {("tcp", "0100007F", port)}
    for name in ("secret_key", "admin_password"):
        assert (server.data_dir / name).stat().st_mode & 0o077 == 0
    assert runtime_dir(server.data_dir).stat().st_mode & 0o777 == 0o700


def test_second_server_on_the_same_data_is_refused(server):
    done = _serve("--port", "0", "--data-dir", str(server.data_dir))
    assert done.returncode == 2
    assert done.stderr.startswith("error: another blazr serve runs on the data directory")


def test_taken_port_is_refused_at_once(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = _serve("--port", str(taken.getsockname()[1]), "--data-dir", str(tmp_path / "d"))
    assert done.returncode == 2
    assert "can't be listened on" in done.stderr


def test_wrong_model_is_refused_at_once(tmp_path):
    (tmp_path / "empty").mkdir()
    for model in (str(tmp_path / "empty"), str(tmp_path / "none"), "no such thing"):
        done = _serve("--port", "0", "--data-dir", str(tmp_path / "d"), "--model", model)
        assert done.returncode == 2, done.stdout + done.stderr
        assert done.stderr.count("\n") == 1
    done = _serve("--port", "eighty", "--data-dir", str(tmp_path / "d"))
    assert (done.returncode, done.stderr.startswith("error: --port is 'eighty'")) == (2, True)


def _serve(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "blazr_site.cli", "serve", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_stop_finishes_open_streams_and_leaves_nothing_behind(tmp_path):
    found = LiveServer(tmp_path / "data", *DEVICE, begins_empty=True, BLAZR_HOST="127.0.0.1")
    try:
        found.wait_ready()
        children = found._children()
        text, _ = found.stream(**LONG)

        def stop(number: int) -> None:
            if number == 20:
                found.process.send_signal(signal.SIGTERM)

        assert found.stream(stop, **LONG)[0] == text
        assert found.process.wait(60) == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in children)
        assert not runtime_dir(found.data_dir).exists()
    finally:
        if found.process.poll() is None:
            os.killpg(found.process.pid, signal.SIGKILL)
