"""Processes die at any point of a check: it is made again, and what nobody goes on with is removed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from models_registry import services, storage, uploads
from models_registry.models import Checkpoint, Upload
from models_registry.sweep import SweepReport, storage_sweep
from tests.models_registry.test_uploads import begin, left_behind, send

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("storage_dirs")]


class Crash(BaseException):
    """Stands for kill -9: nothing of the program's own handling runs (it catches Exception at most)."""


@pytest.mark.parametrize("place", ["sha256_file", "publish_file", "remove_upload_files", "inspect"])
def test_a_check_that_died_anywhere_is_made_again(hybrid: Path, storage_dirs: Path, monkeypatch, place: str) -> None:
    upload = begin(hybrid)
    send(upload, hybrid)
    calls = 0

    def crash(*args: object, **kwargs: object) -> None:
        nonlocal calls
        calls += 1
        if place in ("publish_file", "sha256_file") and calls == 1:
            return real(*args, **kwargs)
        raise Crash

    inspect = None
    if place == "inspect":
        inspect = crash
    else:
        real = getattr(storage, place)
        monkeypatch.setattr(storage, place, crash)
    with pytest.raises(Crash):
        uploads.upload_finish(upload_id=upload.pk, wait=True, inspect=inspect)
    monkeypatch.undo()
    storage_sweep()
    upload.refresh_from_db()
    if place != "remove_upload_files":  # else it was registered already: only the cleaning up was lost
        assert (upload.state, upload.stage) == ("receiving", "the server stopped; the check begins again")
        assert not Checkpoint.objects.exists()
        upload = uploads.upload_finish(upload_id=upload.pk, wait=True)
    assert upload.state == "done"
    services.checkpoint_files_verify(Checkpoint.objects.get())
    assert not any("uploads" in name for name in left_behind(storage_dirs))


def test_a_check_that_always_dies_is_given_up(hybrid: Path, storage_dirs: Path) -> None:
    upload = begin(hybrid)
    send(upload, hybrid)

    def crash(*_: object, **__: object) -> None:
        raise Crash

    for number in range(uploads.MAX_CHECKS):
        assert upload.state == "receiving"
        with pytest.raises(Crash):
            uploads.upload_finish(upload_id=upload.pk, wait=True, inspect=crash)
        assert storage_sweep().ended_uploads == (number == uploads.MAX_CHECKS - 1)
        upload.refresh_from_db()
    assert (upload.state, upload.reason[:26]) == ("refused", "the server stopped 3 times")
    assert left_behind(storage_dirs) == []


def test_a_dead_check_goes_on_without_a_sweep(hybrid: Path) -> None:
    """A client that asks again finds the files of the process that died."""
    upload = begin(hybrid)
    send(upload, hybrid)
    Upload.objects.filter(pk=upload.pk).update(state="checking", num_checks=1)
    assert uploads.upload_finish(upload_id=upload.pk, wait=True).state == "done"
    assert uploads.upload_finish(upload_id=upload.pk, wait=True).state == "done"  # a reply that was lost


def test_uploads_of_dead_processes_are_checked_one_at_a_time(hybrid: Path, monkeypatch) -> None:
    first, second, never = (begin(hybrid, name=name) for name in ("first", "second", "never"))
    for upload in (first, second, never):
        send(upload, hybrid)
    Upload.objects.filter(pk__in=(first.pk, second.pk)).update(num_checks=1)
    Upload.objects.filter(pk=second.pk).update(num_checks=2)  # perhaps the one that ends processes
    finish = uploads.upload_finish
    monkeypatch.setattr(uploads, "upload_finish", lambda upload_id: finish(upload_id=upload_id, wait=True))
    assert uploads.uploads_recheck().pk == first.pk
    Upload.objects.filter(pk=never.pk).update(state="checking", num_checks=2)
    assert uploads.uploads_recheck() is None
    Upload.objects.filter(pk=never.pk).update(state="receiving", num_checks=0)
    assert uploads.uploads_recheck().pk == second.pk
    assert uploads.uploads_recheck() is None
    assert [uploads.upload_get(upload.pk).state for upload in (first, second, never)] == ["done", "done", "receiving"]


def test_a_damaged_upload_stops_no_sweep(hybrid: Path, storage_dirs: Path) -> None:
    upload = begin(hybrid)
    send(upload, hybrid)
    Upload.objects.filter(pk=upload.pk).update(overrides=[], num_checks=1)
    assert uploads.uploads_recheck() is None
    assert Upload.objects.defer("overrides").get().state == "refused"
    assert left_behind(storage_dirs) == []


def test_the_sweep_leaves_living_checks_alone(hybrid: Path) -> None:
    upload = begin(hybrid)
    send(upload, hybrid)
    seen = []

    def inspect(path: Path, **options: object) -> object:
        seen.append(storage_sweep())
        from models_registry.detection.inspection import inspect_checkpoint

        return inspect_checkpoint(path)

    assert uploads.upload_finish(upload_id=upload.pk, wait=True, inspect=inspect).state == "done"
    assert seen == [SweepReport(0, 0, 0, 0)]


def test_silent_uploads_are_given_up(hybrid: Path, storage_dirs: Path) -> None:
    upload = begin(hybrid)
    send(upload, hybrid)
    assert storage_sweep().ended_uploads == 0
    Upload.objects.update(active_at=timezone.now() - uploads.IDLE_LIMIT - timedelta(seconds=1))
    assert storage_sweep().ended_uploads == 1
    upload.refresh_from_db()
    assert (upload.state, "nothing was received" in upload.reason) == ("refused", True)
    assert left_behind(storage_dirs) == []
    Upload.objects.update(active_at=timezone.now() - uploads.KEEP_ROWS - timedelta(seconds=1))
    storage_sweep()
    assert not Upload.objects.exists()


CHECKING_PROCESS = """
import json, sys, time
import django
django.setup()
from django.core.management import call_command
from models_registry import storage, uploads
from models_registry.models import Checkpoint, Upload

for line in sys.stdin:
    request = json.loads(line)
    answer = {}
    if request["do"] == "migrate":
        call_command("migrate", verbosity=0)
    elif request["do"] == "send":
        from pathlib import Path
        files = sorted(Path(request["directory"]).iterdir())
        declared = [uploads.DeclaredFile(file.name, file.stat().st_size) for file in files]
        upload = uploads.upload_create(owner=None, served_model_name=request["name"], files=declared)
        for number, file in enumerate(files):
            with file.open("rb") as body:
                uploads.upload_receive(upload_id=upload.pk, number=number, offset=0, body=body)
        answer = {"id": str(upload.pk)}
    elif request["do"] == "check":
        storage._READ_BYTES = 512
        read = storage.sha256_file
        storage.sha256_file = lambda path, told: read(path, lambda count: (time.sleep(0.01), told(count)))
        print("{}", flush=True)
        uploads.upload_finish(upload_id=request["id"], wait=True)
    elif request["do"] == "finish":
        upload = uploads.upload_finish(upload_id=request["id"], wait=True)
        answer = {"state": upload.state, "num_checks": upload.num_checks}
    elif request["do"] == "sweep":
        call_command("sweep_uploads", verbosity=0)
        uploads_ = Upload.objects.order_by("created_at")
        answer = {"rows": [[str(u.pk), u.state, Checkpoint.objects.filter(pk=u.pk).exists()] for u in uploads_]}
    print("\\n" + json.dumps(answer), flush=True)
"""


class Peer:
    """A process with a database of its own that does as it is told."""

    def __init__(self, root: Path) -> None:
        environment = os.environ | {
            "DJANGO_SETTINGS_MODULE": "blazr_site.settings",
            "BLAZR_DATA_DIR": str(root),
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        }
        environment.pop("DATABASE_URL", None)
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHECKING_PROCESS],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, do: str, **members: str) -> dict:
        self.process.stdin.write(json.dumps({"do": do, **members}) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise AssertionError("the process ended")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def test_kill_9_while_it_is_checked(hybrid: Path, storage_dirs: Path) -> None:
    """Real processes, killed at growing delays: what was being checked is checked again, and registered whole."""
    num_checks = []
    storage_dirs.mkdir(exist_ok=True)
    steady = Peer(storage_dirs)
    steady.ask("migrate")
    try:
        for number, delay_s in enumerate((0.0, 0.02, 0.06, None)):
            upload_id = steady.ask("send", name=f"sent-{number}", directory=str(hybrid))["id"]
            victim = Peer(storage_dirs)
            victim.ask("check", id=upload_id)
            if delay_s is None:  # as soon as the check has begun, whenever that is
                while {row[0]: row[1] for row in steady.ask("sweep")["rows"]}[upload_id] == "receiving":
                    time.sleep(0.01)
            else:
                time.sleep(delay_s)
            victim.kill()
            deadline = time.monotonic() + 60
            while True:
                rows = {row[0]: tuple(row[1:]) for row in steady.ask("sweep")["rows"]}
                # The victim's child ends with it, and holds the upload's lock until then.
                if rows[upload_id][0] != "checking" or time.monotonic() > deadline:
                    break
                time.sleep(0.05)
            assert rows[upload_id] in {("receiving", False), ("done", True)}
            finished = steady.ask("finish", id=upload_id)
            assert finished["state"] == "done"
            num_checks.append(finished["num_checks"])
            assert not any("uploads" in name for name in left_behind(storage_dirs))
        assert num_checks[-1] == 2
        assert not any(whole and state != "done" for state, whole in rows.values())
    finally:
        steady.kill()
