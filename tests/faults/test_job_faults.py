"""Jobs, files and batches while processes die, sweep at once and clients retry or cancel: the ledger stays exact."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults import job_rows
from tests.faults.work import Work, right_tokens

pytestmark = pytest.mark.live

SEED = 1


@pytest.fixture(scope="module")
def right(running_site) -> list[list[int]]:
    """The tokens of an undisturbed run."""
    return right_tokens(running_site)


@pytest.fixture
def work(site, right) -> Iterator[Work]:
    made = Work(site, right)
    yield made
    made.close()


@pytest.mark.fault(
    "F02",
    provoked="`kill -9` of a worker at two random moments of a batch of 100 lines (the long form: 20 of 500)",
    holds="every custom_id once, with the tokens of an undisturbed run; lines that were running start again, no others",
)
def test_f02_a_batch_outlives_its_workers(site, work):
    job_rows.kills_under_a_batch(site, work, number=2, lines=100, seed=SEED)


@pytest.mark.fault(
    "F05",
    provoked="death of a web process between the commit of a job and its hint, and between the commit of a file and "
    "the response; the client sends the request again with its idempotency key",
    holds="one job, one file and one batch, under the ids that the client gets; the job starts within 5 s",
)
def test_f05_what_a_web_process_stored_before_its_death_is_there_once(site, work):
    job_rows.deaths_of_a_web_process(site, work, job_rows.WEB_POINTS[:2])


@pytest.mark.fault(
    "F06",
    provoked="the connection breaks before the response; 100 clients send the request with its key at once, to two web "
    "processes; the same for a batch",
    holds="all get the id of the one job, and of the one batch",
)
def test_f06_a_hundred_retries_make_one_job(site, work):
    job_rows.retries_at_once(site, work, number=100)


@pytest.mark.fault(
    "F07",
    provoked="200 sweeps (the long form: 1,000) by two processes at once beside those of the workers, one of the two "
    "killed and replaced, while the leases of running jobs and lines lapse",
    holds="every job and line ends once, with the right tokens and one charge",
)
def test_f07_sweeps_at_once_queue_nothing_twice(site, work):
    job_rows.sweeps_at_once(site, work, number=200, jobs=16, seed=SEED)


@pytest.mark.fault(
    "F28",
    provoked="the window of a batch ends while its lines run",
    holds="the batch is expired; finished lines are in the output, all others in the error file as batch_expired",
)
def test_f28_a_batch_past_its_window_has_all_its_lines(site, work):
    job_rows.window_that_ends(site, work, lines=300)


@pytest.mark.fault(
    "F29",
    provoked="cancels of 30 jobs and three batches at random moments (the long form: 1,000)",
    holds="each ends once, as cancelled or whole; lines of a batch sum up; the charge is what is stored; from the "
    "cancel to the end at most 2 s (median)",
)
def test_f29_cancels_at_random_moments_leave_one_end(site, work):
    job_rows.cancels_at_random_moments(site, work, number=30, lines=30, seed=SEED)
