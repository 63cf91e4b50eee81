"""Measure spans of usage over many records of one day: ``python -m bench.usage_spans [--records 1000000]``.

Prints what computing each length takes, and what the overview's figures take to be read; the rows are in a temporary
SQLite database.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

SEED = 0
NUM_MODELS = 3
_COLUMNS = (
    "request_id", "tenant", "endpoint", "model", "outcome", "prompt_tokens", "completion_tokens", "cached_tokens",
    "ttft_s", "itl_s", "duration_s", "queue_s", "engine_s", "prompt", "output", "created_at", "cache_outcome", "plan",
    "phases",
)  # fmt: skip


def rows(number: int, now: datetime) -> Iterator[tuple[Any, ...]]:
    """Yield records of the day before ``now``, one in fifty of them failed."""
    draw = random.Random(SEED)
    for index in range(number):
        at = now - timedelta(seconds=86400 * draw.random())
        ttft_s, itl_s = draw.lognormvariate(-2, 1), 0.03 * draw.lognormvariate(0, 0.5)
        yield (
            f"r{index}", f"key:{index % 7}", "chat", f"m{index % NUM_MODELS}",
            "completed" if index % 50 else "generation_failed", 200, 100, 100, ttft_s, itl_s, ttft_s + 100 * itl_s,
            0.01, 4.0, "", "", at.strftime("%Y-%m-%d %H:%M:%S.%f"), draw.choice(("hit", "cold", "diverged")), "", "",
        )  # fmt: skip


def insert(number: int, now: datetime) -> None:
    """Store the records of ``rows``."""
    from django.db import connection

    names, marks = ", ".join(_COLUMNS), ", ".join("%s" for _ in _COLUMNS)
    with connection.cursor() as cursor:
        cursor.executemany(f"insert into inference_usagerecord ({names}) values ({marks})", rows(number, now))


def timed(name: str, work: Callable[[], object]) -> None:
    """Print the time that ``work`` takes: by the clock, and of the processor in Python's thread."""
    begin, cpu = time.perf_counter(), time.thread_time()
    outcome = work()
    sys.stdout.write(
        f"{name:24} {time.perf_counter() - begin:8.3f} s {time.thread_time() - cpu:8.3f} s CPU  {outcome}\n"
    )


def measure(number: int) -> None:
    """Fill the database and measure."""
    from django.http import QueryDict
    from django.utils import timezone

    from inference.pages.health import failed_requests
    from inference.pages.traffic import traffic
    from inference.records.span_rows import span_rows, spans_write
    from inference.records.usage_spans import PERIODS, last_begin, missing_begins

    now = timezone.now()
    insert(number, now)
    sys.stdout.write(f"{number:,} records of one day, {NUM_MODELS} models\n")
    for length_s in sorted(PERIODS):
        span = {"begin": last_begin(now, length_s), "length_s": length_s}
        timed(f"a span of {length_s} s", lambda span=span: f"{span_rows(**span)[0].requests:,} requests")
    due = [(begin, length_s) for length_s in sorted(PERIODS) for begin in missing_begins(now, length_s)]
    timed("all spans, once", lambda: f"{sum(spans_write(begin=begin, length_s=s) for begin, s in due)} rows")
    for name in ("hour", "day"):
        query = QueryDict(f"span={name}")
        timed(f"the page, last {name}", lambda query=query: f"{len(traffic(query)['charts'])} curves")
    timed("recent errors", lambda: f"{len(failed_requests())} requests")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        os.environ["BLAZR_DATA_DIR"] = directory
        os.environ["DJANGO_SETTINGS_MODULE"] = "blazr_site.settings"
        os.environ.pop("DATABASE_URL", None)
        import django
        from django.core.management import call_command

        from blazr_site.settings.storage import prepare_data_dir

        prepare_data_dir()
        django.setup()
        call_command("migrate", interactive=False, verbosity=0)
        measure(arguments.records)


if __name__ == "__main__":
    main()
