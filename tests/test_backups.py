"""The commands of docs/operations.md: what was backed up is restored by them, and answers as before."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.db import connection

from inference.access.api_keys import api_key_create, principal_of_tenant
from inference.dialects.openai.requests import plan_from_body
from inference.jobs.claims import job_finish, jobs_claim
from inference.jobs.services import JobRequest
from inference.models import JobState
from models_registry import uploads
from models_registry.models import Checkpoint
from tests.inference.batches.fakes import store_file
from tests.inference.jobs.submissions import submit
from tests.models_registry.detection.builders import small_hybrid, write_checkpoint
from tests.models_registry.test_uploads import begin, send

ROOT = Path(__file__).resolve().parents[1]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
LOOK = """
import asyncio, json, sys
import django
django.setup()
from inference.access.api_keys import principal_of_key
from inference.files.services import file_get
from inference.files.store import file_path
from inference.jobs.selectors import job_get, job_result
from models_registry.models import Checkpoint
from models_registry.services import checkpoint_files_verify
asked = json.loads(sys.argv[1])
principal = asyncio.run(principal_of_key("Bearer " + asked["key"]))
done, waiting = (job_get(job_id=name, principal=principal) for name in asked["jobs"])
row = Checkpoint.objects.get()
checkpoint_files_verify(row)
print(json.dumps({
    "tenant": principal.tenant,
    "file": file_path(file_get(file_id=asked["file"], principal=principal).sha256).read_text(),
    "result": job_result(done), "states": [done.state, waiting.state],
    "model": [row.served_model_name, row.state],
}))
"""
"""What a process of the restored site finds."""


def commands(heading: str) -> str:
    """The first block of commands below a heading."""
    found = re.search(r"```\n(.*?)```", OPERATIONS.split(f" {heading}\n", 1)[1], re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def place(tmp_path, settings):
    """A directory with a data directory in it."""
    data = tmp_path / "site" / "data"
    for name in ("BLOBS", "CHECKPOINTS", "UPLOADS", "FILES"):
        setattr(settings, f"BLAZR_{name}_DIR", data / name.lower())
        (data / name.lower()).mkdir(parents=True)
    data.chmod(0o700)
    return data.parent


def store(place: Path, source: Path) -> dict[str, Any]:
    """A key with a file, a job that has ended and one that waits, and an uploaded model."""
    shapes, config = small_hybrid()
    directory = write_checkpoint(source / "made", shapes, config)
    upload = begin(directory)
    send(upload, directory)
    uploads.upload_finish(upload_id=upload.pk, wait=True)
    row, key = api_key_create(name="owner")
    principal = principal_of_tenant(f"key:{row.pk}")
    plan = plan_from_body("completion", {"model": "sent", "prompt": [1, 2, 3], "max_tokens": 2})
    jobs = submit(JobRequest(plan), JobRequest(plan), principal=principal)
    [claimed] = jobs_claim(owner="w", limit=1)
    assert job_finish(key=claimed.key, fence=claimed.fence, state=JobState.SUCCEEDED, result={"text": "kept"})
    stored = store_file([b"a line of a file"], principal)
    data = place / "data"
    with connection.cursor() as cursor:
        cursor.execute("VACUUM INTO %s", [str(data / "db.sqlite3")])
    (data / "db.sqlite3").chmod(0o600)
    (data / "secret_key").write_text(django_settings.SECRET_KEY)
    (data / "secret_key").chmod(0o600)
    names = [str(job.job_id) for job in sorted(jobs, key=lambda job: job.pk != claimed.key)]
    return {"key": key, "file": stored.file_id, "jobs": names}


def run(place: Path, command: list[str]) -> str:
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("BLAZR_", "DJANGO_", "REDIS_"))}
    variables |= {
        "BLAZR_DATA_DIR": str(place / "data"), "PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": "blazr_site.settings",
    }  # fmt: skip
    done = subprocess.run(command, cwd=place, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="the page's commands need sqlite3")
@pytest.mark.django_db(transaction=True)
def test_a_backup_is_restored_by_the_commands_of_the_page(place, tmp_path):
    if connection.vendor != "sqlite":
        pytest.skip("the commands are SQLite's")
    asked = store(place, tmp_path)
    model = Checkpoint.objects.get()
    run(place, ["bash", "-ec", commands("Backups")])
    assert all(path.stat().st_mode & 0o077 == 0 for path in (place / "BACKUP", place / "BACKUP" / "db.sqlite3"))
    for path in (place / "data" / "db.sqlite3", place / "data" / "secret_key"):
        path.write_bytes(b"lost")
    python = commands("Restore").replace("python manage.py", f"{sys.executable} {ROOT / 'manage.py'}")
    assert "sent: available" in run(place, ["bash", "-ec", python])
    found = json.loads(run(place, [sys.executable, "-c", LOOK, json.dumps(asked)]))
    assert found["tenant"].startswith("key:")
    assert found["file"] == "a line of a file\n"
    assert (found["result"], found["states"]) == ({"text": "kept"}, ["succeeded", "queued"])
    assert found["model"] == [model.served_model_name, model.state]
    links = [path.stat().st_nlink for path in (place / "data" / "blobs").iterdir() if path.is_file()]
    assert max(links) == 2, "blobs and checkpoints share their files"
