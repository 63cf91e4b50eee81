"""Jobs for tests: submitted, and with leases that have run out."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from inference.dialects.openai.requests import plan_from_body
from inference.jobs.services import JobRequest, jobs_submit
from inference.models import GenerationJob, JobState
from inference.values.principal import LOCAL, Principal

KEY_A = Principal("key", "key:1", "a", 1)
KEY_B = Principal("key", "key:2", "b", 2)


def request(prompt: str = "Hi", key: str | None = None, **members) -> JobRequest:
    return JobRequest(plan_from_body("completion", {"model": "tiny", "prompt": prompt, **members}), key)


def submit(*requests: JobRequest, principal: Principal = LOCAL, label: str = "") -> list[GenerationJob]:
    return jobs_submit(requests=requests or [request()], principal=principal, batch_label=label)


def lapse() -> None:
    """Let every lease run out."""
    GenerationJob.objects.filter(state=JobState.RUNNING).update(lease_until=timezone.now() - timedelta(seconds=1))
