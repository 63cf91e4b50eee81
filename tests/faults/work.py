"""Jobs, files and batches of clients that send again what broke, and the check of what became of each."""

from __future__ import annotations

import itertools
import json
import secrets
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import httpx

from tests.faults.ledger import Entry, Ledger
from tests.faults.records import written_files
from tests.faults.site import Site, wait_until

NUM_VARIANTS = 8
"""Different requests; the right tokens of each are computed once."""
RETRIED = (409, 429, 503)
"""Statuses after which a client sends its request again: the same key is in use, or the server is busy or away."""
GIVEN_UP_AFTER_S = 60.0


def variant(number: int) -> Entry:
    """One of the different requests; every second one is sampled with a seed."""
    number %= NUM_VARIANTS
    return Entry([40 + number, 50, 60, 70 + number], 60 + 20 * number, seed=number if number % 2 else None)


def right_tokens(site: Site) -> list[list[int]]:
    """The tokens of each variant in an undisturbed run."""
    ledger = Ledger(site)
    for number in range(NUM_VARIANTS):
        entry = variant(number)
        ledger.send(entry.prompt, entry.max_tokens, entry.seed)
    ledger.wait(110)
    assert [entry.ends for entry in ledger.entries] == [["done"]] * NUM_VARIANTS, ledger.entries
    return [entry.tokens for entry in ledger.entries]


def job_body(number: int) -> dict[str, Any]:
    """The body of POST /api/jobs."""
    return {"endpoint": "completion", "body": variant(number).body}


def batch_file(num_lines: int) -> bytes:
    """The input file of a batch with lines r0, r1, …"""
    return "\n".join(
        json.dumps({"custom_id": f"r{n}", "method": "POST", "url": "/v1/completions", "body": variant(n).body})
        for n in range(num_lines)
    ).encode()


class Work:
    """What clients have submitted to a site, from rows of nobody to the end of all of it.

    Args:
        site: The processes.
        right: The right tokens by variant.

    Attributes:
        jobs: Ids of accepted jobs, by number.
        batches: Number of lines by id of the accepted batches.
        label: Beginning of the idempotency keys; another one for each object, as the rows of earlier ones are gone.
    """

    def __init__(self, site: Site, right: list[list[int]]) -> None:
        self._site = site
        self._right = right
        self._http = httpx.Client(timeout=10)
        self.label = secrets.token_hex(4)
        self.jobs: dict[int, str] = {}
        self.batches: dict[str, int] = {}
        self._site.clear()

    def close(self) -> None:
        """Delete the rows, so that another test's ledger doesn't count them."""
        self._site.clear()
        self._http.close()

    # --- clients ---------------------------------------------------------------------------------

    def post(self, path: str, key: str, *, first: int = 0, **members: Any) -> Any:
        """POST with an idempotency key, again and again until the response has arrived.

        Args:
            first: Number of the web process that gets the first attempt; the next ones take turns.
        """
        given_up_at = time.monotonic() + GIVEN_UP_AFTER_S
        problem: object = None
        for attempt in itertools.count(first):
            url = self._site.urls[attempt % len(self._site.urls)]
            try:
                headers = {"Idempotency-Key": f"{self.label}-{key}"}
                response = self._http.post(f"{url}{path}", headers=headers, **members)
            except httpx.HTTPError as error:
                problem = error
            else:
                if response.is_success:
                    return response.json()
                problem = response.text
                assert response.status_code in RETRIED, f"{path}: {response.status_code} {response.text[:300]}"
            assert time.monotonic() < given_up_at, f"{path} is refused for {GIVEN_UP_AFTER_S:g} s: {problem!r}"
            time.sleep(0.05)
        raise AssertionError

    def submit_job(self, number: int, *, first: int = 0) -> str:
        """Submit a job, and return its id."""
        found: str = self.post("/api/jobs", f"job-{number}", first=first, json=job_body(number))["data"][0]["id"]
        self.jobs[number] = found
        return found

    def upload(self, num_lines: int, name: str, *, first: int = 0) -> str:
        """Upload the file of a batch, and return its id."""
        form = {"files": {"file": ("in.jsonl", batch_file(num_lines))}, "data": {"purpose": "batch"}}
        found: str = self.post("/v1/files", f"file-{name}", first=first, **form)["id"]
        return found

    def submit_batch(self, num_lines: int, name: str, *, first: int = 0) -> str:
        """Upload a file, submit its batch, and return the batch's id."""
        file_id = self.upload(num_lines, name, first=first)
        body = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
        found: str = self.post("/v1/batches", f"batch-{name}", first=first, json=body)["id"]
        self.batches[found] = num_lines
        return found

    # --- what became of it -----------------------------------------------------------------------

    def wait(self, timeout_s: float) -> None:
        """Wait until every job and every batch has ended."""
        wait_until(self._all_ended, timeout_s, "the end of all jobs and batches")

    def _all_ended(self) -> bool:
        open_jobs = self._site.rows("select 1 from inference_generationjob where finished_at is null limit 1")
        return not open_jobs and not self._site.rows("select 1 from inference_batch where ended_at is null limit 1")

    def num_results(self) -> int:
        """Lines that have ended."""
        ((number,),) = self._site.rows("select count(*) from inference_batchresult")
        return int(number)

    def check(
        self,
        *,
        cancelled: Collection[str] = (),
        endings: Mapping[str, str] | None = None,
        codes: Mapping[str, str] | None = None,
    ) -> None:
        """Check that all that was accepted ended once, exactly, with one charge, and that nothing is left.

        Args:
            cancelled: Ids of jobs that clients have cancelled; they end as cancelled, or had ended before.
            endings: States of batches that don't complete, by id.
            codes: Code of the lines without a response, by the id of their batch.
        """
        problems = [*self._jobs(cancelled), *self._batches(endings or {}, codes or {}), *self._usage(), *self._left()]
        assert not problems, "\n".join(problems)

    def _jobs(self, cancelled: Collection[str]) -> Iterator[str]:
        columns = "job_id, state, attempts, result, error, completion_tokens, lease_until"
        rows = {row[0]: row for row in self._site.rows(f"select {columns} from inference_generationjob")}
        accepted = {job_id.replace("-", ""): number for number, job_id in self.jobs.items()}
        may_be_cancelled = {job_id.replace("-", "") for job_id in cancelled}
        if set(rows) != set(accepted):
            yield f"jobs lost: {set(accepted) - set(rows)}, not accepted: {set(rows) - set(accepted)}"
        charges = dict(self._site.rows("select request_id, completion_tokens from inference_usagerecord"))
        for job_id, number in accepted.items():
            _, state, attempts, result, error, tokens, lease = rows[job_id]
            expected = self._right[number % NUM_VARIANTS]
            if charges.get(f"job-{job_id}", 0) != tokens:
                yield f"job {number} has {tokens} tokens, its charge is {charges.get(f'job-{job_id}')}"
            if lease is not None:
                yield f"job {number} is {state} and holds a lease"
            if state == "succeeded":
                if json.loads(result)["choices"][0]["token_ids"] != expected or tokens != len(expected):
                    yield f"job {number} has the wrong tokens ({tokens} of {len(expected)}, attempt {attempts})"
            elif state != "cancelled" or job_id not in may_be_cancelled:
                yield f"job {number} is {state} after {attempts} attempts: {error}"
            elif result or tokens > len(expected):
                yield f"job {number} was cancelled and has {tokens} of {len(expected)} tokens and a result"

    def _batches(self, endings: Mapping[str, str], codes: Mapping[str, str]) -> Iterator[str]:
        columns = (
            "batch_id, state, num_total, num_completed, num_failed, completion_tokens, output_file_id, error_file_id"
        )
        rows = {row[0]: row[1:] for row in self._site.rows(f"select {columns} from inference_batch")}
        if set(rows) != set(self.batches):
            yield f"batches {set(rows)}, accepted were {set(self.batches)}"
        charges: Counter[str] = Counter()
        for name, tokens in self._site.rows(
            "select request_id, completion_tokens from inference_usagerecord where endpoint = 'batch'"
        ):
            charges[name.rpartition("-")[0]] += tokens
        for batch_id, num_lines in self.batches.items():
            state, num_total, num_completed, num_failed, tokens, output, errors = rows[batch_id]
            if state != endings.get(batch_id, "completed"):
                yield f"{batch_id} is {state}"
            whole, unrun = self._content(output), self._content(errors)
            ids = Counter(line["custom_id"] for line in [*whole, *unrun])
            if num_total and dict(ids) != {f"r{number}": 1 for number in range(num_lines)}:
                yield f"{batch_id} has {len(ids)} of {num_lines} lines, twice: {[n for n in ids if ids[n] > 1]}"
            if (num_total, num_completed, num_failed) not in ((0, 0, 0), (num_lines, len(whole), len(unrun))):
                yield f"{batch_id} counts {num_completed} + {num_failed} of {num_total}; {len(whole)} + {len(unrun)}"
            made = 0
            for line in whole:
                found = line["response"]["body"]["choices"][0]["token_ids"]
                made += len(found)
                if found != self._right[int(line["custom_id"][1:]) % NUM_VARIANTS]:
                    yield f"{batch_id} {line['custom_id']} has the wrong tokens"
            for line in unrun:
                if line["error"] is None or line["error"]["code"] != codes.get(batch_id):
                    yield f"{batch_id}: {line}"
            if not made == tokens == charges[batch_id]:
                yield f"{batch_id} has {made} tokens, counts {tokens}, is charged {charges[batch_id]}"

    def _content(self, file_id: str) -> list[dict[str, Any]]:
        if not file_id:
            return []
        response = self._http.get(f"{self._site.urls[0]}/v1/files/{file_id}/content")
        return [json.loads(line) for line in response.raise_for_status().text.splitlines()]

    def _usage(self) -> Iterator[str]:
        for column in ("prompt_tokens", "completion_tokens"):
            ((records,),) = self._site.rows(f"select coalesce(sum({column}), 0) from inference_usagerecord")
            ((days,),) = self._site.rows(f"select coalesce(sum({column}), 0) from inference_usageday")
            if records != days:
                yield f"the days count {days} {column}, the records {records}"

    def _left(self) -> Iterator[str]:
        for table, condition in (
            ("jobchunk", "true"),
            ("batchline", "lease_until is not null"),
            ("batch", "lease_until is not null"),
        ):
            ((number,),) = self._site.rows(f"select count(*) from inference_{table} where {condition}")
            if number:
                yield f"{number} rows of {table} left"
        if left := written_files(self._site):
            yield f"{len(left)} unfinished files"
