"""Real measured processes with a tiny model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.environments import Environments
from bench.figures import Figures
from bench.implementations import IMPLEMENTATIONS, Job
from bench.processes import Child, PeerFailed
from bench.tasks import Cell, Lengths
from bench.weights import LLAMA_TINY, make_checkpoint, make_llama

ONE_THREAD = {"OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(LLAMA_TINY, tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Iterator[Child]:
    child = Child("engine", checkpoint, environment=ONE_THREAD, cold=True)
    yield child
    child.close()
    assert child.process.returncode == 0


def test_the_engine_says_what_it_holds(engine: Child, checkpoint: Path) -> None:
    assert engine.facts["load_s"] > 0
    assert engine.facts["weights_bytes"] > 0
    assert engine.run("memory")["peak_bytes"] > 10 << 20
    assert engine.run("time_to_read")["seconds"] > 0


def test_the_engine_is_measured(engine: Child) -> None:
    assert engine.run("prefill", tokens=32)["tokens_per_s"] > 0
    assert engine.run("decode", batch=3, prompt=8, new=8)["tokens_per_s"] > 0
    assert 0 < engine.run("own_work", batch=2, prompt=1, new=8)["share"] < 1
    assert engine.run("first_token", prompt=4, repeats=2)["seconds"] > 0
    streams = engine.run("clients", batch=2, prompt=8, new=5)
    assert len(streams["ttft_s"]) == 2 and len(streams["itl_s"]) == 8


def test_an_error_is_told_and_the_process_goes_on(engine: Child) -> None:
    with pytest.raises(PeerFailed, match="unknown_command"):
        engine.run("unknown_command")
    assert engine.run("memory")["peak_bytes"] > 0


def test_a_process_that_cannot_load_says_why(tmp_path: Path) -> None:
    with pytest.raises(PeerFailed, match=r"no config\.json|config|weights"):
        Child("engine", tmp_path, environment=ONE_THREAD)


def test_a_process_that_dies_leaves_its_last_words(tmp_path: Path) -> None:
    script = tmp_path / "dies"
    script.write_text("#!/bin/sh\necho out of luck >&2\nexit 3\n")
    script.chmod(0o755)
    with pytest.raises(PeerFailed, match="out of luck"):
        Child("engine", tmp_path, python=script)


def test_transformers_steps_are_counted(checkpoint: Path) -> None:
    child = Child("transformers", checkpoint, environment=ONE_THREAD)
    try:
        assert child.run("prefill", tokens=16)["tokens_per_s"] > 0
        assert child.run("decode", batch=2, prompt=4, new=4)["tokens_per_s"] > 0
    finally:
        child.close()


def test_a_cell_notes_values_and_what_no_peer_can_do(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("bench.disturbance.TOLERATED_CPUS", 1e9)  # tests share the machine
    rows = {item.name: item for item in IMPLEMENTATIONS}
    figures, lengths = Figures(), Lengths(decode_new=4, repeats=1)
    environments = Environments(tmp_path, lambda text: None)
    Cell(
        figures, rows["blazr bf16"], Job(checkpoint, 512, environments), "1", lengths, lambda: 1, lambda text: None
    ).measure(["decode1", "load", "memory"])
    found = figures.samples["llama-tiny"]["blazr bf16"]
    assert {"decode1", "peak bytes", "weights bytes", "cache bytes"} <= set(found)
    # The child itself judges its load, and other tests may run beside it.
    refused = figures.failures.get("llama-tiny", {}).get("blazr bf16", {})
    assert {"load s", "read s"} <= set(found) or "other work" in refused["load"]

    nano = tmp_path / "nano"
    nano.mkdir()
    (nano / "oxidizr").touch()
    Cell(
        figures, rows["llama.cpp q8_0"], Job(nano, 512, environments), "1", lengths, lambda: 1, lambda text: None
    ).measure(["decode1", "http"])
    assert set(figures.failures["nano"]["llama.cpp q8_0"].values()) == {"oxidizr's layers are known to no peer"}


def test_the_names_of_models_are_known() -> None:
    with pytest.raises(KeyError):
        make_checkpoint("llama-7b", Path("/nonexistent"))
