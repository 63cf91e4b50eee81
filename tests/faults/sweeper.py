"""Sweep jobs and lines of lost workers, one sweep after the other: ``python -m tests.faults.sweeper NUMBER``."""

from __future__ import annotations

import sys

import django


def main(number: int) -> None:
    """Sweep so often; a line on the standard output says when it begins."""
    django.setup()
    from inference.batches.lines import lines_sweep  # Django has to be set up
    from inference.jobs.sweep import jobs_sweep  # Django has to be set up

    sys.stdout.write("begun\n")
    sys.stdout.flush()
    for _ in range(number):
        jobs_sweep()
        lines_sweep()


if __name__ == "__main__":
    main(int(sys.argv[1]))
