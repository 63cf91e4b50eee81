"""``blazr watch`` as a process: it registers, measures, prints, and goes on after a kill."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.db import OperationalError

from blazr_site.commands import watch
from inference.errors import Conflict, InvalidRequest, Unavailable
from models_registry import storage, uploads
from models_registry.aliases import alias_promote
from models_registry.models import RunStep, TrainingRun
from models_registry.runs import turns, watching
from tests.live.conftest import ROOT, wait_until
from tests.models_registry.runs.trainers import oxidizr_run, oxidizr_step


def command(directory: Path, *options: str) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-m", "blazr_site.cli", "watch", str(directory), *options]
    arguments += ["--data-dir", str(directory.parent / "data")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BLAZR_")}
    return subprocess.Popen(
        arguments, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_a_killed_watcher_goes_on_where_it_was(tmp_path: Path) -> None:
    directory = oxidizr_run(tmp_path / "nano")
    oxidizr_step(directory, 10)
    (directory / "nano_64_1m_f32_step_20.safetensors").write_bytes(b"half")
    first = command(directory, "--no-measure", "--prompt", "x", "--max-tokens", "4")
    try:
        wait_until(lambda: first.stdout.readline() == "step 10: nano@1\n", 60, "the first checkpoint")
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    oxidizr_step(directory, 20)
    second = command(directory, "--once", "--loss-tokens", "32")
    output, errors = second.communicate(timeout=240)
    assert second.returncode == 0, errors
    lines = output.splitlines()
    assert {"step 10: nano@1", "step 20: nano@2"} <= set(lines)
    assert [line.partition(" loss ")[0] for line in lines if " loss " in line] == ["step 10:", "step 20:"]
    assert f"watching {directory} as nano" in errors


def test_a_wrong_option_is_one_line(tmp_path: Path) -> None:
    process = command(oxidizr_run(tmp_path / "nano"), "--once", "--temperature", "9")
    _, errors = process.communicate(timeout=120)
    message = "error: temperature is 9.0; it must be 0 to 2.0."
    assert process.returncode == 2
    assert (errors.count("\n"), errors[: len(message)]) == (1, message)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text": "/nothing"}, "--text '/nothing' can't be read as UTF-8 text"),
        ({"name": "a/b"}, "name is 'a/b'"),
    ],
)
def test_other_wrong_options(tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        watch.run(arguments(oxidizr_run(tmp_path / "nano"), **options))
    assert caught.value.message.startswith(message)
    assert not TrainingRun.objects.exists()


def arguments(directory: Path, **values: object) -> argparse.Namespace:
    defaults = dict.fromkeys(("prompt", "text", *watch.OPTIONS)) | {"directory": str(directory), "name": ""}
    return argparse.Namespace(**defaults | values)


@pytest.fixture
def once(tmp_path: Path, settings, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Run ``blazr watch --once --no-measure`` for the run ``nano`` in this thread; returns its exit code."""

    class Thread:
        def __init__(self, target, args=(), **_: object) -> None:
            self.start = lambda: target(*args)

    settings.BLAZR_UPLOADS_DIR, settings.BLAZR_CHECKPOINTS_DIR = tmp_path / "uploads", tmp_path / "checkpoints"
    monkeypatch.setattr(turns.threading, "Thread", Thread)
    monkeypatch.setattr(turns.connection, "close", lambda: None)
    monkeypatch.setattr(watching, "STILL_FOR", timedelta(0))
    monkeypatch.setattr(watch, "LOOK_EVERY_S", 0.0)
    directory = oxidizr_run(tmp_path / "nano")
    return lambda: watch.run(arguments(directory, once=True, no_measure=True))


@pytest.mark.django_db
def test_once_fails_if_a_promoted_checkpoint_is_not_copied(
    once: Callable[[], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    oxidizr_step(tmp_path / "nano", 10)
    assert once() == 0
    alias_promote(name="live", checkpoint=RunStep.objects.get().checkpoint)
    with monkeypatch.context() as patch:
        patch.setattr(storage, "free_bytes", lambda: uploads.DISK_RESERVE_BYTES + 1000)
        capsys.readouterr()
        assert once() == 1
        assert "step 10: promoted, but not copied: its 2.9 MiB don't fit" in capsys.readouterr().err
        patch.setattr(turns, "copy_promoted", lambda run: 1 / 0)
        RunStep.objects.update(reason="")
        assert once() == 1
        assert "step 10: promoted, but not copied yet\n" in capsys.readouterr().err
    assert once() == 0


@pytest.mark.django_db
def test_once_fails_if_a_checkpoint_is_not_registered(
    once: Callable[[], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    oxidizr_step(tmp_path / "nano", 10)
    (tmp_path / "nano" / "nano_64_1m_f32_step_20.safetensors").write_bytes(b"half")  # a trainer may be writing it
    for error, reason in (
        (Conflict("the name is taken."), "step 10: not registered: the name is taken.\n"),
        (InvalidRequest("no family knows it."), "step 10: refused: no family knows it.\n"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(watching, "inspect_in_child", raises(error))
            assert once() == 1
        assert reason in capsys.readouterr().err


@pytest.mark.django_db
def test_once_registers_what_is_refused_for_a_moment(
    once: Callable[[], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    oxidizr_step(tmp_path / "nano", 10)
    errors, inspect = [Unavailable("too many templates are being checked.")] * 3, watching.inspect_in_child
    monkeypatch.setattr(
        watching, "inspect_in_child", lambda *args: raises(errors.pop())() if errors else inspect(*args)
    )
    assert once() == 0
    assert (errors, RunStep.objects.get().state) == ([], "registered")


@pytest.mark.django_db
def test_once_waits_while_another_process_copies(
    once: Callable[[], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    oxidizr_step(tmp_path / "nano", 10)
    assert once() == 0
    checkpoint = RunStep.objects.get().checkpoint
    alias_promote(name="live", checkpoint=checkpoint)
    monkeypatch.setattr(watch, "MAX_COPY_LOOKS", 3)
    with storage.copy_lock(checkpoint.pk):
        assert once() == 1
        assert "step 10: promoted, but not copied yet\n" in capsys.readouterr().err
    monkeypatch.setattr(watch, "MAX_COPY_LOOKS", 10**6)
    lock, looks = contextlib.ExitStack(), []
    lock.enter_context(storage.copy_lock(checkpoint.pk))

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 5:
            lock.close()

    monkeypatch.setattr(watch, "time", SimpleNamespace(sleep=sleep))
    assert once() == 0
    assert len(looks) >= 5


@pytest.mark.django_db
def test_once_goes_on_after_an_outage_at_its_end(
    once: Callable[[], int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    errors, find = [OperationalError("the server is gone")], watch.failures_of

    def failures_of(run: TrainingRun) -> list[str]:
        if errors:
            raise errors.pop()
        return find(run)

    monkeypatch.setattr(watch, "failures_of", failures_of)
    monkeypatch.setattr(watch, "close_old_connections", lambda: None)
    assert once() == 0
    assert "the database can't be used now: the server is gone" in capsys.readouterr().err


def raises(error: Exception) -> Callable[..., None]:
    def act(*_: object) -> None:
        raise error

    return act


@pytest.mark.django_db
def test_a_run_goes_on_with_new_options(tmp_path: Path) -> None:
    """The command line may name any directory, as it may name any model."""
    directory = oxidizr_run(tmp_path / "nano")
    run = watch.start(arguments(directory, seed=7))
    TrainingRun.objects.update(state="stopped")
    again = watch.start(arguments(directory, prompt=["one"], name="nano"))
    assert (again.pk, again.seed, again.prompts, again.state) == (run.pk, 7, ["one"], "watching")
    with pytest.raises(InvalidRequest, match=r"--name is other, but .* is watched as nano"):
        watch.start(arguments(directory, name="other"))
    with pytest.raises(InvalidRequest, match="can't be watched: No such file"):
        watch.start(arguments(tmp_path / "nothing"))
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(InvalidRequest, match="text is empty"):
        watch.start(arguments(directory, text=str(tmp_path / "empty.txt")))


def test_lines_of_each_state() -> None:
    run = TrainingRun(name="nano")
    refused = RunStep(number=1, state="refused", reason="no config.")
    assert watch.lines_of(run, refused) == ["step 1: refused: no config."]
    assert watch.lines_of(run, RunStep(number=1, state="incomplete", reason="half")) == []
    measured = RunStep(number=None, state="registered", revision=3, loss=2.0, num_tokens=5, problem="it diverged.")
    assert watch.lines_of(run, measured) == [
        "final: nano@3", "final: loss 2.0000 over 5 tokens", "final: it diverged.",
    ]  # fmt: skip


def test_each_line_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    run, printed = TrainingRun(name="nano", directory="/runs/nano", reason="/runs/nano can't be read."), watch.Printed()
    steps = [RunStep(number=1, state="registered", revision=1)]
    for _ in range(2):
        printed.update(run, steps)
    run.reason = ""
    printed.update(run, steps)
    found = capsys.readouterr()
    assert found.out == "step 1: nano@1\n"
    assert found.err == "/runs/nano can't be read.\n/runs/nano is there again\n"
