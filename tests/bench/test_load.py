"""What ``bench.load`` measures, with a real process and a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.load import Round, cached_share, line, memory
from bench.processes import Child
from bench.weights import LLAMA_TINY, make_llama

MIB = 1 << 20


def round_of(**values: float) -> Round:
    usual = {
        "cached": 0.01, "read_before_s": 0.5, "read_after_s": 1.5, "load_s": 1.2, "first_token_s": 0.1,
        "import_s": 0.8, "before_bytes": 200 * MIB, "weights_bytes": 1000 * MIB, "cache_bytes": 1000 * MIB,
        "load_peak_bytes": 1300 * MIB, "work_peak_bytes": 1400 * MIB, "full_peak_bytes": 2100 * MIB,
        "after_bytes": 250 * MIB,
    }  # fmt: skip
    return Round(**(usual | values))  # type: ignore[arg-type]


def test_a_load_is_compared_with_the_readings_around_it() -> None:
    found = round_of()
    assert found.ratio == pytest.approx(1.2)
    assert found.peak_ratio == pytest.approx(1.05)
    assert "ratio 1.20" in line(found) and "1.0% of the file" in line(found)


def test_peaks_of_several_rounds_are_the_greatest() -> None:
    text = memory([round_of(full_peak_bytes=2200 * MIB), round_of()])
    assert "weights 1,000, with the cache budget 2,000" in text
    assert "every state written 2,200 (1.10 of" in text


def test_a_file_that_was_just_read_is_in_the_cache(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(bytes(MIB))
    assert file.read_bytes()
    assert cached_share(tmp_path) == 1.0


def test_states_are_written_and_an_unload_gives_their_memory_back(tmp_path: Path) -> None:
    budget = 64 * MIB
    child = Child("loading", make_llama(LLAMA_TINY, tmp_path), cache_bytes=budget, environment={"OMP_NUM_THREADS": "1"})
    try:
        assert child.facts["import_s"] > 0 and child.facts["resident_before_bytes"] > 0
        before = child.run("memory")["peak_bytes"]
        written = child.run("write_states")["written_bytes"]
        assert 0.9 * budget < written <= child.facts["cache_bytes"]
        full = child.run("memory")["peak_bytes"]
        assert full - before > 0.8 * written
        assert child.run("unload")["resident_bytes"] < full - 0.8 * written
    finally:
        child.close()
