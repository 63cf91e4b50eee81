"""python -m bench.batches: what batches add to the bare engine's time, and what kills of the worker do to them.

``overhead``: short lines through POST /v1/files and /v1/batches of a running ``blazr serve``, from the creation to the
end, against the same prompts handed to an engine of the same size in one process, prompts tokenised beforehand. Prints
both times, and the processor time that a line took of each process; rounds alternate.

``kills``: a batch whose worker is killed (SIGKILL) again and again, at random moments once it has got on. Counts
custom_ids that are missing or twice, lines that were run again although they were done, and lines set aside.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sqlite3
import statistics
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from bench.http_path import Site, serve
from bench.weights import SHAPES, make_llama

POLL_S = 0.5
HTTP = httpx.Client(timeout=60)
"""One for all: a client for each look would read its certificates beside what is measured."""
NUM_THREADS = 2
PROMPT_TOKENS = 8
MAX_TOKEN_ID = 500
"""Every model has so many."""
KILL_PAUSE_S = (0.1, 1.5)


def batch_lines(count: int, model: str, tokens: int) -> list[dict[str, Any]]:
    """Short requests of equal length."""
    return [
        {
            "custom_id": f"r{number}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {
                "model": model,
                "prompt": [1 + (number * 7 + place * 31) % MAX_TOKEN_ID for place in range(PROMPT_TOKENS)],
                "max_tokens": tokens,
                "ignore_eos": True,
                "temperature": 0.8,
            },
        }
        for number in range(count)
    ]


def model_name(site: Site) -> str:
    return str(HTTP.get(f"{site.url}/v1/models").raise_for_status().json()["data"][0]["id"])


def start(url: str, lines: list[dict[str, Any]]) -> str:
    """Upload the lines and make a batch of them; returns its id."""
    content = "\n".join(json.dumps(line) for line in lines).encode()
    form: dict[str, Any] = {"files": {"file": ("in.jsonl", content)}, "data": {"purpose": "batch"}}
    file = HTTP.post(f"{url}/v1/files", **form).raise_for_status().json()["id"]
    body = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
    return str(HTTP.post(f"{url}/v1/batches", json=body).raise_for_status().json()["id"])


def look(url: str, batch_id: str) -> dict[str, Any]:
    """The batch; asked again while the server is busy starting a worker."""
    batch: dict[str, Any] = HTTP.get(f"{url}/v1/batches/{batch_id}").raise_for_status().json()
    return batch


def wait(url: str, batch_id: str) -> dict[str, Any]:
    while True:
        found = look(url, batch_id)
        if found["status"] in ("completed", "failed", "expired", "cancelled"):
            return found
        time.sleep(POLL_S)


# --- overhead ----------------------------------------------------------------------------------


def bare_seconds(directory: Path, lines: list[dict[str, Any]], max_num_seqs: int) -> tuple[float, float]:
    """The engine alone, driven as the worker drives it: everything is prepared, then all of it is computed.

    Returns:
        Seconds, and of processor time.
    """
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "blazr_site.settings")
    import django

    django.setup()
    from inference.batches.line_requests import line_request
    from inference.engine.loop import EngineLoop
    from inference.llm.llm import LLM
    from inference.llm.options import LLMOptions
    from models_registry.detection.inspection import inspect_checkpoint

    found = inspect_checkpoint(directory)
    options = LLMOptions(max_num_seqs=max_num_seqs, dtype="float32", num_threads=NUM_THREADS)
    llm = LLM.load(found.spec, found.tokenizer, found.weight_paths, options)
    prepared: list[Any] = []
    for line in lines:
        plan = line_request(line["url"], line["body"], key=line["custom_id"]).plan
        message = plan.message(0, request_id=line["custom_id"], web_id="", checkpoint_id="", deadline=2e9)
        prepared.append(llm.prepare(message))
    # As many as a worker holds: the queue in the engine is never empty, and never long.
    slots = threading.Semaphore(2 * max_num_seqs)
    ended = threading.Semaphore(0)

    def publish(events: Any) -> None:
        for event in events:
            if event["type"] in ("done", "error"):
                slots.release()
                ended.release()

    loop: EngineLoop[Any, Any] = EngineLoop(llm, publish, on_refused=print, on_dead=print, name="bare")
    loop.start()
    started, used = time.monotonic(), time.process_time()
    for item in prepared:
        slots.acquire()
        loop.submit(item)
    for _ in prepared:
        ended.acquire()
    seconds, used = time.monotonic() - started, time.process_time() - used
    loop.stop(drain=False, timeout_s=5)
    llm.close()
    return seconds, used


def overhead(site: Site, directory: Path, given: argparse.Namespace) -> None:
    lines = batch_lines(given.lines, model_name(site), given.tokens)
    wait(site.url, start(site.url, lines[:64]))
    bare, served = [], []
    for number in range(given.rounds):
        alone_s, alone_used_s = _in_child(directory, given)
        bare.append(alone_s)
        begun, before = time.monotonic(), site.seconds()
        done = wait(site.url, start(site.url, lines))
        served.append(time.monotonic() - begun)
        used = {name: seconds - before[name] for name, seconds in site.seconds().items()}
        assert done["request_counts"]["completed"] == given.lines, done
        running = done["completed_at"] - done["in_progress_at"]
        print(f"round {number + 1}: bare {bare[-1]:.2f} s, batch {served[-1]:.2f} s (of which running {running} s)")
        each = {"bare": alone_used_s, **used}
        print("  ms of processor time a line:", {name: round(1e3 * s / given.lines, 3) for name, s in each.items()})
    one, other = statistics.median(bare), statistics.median(served)
    print(
        f"{given.lines} lines of {given.tokens} tokens: bare {one:.2f} s, batch {other:.2f} s, {other / one - 1:+.1%}"
    )


def _in_child(directory: Path, given: argparse.Namespace) -> tuple[float, float]:
    """``bare_seconds`` in a process of its own, as the worker is one."""
    import subprocess
    import sys

    command = [sys.executable, "-m", "bench.batches", "bare", "--directory", str(directory)]
    command += ["--lines", str(given.lines), "--tokens", str(given.tokens)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, used = done.stdout.strip().splitlines()[-1].split()
    return float(seconds), float(used)


# --- kills -------------------------------------------------------------------------------------


def results(data: Path) -> dict[int, str]:
    """What has been written of finished lines, by line."""
    with sqlite3.connect(data / "db.sqlite3", timeout=20) as database:
        return dict(database.execute("select line_id, payload from inference_batchresult").fetchall())


def num_results(data: Path) -> int:
    with sqlite3.connect(data / "db.sqlite3", timeout=20) as database:
        return int(database.execute("select count(*) from inference_batchresult").fetchone()[0])


def worker_pid(supervisor: int) -> int | None:
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    for child in children:
        try:
            command = Path(f"/proc/{child}/cmdline").read_bytes()
        except OSError:
            continue
        if b"celery\0-q\0-A\0blazr_site.celery\0worker" in command:
            return int(child)
    return None


def kills(site: Site, given: argparse.Namespace) -> None:
    lines = batch_lines(given.lines, model_name(site), given.tokens)
    batch_id = start(site.url, lines)
    dice = random.Random(given.seed)
    done_before: dict[int, str] = {}
    changed = number = 0
    while number < given.kills:
        if num_results(site.data) <= len(done_before):
            if look(site.url, batch_id)["status"] == "completed":
                break
            time.sleep(0.1)
            continue
        time.sleep(dice.uniform(*KILL_PAUSE_S))
        found = results(site.data)
        changed += sum(found.get(key) != value for key, value in done_before.items())
        done_before = found
        victim = worker_pid(site.supervisor)
        if victim is not None:
            os.kill(victim, signal.SIGKILL)
            number += 1
    done = wait(site.url, batch_id)
    found = results(site.data)
    changed += sum(found.get(key) != value for key, value in done_before.items())
    ids: Counter[str] = Counter()
    for kind in ("output_file_id", "error_file_id"):
        if done[kind]:
            text = HTTP.get(f"{site.url}/v1/files/{done[kind]}/content").raise_for_status().text
            ids.update(json.loads(line)["custom_id"] for line in text.splitlines())
    missing = sum(line["custom_id"] not in ids for line in lines)
    print(
        f"{number} kills, {given.lines} lines: {done['status']}, {missing} missing, "
        f"{sum(count > 1 for count in ids.values())} twice, {changed} finished lines changed, "
        f"{done['request_counts']['failed']} set aside, {done['usage']['output_tokens']} tokens charged "
        f"({given.lines * given.tokens} expected)"
    )


def main() -> None:
    from inference.demo.paths import PREBUILT_DIRECTORY

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("overhead", "kills", "bare"))
    parser.add_argument("--directory", type=Path, default=PREBUILT_DIRECTORY, help="checkpoint (default: the demo)")
    parser.add_argument("--shape", choices=sorted(SHAPES), help="random weights of this shape in place of it")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "blazr-bench")
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=16, help="generated per line")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.shape:
        given.directory = make_llama(SHAPES[given.shape], given.cache)
    if given.what == "bare":
        print(*bare_seconds(given.directory, batch_lines(given.lines, "bare", given.tokens), 64))
        return
    os.environ["BLAZR_NUM_THREADS"] = str(NUM_THREADS)
    with serve(given.directory, dtype="float32") as site:
        if given.what == "overhead":
            overhead(site, given.directory, given)
        else:
            kills(site, given)


if __name__ == "__main__":
    main()
