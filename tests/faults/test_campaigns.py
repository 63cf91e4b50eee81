"""The sum of recorded campaigns: what adds up, and what counts for nothing."""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys

import pytest

from tests.faults.campaigns import ROOT, Run, add_argument, passed, record, runs, table

RUN = Run("fuzz", "0123456789ab", "2026-01-02T03:04Z", 1, 100, 0, 36.0, {})


def run(**changed: object) -> Run:
    return dataclasses.replace(RUN, **changed)


def row(*found: Run) -> list[str]:
    """Passed, seeds, hours and failed seeds of the fuzzer's row."""
    (line,) = [line for line in table(found).splitlines() if "tests.faults.fuzz" in line]
    _, _, _, total, wanted, seeds, hours, failed, _ = (cell.strip() for cell in line.split("|"))
    assert wanted == "10,000,000"
    return [total, seeds, hours, failed]


def test_different_seeds_add_up_and_the_same_seed_counts_once():
    assert row() == ["0", "0", "0.0", ""]
    assert row(run(), run(seed=2, size=1_000_000, seconds=3600.0)) == ["1,000,100", "2", "1.0", ""]
    assert row(run(size=100), run(size=300), run(size=200)) == ["300", "1", "0.0", ""]


def test_other_campaigns_are_counted_apart():
    assert row(run(), run(campaign="kills", seed=3)) == ["100", "1", "0.0", ""]


def test_a_run_with_failures_counts_for_nothing():
    assert row(run(failures=1)) == ["0", "1", "0.0", "1"]
    assert row(run(), run(failures=1), run(seed=2)) == ["100", "2", "0.0", "1"]


@pytest.mark.parametrize(
    ("later", "size"),
    [((), None), ((99,), None), ((100,), 100), ((50, 100, 70), 100)],
    ids=["not run again", "a shorter run", "the same run", "several runs"],
)
def test_a_seed_counts_again_once_it_has_passed_at_the_same_length(later, size):
    assert passed([run(size=500), run(failures=2), *(run(size=size) for size in later)]) == size


def test_a_command_appends_one_line_if_asked_to(tmp_path):
    path, figures = tmp_path / "runs.jsonl", {"growth_mib": 1}
    parser = argparse.ArgumentParser()
    add_argument(parser)
    assert parser.parse_args(["--record"]).record == ROOT / "tests/faults/campaigns.jsonl"
    for arguments in ([], ["--record", str(path)], ["--record", str(path)]):
        record(parser.parse_args(arguments).record, "fuzz", seed=4, size=7, failures=0, seconds=1.26, figures=figures)
    assert len(path.read_text().splitlines()) == 2
    found = runs(path)[0]
    assert dataclasses.replace(found, commit="", date="") == Run("fuzz", "", "", 4, 7, 0, 1.3, figures)
    assert found.commit and found.date.startswith("20")


def test_the_file_of_the_repository_can_be_read():
    assert all(found.size >= 0 and found.commit and not found.commit.endswith("-dirty") for found in runs())


def test_an_unknown_campaign_is_refused(tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps(dataclasses.asdict(run(campaign="dice"))) + "\n")
    with pytest.raises(ValueError, match="'dice'"):
        runs(path)


COUNTED = """
import pytest

def test_held(outage_s):
    assert outage_s == 7

def test_failed(tmp_path):
    raise AssertionError

@pytest.fixture
def broken():
    raise OSError

def test_without_its_fixture(broken):
    pass
"""


def test_repeated_tests_are_counted(tmp_path):
    """In a process of its own: pytest runs once in each."""
    (tmp_path / "test_it.py").write_text(COUNTED)
    (tmp_path / "conftest.py").write_text("from tests.faults.conftest import outage_s")
    program = (
        "import pytest; from tests.faults.__main__ import Repeated; counts = Repeated(3, 7);"
        f"pytest.main(['-q', '--rootdir', {str(tmp_path)!r}, {str(tmp_path)!r}], plugins=[counts]);"
        "print('counted', counts.num_passed, counts.num_failed)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert "counted 3 6" in done.stdout, done.stdout + done.stderr
