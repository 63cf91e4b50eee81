"""Counters of processors, read from a tree of real files as the kernel's."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.host.rapl import MISSING, UNREADABLE, advance, rapl_counters

LARGEST = 262_143_328_850


def zone(root: Path, name: str, label: str, energy_uj: int = 0, largest: int = LARGEST) -> Path:
    """Write one zone as the kernel has it."""
    path = root / name
    path.mkdir(parents=True)
    (path / "name").write_text(f"{label}\n")
    (path / "max_energy_range_uj").write_text(f"{largest}\n")
    (path / "energy_uj").write_text(f"{energy_uj}\n")
    return path


def count(path: Path, energy_uj: int) -> None:
    (path / "energy_uj").write_text(f"{energy_uj}\n")


def test_packages_are_counted_with_their_memory_and_without_their_own_parts(tmp_path: Path) -> None:
    first = zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000)
    cores = zone(tmp_path, "intel-rapl:0:0", "core", 1)
    memory = zone(tmp_path, "intel-rapl:0:1", "dram", 7)
    second = zone(tmp_path, "intel-rapl:1", "package-1-die-0")
    board = zone(tmp_path, "intel-rapl:2", "psys")
    again = zone(tmp_path, "intel-rapl-mmio:0", "package-0")
    (tmp_path / "dtpm").mkdir()
    counters, notice = rapl_counters(tmp_path)
    assert [(item.name, item.source) for item in counters] == [("package-0", "rapl"), ("package-1-die-0", "rapl")]
    assert notice == "" and len({item.identity for item in counters}) == 2
    assert [item.read() for item in counters] == [0.0, 0.0]
    for path, energy_uj in ((first, 8_500_000), (cores, 10**9), (memory, 500_007), (second, 250_000), (board, 10**9),
                            (again, 10**9)):  # fmt: skip
        count(path, energy_uj)
    assert [item.read() for item in counters] == [4.0, 0.25]
    assert [item.identity for item in rapl_counters(tmp_path)[0]] == [item.identity for item in counters]


def test_a_counter_begins_again_at_0(tmp_path: Path) -> None:
    path = zone(tmp_path, "intel-rapl:0", "package-0", LARGEST - 999_999)
    (counter,) = rapl_counters(tmp_path)[0]
    count(path, 1_000_000)
    assert counter.read() == 2.0
    count(path, 3_000_000)
    assert counter.read() == 4.0


@given(largest=st.integers(1, 2**62), steps=st.lists(st.integers(0, 2**62), max_size=30), start=st.integers(0, 2**62))
def test_steps_below_the_range_are_added_up_over_every_wrap(largest: int, steps: list[int], start: int) -> None:
    position, total = start % (largest + 1), 0
    for step in (item % (largest + 1) for item in steps):
        following = (position + step) % (largest + 1)
        total += advance(position, following, largest)
        position = following
    assert total == sum(item % (largest + 1) for item in steps)


def test_a_machine_without_counters_is_explained(tmp_path: Path) -> None:
    assert rapl_counters(tmp_path / "nothing") == ([], MISSING)
    zone(tmp_path, "intel-rapl:0", "psys")
    assert rapl_counters(tmp_path) == ([], MISSING)


def test_a_counter_without_a_number_is_explained_and_one_that_goes_raises(tmp_path: Path) -> None:
    path = zone(tmp_path, "intel-rapl:0", "package-0")
    (counter,) = rapl_counters(tmp_path)[0]
    (path / "energy_uj").write_text("many\n")
    with pytest.raises(OSError, match="no number"):
        counter.read()
    found, notice = rapl_counters(tmp_path)
    assert found == [] and "can't be read" in notice and "'many'" in notice


@pytest.fixture
def open_tree() -> Iterator[Path]:
    """A directory that any account may enter."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_counters_that_only_root_reads_come_with_the_remedy(open_tree: Path) -> None:
    (zone(open_tree, "intel-rapl:0", "package-0") / "energy_uj").chmod(0o400)
    account = os.geteuid()
    if account == 0:
        os.seteuid(65534)
    else:
        (open_tree / "intel-rapl:0" / "energy_uj").chmod(0)
    try:
        assert rapl_counters(open_tree) == ([], UNREADABLE)
    finally:
        os.seteuid(account)
