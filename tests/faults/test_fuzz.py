"""The fuzzer of the checkpoints' parsers: 10^5 cases, and that it finds what it looks for and replays it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import fuzz
from tests.faults.fuzz import Fuzzer, Pairs, parsed, written

CASES = 100_000


@pytest.mark.fault(
    "F47",
    provoked="100,000 changed headers (safetensors, GGUF, ggjt), config.json and tokenizer.json files; `make fuzz` "
    "runs 10,000,000",
    holds="each is read or refused by an error that names it, within 100 ms and 64 MiB; no header is accepted that the "
    "library refuses or reads otherwise",
)
@pytest.mark.slow
def test_f47_changed_files():
    command = [sys.executable, "-m", "tests.faults.fuzz", "--cases", str(CASES), "--seed", "1"]
    run = subprocess.run(command, cwd=fuzz.ROOT, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    report = json.loads(run.stdout.splitlines()[-1])
    assert report["failures"] == 0
    assert report["growth_mib"] < 64
    assert report["cases"] == CASES
    for kind in ("header", "config", "tokenizer", "gguf", "ggjt"):
        of_it = sum(count for verdict, count in report["verdicts"].items() if verdict.startswith(f"{kind} "))
        accepted = report["verdicts"][f"{kind} accepted"]
        assert accepted > of_it // 100, f"{kind}: only {accepted} of {of_it} cases reach the end of the parser"


@pytest.fixture
def fuzzer(tmp_path: Path) -> Fuzzer:
    return Fuzzer(tmp_path, seed=7)


def test_a_case_is_the_same_each_time(fuzzer, tmp_path):
    def content(number: int) -> bytes:
        fuzzer.run(number)
        return (tmp_path / "fuzzed.safetensors").read_bytes()

    first = [content(number) for number in range(8)]
    assert [content(number) for number in range(8)] == first
    assert len(set(first)) > 4


def test_a_crash_is_reported_with_the_command_that_repeats_it(fuzzer, monkeypatch):
    monkeypatch.setattr(fuzz, "read_header", lambda path: 1 / 0)
    fuzzer.run(5)
    (failure,) = fuzzer.failures
    assert "ZeroDivisionError" in failure
    assert "python -m tests.faults.fuzz --seed 7 --first 5 --cases 1" in failure


def test_a_slow_case_is_reported(fuzzer, monkeypatch):
    def spin(path: Path) -> dict:
        end = os.times().user + 0.3
        while os.times().user < end:
            pass
        return {}

    monkeypatch.setattr(fuzz, "read_header", spin)
    monkeypatch.setattr(fuzz, "deserialize", lambda content: [])
    fuzzer.run(0)
    assert [failure.split("\n")[0].endswith(" s") for failure in fuzzer.failures] == [True]


@pytest.mark.parametrize(("place", "fails"), [("mutator", False), ("check", True)])
def test_memory_of_the_check_counts_and_that_of_the_mutator_does_not(fuzzer, monkeypatch, place, fails):
    monkeypatch.setattr(fuzz, "MAX_CPU_S", 10)
    fuzzer.run(0)
    fuzzer.failures.clear()
    targets = [(fuzz.Mutator, "bytes_changed"), (fuzz.Mutator, "changed")]

    def wasteful(unchanged):
        def run(*given):
            bytearray(b"x") * (200 << 20)  # written, and freed at once
            return unchanged(*given)

        return run

    for target, name in targets if place == "mutator" else [(fuzz, "read_header")]:
        monkeypatch.setattr(target, name, wasteful(getattr(target, name)))
    fuzzer.run(0)
    assert ["MiB of memory" in failure for failure in fuzzer.failures] == [True] * fails


def test_a_header_that_the_library_refuses_must_not_be_accepted(fuzzer, monkeypatch):
    monkeypatch.setattr(fuzz, "read_header", lambda path: {})
    for number in range(10):
        fuzzer.run(number)
    assert any("SafetensorError" in failure or "by the library as" in failure for failure in fuzzer.failures)


def test_names_may_occur_twice():
    text = b'{"a":1,"a":{"b":[NaN]}}'
    assert parsed(text)[0] == ("a", 1)
    assert written(parsed(text)) == text.decode()
    assert written(Pairs([("\ud800", None)])) == '{"\\ud800":null}'
