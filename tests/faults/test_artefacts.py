"""The corpus of hostile artefacts through the intake: every case has its verdict, and costs what it may."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from inference.errors import BlazrError, CheckpointError, ChecksumMismatch, EngineError
from inference.text.tokenisation.chat_template import RENDER_CPU_S, RENDER_MEMORY_BYTES
from inference.text.tokenisation.sandbox import Sandbox, SandboxFailure
from inference.text.tokenisation.tokenizer import load_tokenizer
from inference.values.tokenizer_spec import TokenizerSpec
from inference.worker.load_plan import plan_load
from models_registry.detection.child import inspect_in_child
from models_registry.detection.inspection import inspect_checkpoint
from models_registry.models import Checkpoint
from models_registry.services import checkpoint_register
from tests.faults.artefacts import archives, configs, ggjt_files, gguf_files, headers, pickles, quantised, tokenizers
from tests.faults.artefacts.archives import OUTSIDE
from tests.faults.artefacts.case import Case, write_llama
from tests.faults.artefacts.intake import Intake
from tests.faults.artefacts.pickles import CANARY
from tests.faults.artefacts.templates import BOMBS, ESCAPES, MARK
from tests.faults.artefacts.tokenizers import PROBE, ROWS, tokenizer_cases

ALL_CASES = (
    headers.CASES, gguf_files.CASES, ggjt_files.CASES, configs.CASES, quantised.CASES, tokenizers.CASES, pickles.CASES,
    archives.CASES,
)  # fmt: skip
MAX_BYTES = 64 << 20
MAX_MESSAGE_CHARS = 1000
NUM_TRIES = 3
"""Measurements of a case until it is quick enough: beside other programs the same instructions take longer."""


@pytest.fixture(scope="module")
def intake() -> Iterator[Intake]:
    found = Intake()
    yield found
    found.close()


@pytest.fixture
def directory(tmp_path: Path) -> Callable[[], Path]:
    """Makes an empty directory for a case; the one before it goes."""

    def make() -> Path:
        place = tmp_path / "case"
        for path in (place, tmp_path / "case-blobs"):
            shutil.rmtree(path, ignore_errors=True)
        place.mkdir()
        return place

    return make


def problem_of(case: Case, error: Exception | None) -> str | None:
    """What is wrong with a verdict; None: nothing."""
    if error is None:
        return None if case.refusal is None else f"{case.name}: accepted"
    if not isinstance(error, BlazrError) or isinstance(error, EngineError):
        return f"{case.name}: {type(error).__name__}: {error}"
    message = error.message
    if case.refusal is None or not re.search(case.refusal, message) or error.http_status != 422:
        return f"{case.name}: refused: {message[:300]}"
    if len(message) > MAX_MESSAGE_CHARS or not message.isprintable():
        return f"{case.name}: a message of {len(message)} characters: {message[:300]!r}"
    return None


def check(cases: Iterable[Case], intake: Intake, directory: Callable[[], Path], *, max_cpu_s: float) -> None:
    """Register each case; a refused one leaves no row, and none costs more than it may."""
    place = directory()
    write_llama(place)
    intake.inspect(place)
    baseline = intake.cost.peak_bytes
    problems = []
    for case in cases:
        place = directory()
        case.make(place)
        error: Exception | None = None
        try:
            checkpoint_register(path=place / case.target, inspect=intake.inspect)
        except Exception as caught:
            error = caught
        problems.append(problem_of(case, error))
        cost = intake.cost
        for _ in range(NUM_TRIES - 1):
            if cost.cpu_s <= max_cpu_s:
                break
            with contextlib.suppress(BlazrError):
                intake.inspect(place / case.target)
            cost = intake.cost
        if cost.status != 0 or cost.cpu_s > max_cpu_s or cost.peak_bytes - baseline > MAX_BYTES:
            problems.append(f"{case.name}: {cost}, baseline {baseline}")
        if Checkpoint.objects.exists() == (error is not None):
            problems.append(f"{case.name}: rows {list(Checkpoint.objects.all())}")
        Checkpoint.objects.all().delete()
    assert list(filter(None, problems)) == []


@pytest.mark.fault(
    "F46",
    provoked="113 safetensors, 36 GGUF and 49 ggjt headers: every length, offset, shape, dtype, name and member "
    "that breaks the format",
    holds="each is refused by a message that names the file, within 1 s (ggjt: 100 ms) and 64 MiB; harmless "
    "oddities are accepted",
)
def test_f46_headers(db, intake, directory):
    check([*headers.CASES, *gguf_files.CASES], intake, directory, max_cpu_s=1.0)
    check(ggjt_files.CASES, intake, directory, max_cpu_s=0.1)


@pytest.mark.fault(
    "F48",
    provoked="180 config.json and index files: sizes, types, depths, code to import, paths, contradictions",
    holds="each is refused within 64 MiB by a message that names the key, or accepted where nothing depends on it; "
    "nothing is imported",
)
def test_f48_configs(db, intake, directory):
    check(configs.CASES, intake, directory, max_cpu_s=1.0)


def test_quantised_checkpoints(db, intake, directory):
    check(quantised.CASES, intake, directory, max_cpu_s=1.0)


@pytest.mark.fault(
    "F49",
    provoked="78 tokenizers: catastrophic patterns, expanding normalisers and decoders, 20,000 control tokens, "
    "wrong types",
    holds="the file is refused, or the request fails within its limit; the process that loads it goes on",
)
def test_f49_tokenizers(db, intake, directory):
    check(tokenizers.CASES, intake, directory, max_cpu_s=1.0)
    problems = []
    for case in tokenizer_cases():
        path = directory() / "tokenizer.json"
        path.write_bytes(case.content)
        outcome, message, began = "works", "", time.process_time()
        try:
            tokenizer = load_tokenizer(TokenizerSpec("huggingface", ROWS, path=str(path)))
        except CheckpointError as error:
            outcome, message = "load", error.message
        else:
            try:
                for token_id in tokenizer.encode(PROBE):
                    tokenizer.token_bytes(token_id)
            except BlazrError as error:
                outcome, message = "request", error.message
            tokenizer.close()
        if outcome != case.outcome or not re.search(case.message, message) or len(message) > MAX_MESSAGE_CHARS:
            problems.append(f"{case.name}: {outcome} {message[:300]}")
        if time.process_time() - began > 1.0:  # ours, not the child's
            problems.append(f"{case.name}: {time.process_time() - began:.1f} s in this process")
    assert problems == []


@pytest.mark.fault(
    "F50",
    provoked="pickles of 41 kinds under 13 names, named model.safetensors, and beside harmless weights",
    holds="each is refused by its name or its content; the file that an opened pickle would make is never made",
)
def test_f50_pickles(db, intake, directory):
    check(pickles.CASES, intake, directory, max_cpu_s=1.0)
    for case in pickles.CASES:  # again without confinement, which would hide a pickle that was opened
        place = directory()
        case.make(place)
        if case.refusal is None:
            inspect_checkpoint(place / case.target)
        else:
            with pytest.raises(CheckpointError):
                inspect_checkpoint(place / case.target)
        assert not (place / CANARY).exists(), case.name


@pytest.mark.fault(
    "F51",
    provoked="25 archives (parents, links, devices, bombs) alone, renamed, beside weights; links, pipes and devices "
    "as files",
    holds="archives are refused or ignored, and nothing is unpacked; what is no regular file is refused",
)
def test_f51_archives(db, intake, directory, tmp_path):
    check(archives.CASES, intake, directory, max_cpu_s=1.0)
    assert {path.name for path in tmp_path.iterdir()} <= {"case", "case-blobs"}
    assert not Path("/tmp", OUTSIDE).exists()


def swap_by_rename(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes()[::-1])
    other.replace(path)


def swap_by_link(path: Path) -> None:
    other = path.with_name("other")
    shutil.copy(path, other)
    path.unlink()
    path.symlink_to(other)


def edit(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x7f")


def edit_and_hide(path: Path) -> None:
    """The size and the times that a program can set are as before."""
    status = path.stat()
    edit(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


SWAPS = (swap_by_rename, swap_by_link, edit, edit_and_hide, Path.unlink)


@pytest.mark.fault(
    "F52",
    provoked="files exchanged, linked elsewhere, edited in place, with their old times or not: before a load, or "
    "during it",
    holds="the load is refused by name, 100 times of 100",
)
def test_f52_exchanged_files(transactional_db, directory):
    for number in range(100):
        place = directory()
        write_llama(place)
        row = checkpoint_register(path=place)
        name = ("model.safetensors", "config.json")[number // len(SWAPS) % 2]
        swap, is_during = SWAPS[number % len(SWAPS)], number % 20 < 10
        plan = plan_load(str(row.pk), device="cpu")
        waiting = [swap]

        def report(share: float, what: str, place: Path = place, waiting: list = waiting, name: str = name) -> None:
            if waiting:
                waiting.pop()(place / name)

        if not is_during:
            report(0.0, "")
        with pytest.raises(ChecksumMismatch, match=re.escape(name)):
            plan.load(report)
        assert not waiting, "the load did not begin"
        row.delete()


NUM_BEFORE = 200
"""Renderings of the neighbour before the first hostile one."""
SLACK_S = 2e-4


@pytest.fixture
def neighbour() -> Iterator[list[float]]:
    """Seconds of another model's renderings, one each 10 ms, as long as the test runs."""
    times: list[float] = []
    ended, sandbox = threading.Event(), Sandbox("template", memory_bytes=RENDER_MEMORY_BYTES)
    sandbox.call({"source": "{{ messages[0].content }}"}, cpu_s=RENDER_CPU_S)

    def render() -> None:
        while not ended.wait(0.01):
            began = time.perf_counter()
            call = {"variables": {"messages": [{"role": "user", "content": "hi"}]}, "max_chars": 4096}
            assert sandbox.call(call, cpu_s=RENDER_CPU_S)["text"] == "hi"
            times.append(time.perf_counter() - began)

    thread = threading.Thread(target=render)
    thread.start()
    yield times
    ended.set()
    thread.join()
    sandbox.close()


@pytest.mark.fault(
    "F53",
    provoked="144 templates that reach for objects of the interpreter, 28 that use up time, memory or the output",
    holds="nothing of the interpreter is printed, no program runs; each bomb ends at a limit, and the next call is "
    "served; meanwhile the templates of another model take at most 10 %, and 0.2 ms, longer than before (the medians) "
    "and less than 50 ms (95 of 100)",
)
def test_f53_chat_templates(neighbour):
    while len(neighbour) < NUM_BEFORE:
        time.sleep(0.05)
    num_before = len(neighbour)
    sandbox = Sandbox("template", memory_bytes=RENDER_MEMORY_BYTES)

    def render(source: str) -> str:
        sandbox.call({"source": source}, cpu_s=RENDER_CPU_S)
        variables = {"messages": [{"role": "user", "content": "hi"}]}
        return sandbox.call({"variables": variables, "max_chars": 4096}, cpu_s=RENDER_CPU_S)["text"]

    problems = []
    for name, source in ESCAPES.items():
        try:
            text = render(source)
        except SandboxFailure as failure:
            if failure.kind != "refused":
                problems.append(f"{name}: {failure}")
            continue
        if any(word in text for word in (MARK, "<class", "<module", "built-in", "code object", "root:", "__")):
            problems.append(f"{name}: {text[:200]}")
    for name, source in BOMBS.items():
        try:
            problems.append(f"{name}: {render(source)[:200]}")
        except SandboxFailure as failure:
            if failure.kind == "output":
                problems.append(f"{name}: {failure}")
        assert render("{{ messages[0].content }}") == "hi"
        peak = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{sandbox._child.process.pid}/status").read_text())
        if int(peak[1]) << 10 > 128 << 20:
            problems.append(f"{name}: {peak[0]}")
    sandbox.close()
    assert problems == []
    usual, beside = neighbour[:num_before], neighbour[num_before:]
    assert len(beside) > 100 and statistics.quantiles(beside, n=20)[-1] < 0.05
    # The medians stay within 5 % of each other, also beside two programs that take both processors. The 95th
    # percentile without any hostile template is 2 to 4 ms, ten medians, by what else the machine does.
    assert statistics.median(beside) < 1.1 * statistics.median(usual) + SLACK_S, (usual, beside)


def test_the_corpus_is_large_and_each_name_occurs_once():
    names = [case.name for cases in ALL_CASES for case in cases]
    assert len(names) == len(set(names)) >= 500


def test_the_products_child_says_what_its_forks_say(intake, directory):
    for case in [cases[number] for cases in ALL_CASES for number in (0, len(cases) // 2)]:
        place = directory()
        case.make(place)
        verdicts = []
        for inspect in (intake.inspect, inspect_in_child):
            try:
                verdicts.append(inspect(place / case.target).to_dict())
            except BlazrError as error:
                verdicts.append(error.to_dict())
        assert verdicts[0] == verdicts[1], case.name
