"""Damaged rows are left out, named in one line of the log, and stop no other row."""

from __future__ import annotations

import logging

import pytest

from inference.batches.services import batch_list
from inference.files.services import file_list
from inference.models import GenerationJob, StoredFile
from inference.models.readable_rows import readable_rows
from inference.values.principal import LOCAL
from tests.inference.batches.fakes import line, make_batch
from tests.inference.jobs.submissions import submit
from tests.inference.rows import damage, make_checkpoint

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _model(transactional_db):
    make_checkpoint()


def test_readable_rows_fill_the_page_and_damaged_ones_are_one_line(caplog):
    jobs = [submit()[0] for _ in range(3)]
    damage(jobs[1], "job_id")
    caplog.set_level(logging.WARNING)
    assert readable_rows(GenerationJob.objects.all(), 2) == [jobs[2], jobs[0]]
    (record,) = caplog.records
    assert record.getMessage().startswith("1 damaged rows of the table inference_generationjob are left out")
    assert record.getMessage().endswith(f"keys {jobs[1].pk}")


def test_damaged_batches_and_files_are_left_out():
    batches = [make_batch([line("a")]), make_batch([line("b")])]
    files = list(StoredFile.objects.order_by("pk"))
    damage(batches[0], "created_at", "2026-13-45 00:00:00")
    damage(files[0], "created_at", "2026-13-45 00:00:00")
    assert batch_list(principal=LOCAL, after=None, limit=10) == [batches[1]]
    assert file_list(principal=LOCAL, purpose=None, after=None, limit=10, oldest_first=True) == [files[1]]
