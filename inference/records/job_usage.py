"""Charge jobs that end outside of a worker for the tokens that their rows count."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from inference.models import GenerationJob
from inference.records.usage import Usage, usage_now, usage_store


def job_usage_id(job_id: uuid.UUID) -> str:
    return f"job-{job_id.hex}"


def jobs_charge(jobs: Iterable[GenerationJob], *, outcome: str) -> None:
    """Store the usage of jobs in the transaction that ends them, so that each job is charged once.

    A row counts the tokens of its stored events. Times in the engine, and cached tokens, died with the worker.

    Args:
        jobs: The rows, with the counts of their last stored events.
        outcome: ``cancelled``, or an error's code.
    """
    now = usage_now()
    usage_store(
        records=[
            Usage(
                request_id=job_usage_id(job.job_id),
                tenant=job.tenant,
                endpoint="job",
                model=job.model,
                outcome=outcome,
                prompt_tokens=job.prompt_tokens,
                completion_tokens=job.completion_tokens,
                cached_tokens=0,
                ttft_s=None,
                duration_s=0.0,
                created_at=now,
            )
            for job in jobs
            if job.prompt_tokens or job.completion_tokens
        ]
    )
