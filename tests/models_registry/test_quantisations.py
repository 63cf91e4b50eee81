"""Quantisations end as a checkpoint, or as a reason with nothing left behind; a script stands in for the child."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, OperationalError, transaction
from django.utils import timezone

from inference.errors import Conflict, InvalidRequest, NotFound, QueueFull, StorageFull, UnsupportedFormat
from inference.modelling.encoded_tensor import EncodedTensor
from models_registry import checkpoint_jobs, quantisations, selectors, services, storage
from models_registry.aliases import alias_promote
from models_registry.models import Checkpoint, Quantisation, Upload, UploadFile
from models_registry.quantisations import QUANTISATIONS, quantisation_cancel, quantisation_create
from models_registry.selectors import checkpoint_inspection
from models_registry.uploads import DISK_RESERVE_BYTES
from tests.live.conftest import wait_until
from tests.models_registry.test_uploads import left_behind

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("storage_dirs")]

Install = Callable[[str], Path]

COPY = "shutil.copytree(request['path'], request['target'])\nsend(result={})\n"
"""The result is a copy of the source."""


@pytest.fixture
def source(hybrid: Path) -> Checkpoint:
    return services.checkpoint_register(path=hybrid, served_model_name="tiny")


def started(source: Checkpoint, **members: object) -> Quantisation:
    return quantisation_create(checkpoint=source, **({"max_kl": 0.01, "wait": True} | members))


def test_the_result_is_registered_like_an_upload(
    source: Checkpoint, staff: User, child_script: Install, storage_dirs: Path
) -> None:
    directory = child_script("(directory / 'request').write_text(json.dumps(request))\n" + COPY)
    row = started(source, owner=staff, served_model_name="smaller", max_bytes=5000, max_kl=0.5)
    assert (row.state, row.reason, row.progress, row.stage) == ("done", "", 1.0, "")
    result = selectors.checkpoint_get_by_name("smaller")
    assert (result.pk, row.checkpoint, result.source) == (row.pk, result, "upload")
    assert result.origin == "quantised from tiny"
    services.checkpoint_files_verify(result)
    assert all(stamp["sha256"] for stamp in result.file_stamps)
    assert not any(name.startswith("uploads") for name in left_behind(storage_dirs))
    request = json.loads((directory / "request").read_text())
    assert request | {"target": ""} == {
        "path": source.path, "overrides": {}, "target": "", "max_bytes": 5000, "max_kl": 0.5, "text": "",
        "device": "auto",
    }  # fmt: skip
    services.checkpoint_delete(checkpoint=result)
    assert left_behind(storage_dirs) == []
    row.refresh_from_db()
    assert (row.state, row.checkpoint, str(row)) == ("done", None, "tiny to smaller (done)")


def test_facts_set_by_hand_hold_for_the_result(source: Checkpoint, staff: User, child_script: Install) -> None:
    child_script("assert request['overrides'] == {'max_position_embeddings': 64}\n" + COPY)
    services.checkpoint_override_set(checkpoint=source, fact="max_position_embeddings", value=64)
    row = started(source, owner=staff)
    assert (row.state, row.checkpoint.max_position_embeddings) == ("done", 64)
    assert row.checkpoint.overrides.get().author_name == "vera"


def test_the_text_is_checked_and_handed_on(source: Checkpoint, child_script: Install) -> None:
    child_script("assert request['text'] == 'ä word'\n" + COPY)
    with pytest.raises(InvalidRequest, match="tiny has no known tokenizer and reads random tokens; leave text out"):
        started(source, text="words")
    tokenizer = source.inspection["tokenizer"] | {"kind": "builtin", "name": "cl100k_base"}
    Checkpoint.objects.filter(pk=source.pk).update(inspection=source.inspection | {"tokenizer": tokenizer})
    source.refresh_from_db()
    for text, message in (("", "text is empty"), ("x" * 40_000, "at most 32768 are read"), ("\0", "null character")):
        with pytest.raises(InvalidRequest, match=message):
            started(source, text=text)
    row = started(source, text="ä word")
    assert (row.state, row.reason) == ("done", "")


def test_a_tokenizer_and_a_template_of_others_are_in_the_files(source: Checkpoint, child_script: Install) -> None:
    (Path(source.directory) / "tokenizer.json").unlink(missing_ok=True)
    services.checkpoint_override_set(checkpoint=source, fact="chat_template", value="{{ messages[0].content }}")
    services.checkpoint_override_set(checkpoint=source, fact="max_position_embeddings", value=64)
    child_script(
        "assert request['overrides']['chat_template']\n"
        + COPY
        + "open(request['target'] + '/chat_template.jinja', 'w').write(request['overrides']['chat_template'])\n"
    )
    row = started(source)
    assert (row.state, row.reason) == ("done", "")
    assert [override.fact for override in row.checkpoint.overrides.all()] == ["max_position_embeddings"]
    assert row.checkpoint.inspection["tokenizer"]["chat_template"] == "{{ messages[0].content }}"


def test_the_name_is_made_of_the_sources_where_none_is_given(source: Checkpoint, child_script: Install) -> None:
    child_script(COPY)
    assert [started(source).served_model_name for _ in range(2)] == ["tiny-quantised", "tiny-quantised-2"]
    services.checkpoint_rename(checkpoint=source, served_model_name="x" * 96)
    assert started(source).served_model_name == "x" * 86 + "-quantised"


def test_a_name_that_was_taken_meanwhile_gets_a_number(source: Checkpoint, child_script: Install) -> None:
    child_script(COPY)
    row = Quantisation.objects.create(
        source=source, source_name="tiny", served_model_name="smaller", max_kl=1.0, active_at=timezone.now()
    )
    alias_promote(name="smaller", checkpoint=source)
    QUANTISATIONS.run(row.pk)
    assert selectors.checkpoint_get(row.pk).served_model_name == QUANTISATIONS.get(row.pk).served_model_name
    assert QUANTISATIONS.get(row.pk).served_model_name == "smaller-2"


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_kl": None}, "max_bytes, max_kl, or both"), ({"max_bytes": 0}, "max_bytes is 0; it must be above 0"),
        ({"max_bytes": -5}, "max_bytes is -5"), ({"max_bytes": 10**30}, f"max_bytes is {10**30}; it must be"),
        ({"max_kl": 0.0}, "max_kl is 0; it must be above 0 and below 100 nats"), ({"max_kl": 100.0}, "max_kl is 100"),
        ({"max_kl": float("nan")}, "max_kl is nan"), ({"max_kl": float("inf")}, "max_kl is inf"),
        ({"served_model_name": "../x"}, "served_model_name is '../x'"),
    ],
)  # fmt: skip
def test_bad_limits_start_nothing(source: Checkpoint, limits: dict, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        started(source, **limits)
    assert not Quantisation.objects.exists()


def test_what_is_not_smaller_is_refused_with_the_present_size(source: Checkpoint) -> None:
    with pytest.raises(InvalidRequest, match=f"below the {source.size_bytes} bytes .* that tiny has now"):
        started(source, max_bytes=source.size_bytes)


def test_names_of_others_are_refused(source: Checkpoint) -> None:
    alias_promote(name="chat", checkpoint=source)
    for name in ("tiny", "chat"):
        with pytest.raises(Conflict, match=f"'{name}' is taken"):
            started(source, served_model_name=name)


def test_missing_files_and_codes_are_refused(source: Checkpoint) -> None:
    source.state, source.state_reason = "missing", "it is gone."
    with pytest.raises(Conflict, match="tiny is missing: it is gone"):
        started(source)
    source.state = "available"
    item = EncodedTensor("a", (1, 1), "blazr", {}, form="int4")
    source.inspection["spec"] = replace(checkpoint_inspection(source).spec, encoded=(item,)).to_dict()
    with pytest.raises(UnsupportedFormat, match="tiny was written by a quantisation; quantise the model that"):
        started(source)
    assert not Quantisation.objects.exists()


def test_the_disk_must_have_the_result_beside_open_uploads(source: Checkpoint, monkeypatch) -> None:
    upload = Upload.objects.create(served_model_name="new", size_bytes=90, active_at=timezone.now())
    UploadFile.objects.create(upload=upload, number=0, name="config.json", size_bytes=90)
    monkeypatch.setattr(storage, "free_bytes", lambda: DISK_RESERVE_BYTES + 90 + 1000)
    with pytest.raises(StorageFull, match="may have 1001 bytes, the server's disk has 1000 to give; free some space"):
        started(source, max_bytes=1001)
    with pytest.raises(StorageFull, match=f"may have {source.size_bytes} bytes"):
        started(source)


def test_one_runs_at_a_time(source: Checkpoint, child_script: Install) -> None:
    child_script(COPY)
    row = Quantisation.objects.create(
        source=source, source_name="tiny", served_model_name="a", max_kl=1.0, progress=0.4, active_at=timezone.now()
    )
    with pytest.raises(QueueFull, match=r"another quantisation is running \(tiny, 40% done\)") as refused:
        started(source)
    assert refused.value.retry_after_s
    with pytest.raises(IntegrityError), transaction.atomic():  # by the database itself
        Quantisation.objects.create(source_name="b", served_model_name="b", active_at=timezone.now())
    quantisation_cancel(quantisation_id=row.pk)
    assert started(source).state == "done"


# --- failures ------------------------------------------------------------------------------------

WRITE = "pathlib.Path(request['target']).mkdir()\npathlib.Path(request['target'], 'model.safetensors').touch()\n"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("send(error={'class': 'InvalidRequest', 'message': 'allow more.'})", "allow more."),
        ("sys.exit(1)", "exit status 1"), ("", "without a result"), ("print('what?')", "its log has details"),
        ("send(result={})", "model.safetensors has 0 bytes"),  # a directory with an empty weight file
    ],
)  # fmt: skip
def test_failures_leave_a_reason_and_no_file(
    script: str, reason: str, source: Checkpoint, child_script: Install, storage_dirs: Path
) -> None:
    child_script(WRITE + script)
    row = started(source)
    assert row.state == "failed"
    assert reason in row.reason
    assert left_behind(storage_dirs) == []
    assert Checkpoint.objects.count() == 1


def test_a_full_disk_is_said(source: Checkpoint, child_script: Install, monkeypatch, storage_dirs: Path) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    child_script(COPY)
    monkeypatch.setattr(storage, "publish_file", full)
    row = started(source)
    assert (row.state, "no room" in row.reason) == ("failed", True)
    assert left_behind(storage_dirs) == []


def test_a_deleted_source_is_said(source: Checkpoint) -> None:
    row = Quantisation.objects.create(
        source=source, source_name="tiny", served_model_name="a", max_kl=1.0, active_at=timezone.now()
    )
    services.checkpoint_delete(checkpoint=source)
    QUANTISATIONS.run(row.pk)
    assert (QUANTISATIONS.get(row.pk).state, QUANTISATIONS.get(row.pk).reason) == ("failed", "tiny was deleted.")


# --- progress and cancelling -------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_progress_is_in_the_row_and_a_cancel_leaves_nothing(
    source: Checkpoint, child_script: Install, storage_dirs: Path, monkeypatch
) -> None:
    monkeypatch.setattr(checkpoint_jobs, "TICK_S", 0.02)
    directory = child_script(
        WRITE + "(directory / 'pid').write_text(str(os.getpid()))\n"
        "send(progress=0.5, stage='measuring ' + 'x' * 300)\ntime.sleep(60)\n"
    )
    row = started(source, wait=False)
    wait_until(lambda: QUANTISATIONS.get(row.pk).progress, 60, "the progress")
    seen = QUANTISATIONS.get(row.pk)
    assert (seen.state, seen.progress, len(seen.stage)) == ("running", 0.45, 200)
    with pytest.raises(QueueFull):
        started(source)
    assert left_behind(storage_dirs)
    cancelled = quantisation_cancel(quantisation_id=row.pk, username="vera")
    assert (cancelled.state, cancelled.reason, cancelled.stage) == ("cancelled", "cancelled by vera", "")
    pid = int((directory / "pid").read_text())
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), 60, "the child's end")
    wait_until(
        lambda: not any(thread.name == f"quantisation-{row.pk}" for thread in threading.enumerate()), 60, "the end"
    )
    assert left_behind(storage_dirs) == []
    assert quantisation_cancel(quantisation_id=row.pk).reason == "cancelled by vera"


def test_a_cancel_while_the_files_are_read_back_registers_nothing(
    source: Checkpoint, child_script: Install, storage_dirs: Path, monkeypatch
) -> None:
    child_script(COPY)
    monkeypatch.setattr(checkpoint_jobs, "TICK_S", 0.0)

    def cancel_meanwhile(path: Path, on_bytes: Callable[[int], None]) -> str:
        quantisation_cancel(quantisation_id=Quantisation.objects.get().pk)
        on_bytes(1)
        raise AssertionError("it goes on")

    monkeypatch.setattr(storage, "sha256_file", cancel_meanwhile)
    assert started(source).state == "cancelled"
    assert left_behind(storage_dirs) == []


def test_a_cancel_at_the_last_moment_registers_nothing(
    source: Checkpoint, child_script: Install, storage_dirs: Path, monkeypatch
) -> None:
    child_script(COPY)
    register = quantisations.checkpoint_register

    def cancel_then_register(**members: object) -> Checkpoint:
        quantisation_cancel(quantisation_id=Quantisation.objects.get().pk)
        return register(**members)

    monkeypatch.setattr(quantisations, "checkpoint_register", cancel_then_register)
    # The cancellation was in the transaction of the test's thread, and goes with the rest of it.
    row = started(source)
    assert row.state != "done"
    assert Checkpoint.objects.count() == 1
    assert left_behind(storage_dirs) == []


def test_an_outage_of_the_database_costs_no_work(source: Checkpoint, monkeypatch, caplog) -> None:
    row = Quantisation.objects.create(source_name="a", served_model_name="b", max_kl=1.0, active_at=timezone.now())
    monkeypatch.setattr(checkpoint_jobs, "TICK_S", 0.0)
    monkeypatch.setattr(checkpoint_jobs, "close_old_connections", lambda: None)  # the test's transaction is open
    report = checkpoint_jobs.Report(QUANTISATIONS, row)
    with monkeypatch.context() as patch:
        patch.setattr(QUANTISATIONS, "rows", Away)
        report(0.3, "measuring")
    assert "the database is away" in caplog.text
    report()
    row.refresh_from_db()
    assert (row.progress, row.stage) == (0.3, "measuring")


class Away:
    """The rows while the database can't be reached."""

    def filter(self, **_: object) -> None:
        raise OperationalError("the database is away")


def test_an_outage_at_the_end_costs_no_work(source: Checkpoint, child_script: Install, monkeypatch) -> None:
    child_script(COPY)
    monkeypatch.setattr(checkpoint_jobs, "OUTAGE_PAUSES_S", (0.0, 0.0))
    monkeypatch.setattr(checkpoint_jobs, "close_old_connections", lambda: None)  # this test's transaction is in it
    register, outages = quantisations.checkpoint_register, []

    def fail_at_first(**options):
        if len(outages) < 2:
            outages.append(options)
            raise OperationalError("the server closed the connection unexpectedly")
        return register(**options)

    monkeypatch.setattr(quantisations, "checkpoint_register", fail_at_first)
    row = started(source)
    assert (row.state, row.reason, len(outages)) == ("done", "", 2)


def test_what_is_done_is_not_cancelled(source: Checkpoint, child_script: Install) -> None:
    child_script(COPY)
    with pytest.raises(Conflict, match="delete the model tiny-quantised instead"):
        quantisation_cancel(quantisation_id=started(source).pk)
    with pytest.raises(NotFound):
        quantisation_cancel(quantisation_id=uuid.uuid4())


# --- dead processes ----------------------------------------------------------------------------


def test_a_row_whose_process_died_fails_and_makes_way(
    source: Checkpoint, child_script: Install, storage_dirs: Path
) -> None:
    child_script(COPY)
    row = Quantisation.objects.create(
        source=source, source_name="tiny", served_model_name="a", max_kl=1.0,
        active_at=timezone.now() - checkpoint_jobs.START_LIMIT - timedelta(seconds=1),
    )  # fmt: skip
    (storage.upload_path(row.pk) / "checkpoint").mkdir(parents=True)
    (storage.upload_path(row.pk) / "checkpoint" / "model.safetensors").write_bytes(b"half")
    assert started(source).state == "done"
    ended = QUANTISATIONS.get(row.pk)
    assert (ended.state, ended.reason) == ("failed", "the server stopped while it quantised; start it again")
    assert not storage.upload_path(row.pk).exists()


def test_a_row_that_starts_just_now_is_left_alone() -> None:
    Quantisation.objects.create(source_name="a", served_model_name="b", max_kl=1.0, active_at=timezone.now())
    assert QUANTISATIONS.sweep() == 0


def test_old_rows_are_deleted() -> None:
    for state in ("done", "failed", "cancelled"):
        Quantisation.objects.create(
            source_name="a", served_model_name="b", max_kl=1.0, state=state,
            active_at=timezone.now() - checkpoint_jobs.KEEP_ROWS - timedelta(seconds=1),
        )  # fmt: skip
    assert QUANTISATIONS.sweep() == 0
    assert not Quantisation.objects.exists()
