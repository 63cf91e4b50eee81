"""Jobs under every order of claims, crashes, late writes, cancels and sweeps (Hypothesis)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from django.db import transaction
from django.utils import timezone
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from inference.dialects.openai.requests import plan_from_body
from inference.errors import GenerationFailed, QueueFull
from inference.jobs import hints
from inference.jobs.claims import (
    MAX_ATTEMPTS,
    ClaimedJob,
    NewChunk,
    job_finish,
    job_mark_alone,
    job_release,
    jobs_append,
    jobs_claim,
    jobs_heartbeat,
)
from inference.jobs.services import JobRequest, job_cancel, jobs_submit
from inference.jobs.sweep import jobs_abandon, jobs_sweep
from inference.models import TERMINAL_JOB_STATES, GenerationJob, JobChunk, JobState
from inference.values.principal import LOCAL
from tests.inference.rows import make_checkpoint

WORKERS = st.sampled_from(["w1", "w2"])


@dataclass
class Claim:
    """What a worker believes; it may be wrong."""

    job: ClaimedJob
    owner: str
    next_chunk: int
    tokens: list[int] = field(default_factory=list)
    runs_alone: bool = False


class Jobs(RuleBasedStateMachine):
    """Workers are only believed as far as the database lets them: a claim stays in the bundle after it was lost."""

    claims = Bundle("claims")

    def is_ours(self, claim: Claim) -> bool:
        """Whether the claim still counts: the job runs, and nobody has claimed it since."""
        row = GenerationJob.objects.get(pk=claim.job.key)
        return row.state == JobState.RUNNING and row.fence == claim.job.fence

    def __init__(self) -> None:
        super().__init__()
        GenerationJob.objects.all().delete()
        self.finals: dict[int, tuple[str, str]] = {}
        self.tokens: dict[int, list[int]] = {}
        self.next_token = 0
        self.finishes: dict[int, int] = {}
        self.fences: dict[int, int] = {}

    @initialize()
    def begin(self):
        self.submit(2, None)

    @rule(number=st.integers(1, 3), key=st.sampled_from([None, None, "a", "b"]))
    def submit(self, number, key):
        plan = plan_from_body("completion", {"model": "tiny", "prompt": f"p{key}"})
        before = GenerationJob.objects.count()
        known = key is not None and GenerationJob.objects.filter(idempotency_key=key).exists()
        rows = jobs_submit(requests=[JobRequest(plan, key)] * (number if key is None else 1), principal=LOCAL)
        assert GenerationJob.objects.count() - before == (0 if known else len(rows))
        for row in rows:
            self.tokens.setdefault(row.pk, [])

    @rule(target=claims, owner=WORKERS, suspects=st.booleans())
    def claim(self, owner, suspects):
        found = jobs_claim(owner=owner, limit=1, suspects=suspects)
        if not found:
            return multiple()
        (job,) = found
        assert job.fence > self.fences.get(job.key, 0)
        self.fences[job.key] = job.fence
        stored = [token for chunk in job.chunks for event in chunk for token in event["token_ids"]]
        assert stored == self.tokens[job.key], "a new attempt begins behind exactly what was stored"
        return Claim(job, owner, len(job.chunks))

    @rule(claim=claims, num=st.integers(1, 3))
    def append(self, claim, num):
        tokens = list(range(self.next_token, self.next_token + num))
        self.next_token += num
        event = {"request_id": "r", "attempt": 0, "index": 0, "type": "delta", "text": "", "token_ids": tokens}
        job, is_ours = claim.job, self.is_ours(claim)
        lost = jobs_append(chunks=[NewChunk(job.key, job.fence, claim.next_chunk, [event], 1, 0)])
        assert (not lost) == is_ours
        if not lost:
            self.tokens[job.key] += tokens
            claim.next_chunk += 1

    @rule(claim=claims, num=st.integers(0, 3))
    def append_and_crash(self, claim, num):
        """The worker dies inside the transaction: nothing of it may stay."""
        job = claim.job
        event = {"request_id": "r", "attempt": 0, "index": 0, "type": "delta", "text": "", "token_ids": [-1]}
        with pytest.raises(KeyboardInterrupt), transaction.atomic():
            jobs_append(chunks=[NewChunk(job.key, job.fence, claim.next_chunk, [event], 1, 0)])
            raise KeyboardInterrupt

    @rule(claim=claims)
    def heartbeat(self, claim):
        held = {(claim.job.key, claim.job.fence)}
        beat = jobs_heartbeat(owner=claim.owner, held=held)
        assert (beat.held == held) == self.is_ours(claim)

    @rule(claim=claims, state=st.sampled_from(TERMINAL_JOB_STATES))
    def finish(self, claim, state):
        job, is_ours = claim.job, self.is_ours(claim)
        finished = job_finish(
            key=job.key,
            fence=job.fence,
            state=state,
            result={"fence": job.fence} if state == JobState.SUCCEEDED else None,
            error=GenerationFailed("broken") if state == JobState.FAILED else None,
        )
        assert finished == is_ours
        if finished:
            self.finishes[job.key] = self.finishes.get(job.key, 0) + 1

    @rule(claim=claims, counts=st.booleans())
    def release(self, claim, counts):
        key, fence, is_ours = claim.job.key, claim.job.fence, self.is_ours(claim)
        is_counted = claim.runs_alone or claim.job.attempt < MAX_ATTEMPTS
        released = job_release(key=key, fence=fence, error=QueueFull("full"), counts=counts, is_counted=is_counted)
        assert released == is_ours

    @rule(claim=claims)
    def run_alone(self, claim):
        if claim.job.attempt == MAX_ATTEMPTS:
            claim.runs_alone = job_mark_alone(key=claim.job.key, fence=claim.job.fence)
            assert claim.runs_alone == self.is_ours(claim)

    @rule(claim=consumes(claims))
    def forget(self, claim):
        """The worker is gone for good."""

    @rule(target=claims, owner=WORKERS, suspects=st.booleans())
    def a_worker_pauses_and_another_takes_over(self, owner, suspects):
        self.time_passes()
        jobs_sweep()
        return self.claim(owner, suspects)

    @rule()
    def time_passes(self):
        GenerationJob.objects.filter(state=JobState.RUNNING).update(lease_until=timezone.now() - timedelta(seconds=1))

    @rule(owner=WORKERS)
    def worker_starts_again(self, owner):
        jobs_abandon(owner=owner)

    @rule()
    def sweep(self):
        jobs_sweep()

    @rule(data=st.data())
    def cancel(self, data):
        rows = list(GenerationJob.objects.order_by("pk"))
        if rows:
            job_cancel(job_id=data.draw(st.sampled_from(rows)).job_id, principal=LOCAL)

    @invariant()
    def nothing_is_lost_or_changed_after_its_end(self):
        rows = {row.pk: row for row in GenerationJob.objects.all()}
        assert set(rows) == set(self.tokens)
        for key, row in rows.items():
            assert row.attempts <= MAX_ATTEMPTS
            assert (row.lease_until is not None) == (row.state == JobState.RUNNING)
            if row.is_finished:
                final = (row.state, row.result)
                assert self.finals.setdefault(key, final) == final, "a final state changed"
                assert self.finishes.get(key, 0) <= 1
                assert not JobChunk.objects.filter(job=row).exists()
            else:
                assert key not in self.finals
                assert row.num_chunks == JobChunk.objects.filter(job=row).count()

    def teardown(self):
        """Whatever happened: a working worker ends every job that nobody has ended."""
        self.time_passes()
        for _ in range(200):
            jobs_sweep()
            claimed = jobs_claim(owner="last", limit=5) or jobs_claim(owner="last", limit=5, suspects=True)
            for job in claimed:
                assert job_finish(key=job.key, fence=job.fence, state=JobState.SUCCEEDED, result={})
            if not GenerationJob.objects.exclude(state__in=TERMINAL_JOB_STATES).exists():
                break
        else:
            raise AssertionError("a job is stuck")


def test_jobs_hold_their_promises(db, monkeypatch):
    make_checkpoint()
    monkeypatch.setattr(hints, "wake_workers", lambda: None)
    run_state_machine_as_test(
        Jobs,
        settings=settings(
            max_examples=60,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
