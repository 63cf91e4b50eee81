"""A short campaign of random faults: no accepted job, line or stream is lost, doubled or wrong."""

from __future__ import annotations

import json
import sqlite3

import pytest

from inference.jobs.claims import MAX_ATTEMPTS
from inference.jobs.sweep import GIVEN_UP
from tests.faults.campaign import TARGETS, Campaign, fault_sequence
from tests.faults.records import Records
from tests.faults.site import Site

NUM_JOBS = 40
NUM_FAULTS = 6
SEED = 1


def test_a_seed_gives_the_same_faults_and_every_target_has_its_share():
    faults = fault_sequence(200, 3)
    assert faults == fault_sequence(200, 3)
    assert faults != fault_sequence(200, 4)
    assert sorted(fault.target for fault in faults) == sorted(TARGETS * 40)
    assert 40 < sum(fault.stopped_s > 0 for fault in faults) < 120


@pytest.mark.live
@pytest.mark.fault(
    "F11",
    provoked="a seeded sequence of `kill -9` and SIGSTOP of workers, web processes, Redis and beat, while jobs, a "
    "batch and streams run; clients send again what broke, with the same idempotency key",
    holds="accepted jobs = rows = results; each line in the output once; the tokens of an undisturbed run; usage = sum "
    "of tokens; no lease, message, admitted request, chunk or temporary file is left",
)
def test_f11_random_faults_lose_and_double_nothing(site):
    site.clear()
    campaign = Campaign(site, jobs=NUM_JOBS, kills=NUM_FAULTS, seed=SEED)
    campaign.run()
    records = Records(site, campaign)
    records.check()
    assert records.problems == []
    assert records.num_expired <= 2  # each takes two kills within milliseconds
    assert sorted(campaign.jobs) == list(range(NUM_JOBS))
    _damage(site)
    found = "\n".join(records.compared())
    assert f"lost: job {NUM_JOBS - 1} " in found
    assert "duplicated: 1 jobs" in found
    assert "has 40 tokens, its charge is 1\n" in found
    assert "the days count" in found
    assert records.num_set_aside == 1


def _damage(site: Site) -> None:
    """What the ledger has to notice: a lost job, a doubled one, a wrong charge, one that was given up."""
    jobs, usage = "inference_generationjob", "inference_usagerecord"
    with sqlite3.connect(site.directory / "db.sqlite3", timeout=20) as database:
        names = [row[1] for row in database.execute(f"pragma table_info({jobs})")]
        new = {"id": "null", "job_id": "'twice'", "idempotency_key": "null"}
        values = ", ".join(new.get(name, name) for name in names)
        label = f"campaign-{SEED}-{NUM_JOBS - 1}"
        database.execute(f"insert into {jobs} select {values} from {jobs} where idempotency_key = ?", (label,))
        database.execute(f"delete from {jobs} where idempotency_key = ?", (label,))
        charged = f"select 'job-' || job_id from {jobs} where idempotency_key = ?"
        database.execute(
            f"update {usage} set completion_tokens = 1 where request_id = ({charged})", (f"campaign-{SEED}-0",)
        )
        database.execute(
            f"update {jobs} set state = 'failed', attempts = {MAX_ATTEMPTS}, error = ? where idempotency_key = ?",
            (json.dumps(GIVEN_UP.to_dict()), f"campaign-{SEED}-1"),
        )
