"""Compare what clients were promised in a campaign with the rows, the files and what is left in Redis."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import redis

from inference.files.store import is_abandoned
from inference.transport import keys as redis_keys
from tests.faults.campaign import NUM_VARIANTS, Campaign, variant
from tests.faults.ledger import Ledger
from tests.faults.site import REQUEST_TIMEOUT_S, Site, wait_until

FINISHED_WITHIN_S = 120.0
"""From the last fault to the end of the last job and of the batch, on a machine with other work."""
RELEASED_WITHIN_S = 20.0
"""From there to the release of everything in Redis: a message may wait for the end of a dead worker's lease."""
CRASHES = 3
"""A job, line or stream that lost its worker so often, at last while it ran alone, ends with an error that says so.

The ledger counts it, and it isn't lost: nothing tells a kill from outside from a crash of its own."""


class Records:
    """Checks one campaign on a site.

    Attributes:
        problems: What is lost, twice, wrong or left behind; empty: the campaign holds.
        num_set_aside: Jobs, lines and streams that ended with an error because they lost their worker three times.
        num_expired: Requests that held their place until their deadline: a worker was killed with the message in its
            hands, and the web process that would have sent it again was killed too.
    """

    def __init__(self, site: Site, campaign: Campaign) -> None:
        self._site = site
        self._campaign = campaign
        self.problems: list[str] = list(campaign.trouble)
        self.num_set_aside = 0
        self.num_expired = 0
        self._right: list[list[int]] = []

    def check(self) -> None:
        """Wait for the end of all work, then compare."""
        try:
            wait_until(self.all_ended, FINISHED_WITHIN_S, "the end of all jobs and of the batch")
        except AssertionError as error:
            states = self._rows("select state, count(*) from inference_generationjob group by 1")
            self.problems.append(f"{error}: {states}")
        self._right = self._right_tokens()
        self.problems += self.compared()
        self.problems += self._unreleased()

    def _unreleased(self) -> list[str]:
        """What is left for good; the admission of a request releases those past their deadline."""
        if left := self._left_after(RELEASED_WITHIN_S):
            self.num_expired = _size(self._site.client, redis_keys.OPEN_REQUESTS)
            if self.num_expired:
                time.sleep(REQUEST_TIMEOUT_S)
                self._right_tokens()
                left = self._left_after(RELEASED_WITHIN_S)
        return left

    def _left_after(self, timeout_s: float) -> list[str]:
        given_up_at = time.monotonic() + timeout_s
        while (left := list(self._left_behind())) and time.monotonic() < given_up_at:
            time.sleep(0.1)
        return left

    def compared(self) -> list[str]:
        """Compare rows, files and streams with what was accepted, and with the right tokens."""
        self.num_set_aside = 0
        return [*self._jobs(), *self._lines(), *self._streams(), *self._usage()]

    def _rows(self, query: str, *parameters: object) -> list[Any]:
        return self._site.rows(query, *parameters)

    def all_ended(self) -> bool:
        """Whether no job and no batch is open."""
        open_jobs = self._rows("select 1 from inference_generationjob where finished_at is null limit 1")
        return not open_jobs and not self._rows("select 1 from inference_batch where ended_at is null limit 1")

    def _right_tokens(self) -> list[list[int]]:
        """The tokens of an undisturbed run."""
        wait_until(lambda: len(self._site.ready_workers()) == 2, 120, "the load of the model by both workers")
        ledger = Ledger(self._site)
        for number in range(NUM_VARIANTS):
            entry = variant(number)
            ledger.send(entry.prompt, entry.max_tokens, entry.seed)
        ledger.wait(110)
        assert [entry.ends for entry in ledger.entries] == [["done"]] * NUM_VARIANTS, ledger.entries
        return [entry.tokens for entry in ledger.entries]

    def _jobs(self) -> Iterator[str]:
        """Accepted ids = rows = results, and one charge for each."""
        columns = "job_id, state, attempts, result, error, idempotency_key, completion_tokens, lease_until"
        query = f"select {columns} from inference_generationjob"
        rows = {row[0]: row for row in self._rows(query)}
        accepted = {number: job_id.replace("-", "") for number, job_id in self._campaign.jobs.items()}
        for job_id, number in Counter(accepted.values()).items():
            if number > 1:
                yield f"job {job_id} was the answer to {number} submissions"
        if extra := set(rows) - set(accepted.values()):
            yield f"duplicated: {len(extra)} jobs that no client was told of: {[rows[job_id][5] for job_id in extra]}"
        charges = dict(self._rows("select request_id, completion_tokens from inference_usagerecord"))
        for number, job_id in accepted.items():
            if job_id not in rows:
                yield f"lost: job {number} ({job_id}) was accepted and has no row"
                continue
            _, state, attempts, result, error, _, tokens, lease = rows[job_id]
            if charges.get(f"job-{job_id}") != tokens:  # a record's id is unique
                yield f"job {number} has {tokens} tokens, its charge is {charges.get(f'job-{job_id}')}"
            if lease is not None:
                yield f"job {number} is {state} and holds a lease"
            if state == "failed" and attempts >= CRASHES and f"after {CRASHES} attempts: its worker died" in error:
                self.num_set_aside += 1
            elif state != "succeeded":
                yield f"lost: job {number} is {state} after {attempts} attempts: {error}"
            else:
                expected = self._right[number % NUM_VARIANTS]
                if json.loads(result)["choices"][0]["token_ids"] != expected or tokens != len(expected):
                    yield f"job {number} has the wrong tokens ({tokens} of {len(expected)}, attempt {attempts})"

    def _lines(self) -> Iterator[str]:
        """Every custom_id in one of the two files, once."""
        batches = self._rows(
            "select batch_id, state, output_file_id, error_file_id, completion_tokens from inference_batch"
        )
        if [row[0] for row in batches] != [self._campaign.batch_id]:
            yield f"batches {[row[0] for row in batches]}, accepted was {self._campaign.batch_id!r}"
        ids: Counter[str] = Counter()
        for batch_id, state, *files, tokens in batches:
            if state != "completed":
                yield f"{batch_id} is {state}"
            charged = 0
            for line in (line for file_id in files if file_id for line in self._content(file_id)):
                ids[line["custom_id"]] += 1
                if line["error"] is not None or line["response"]["status_code"] != 200:
                    self.num_set_aside += 1
                    if f"died {CRASHES} times" not in json.dumps(line):
                        yield f"line {line['custom_id']}: {line}"
                    continue
                found = line["response"]["body"]["choices"][0]["token_ids"]
                charged += len(found)
                if found != self._right[int(line["custom_id"][1:]) % NUM_VARIANTS]:
                    yield f"line {line['custom_id']} has the wrong tokens"
            if charged != tokens:
                yield f"{batch_id} counts {tokens} tokens, its lines have {charged}"
        expected = {f"r{number}": 1 for number in range(self._campaign.num_lines)}
        if dict(ids) != expected:
            yield f"lines: {sorted(Counter(expected) - ids)} lost, {sorted(ids - Counter(expected))} more than once"

    def _content(self, file_id: str) -> list[dict[str, Any]]:
        url = f"{self._site.urls[0]}/v1/files/{file_id}/content"
        return [json.loads(line) for line in httpx.get(url, timeout=30).raise_for_status().text.splitlines()]

    def _streams(self) -> Iterator[str]:
        """One end each; a stream that is done has all of the right tokens, any other the first of them."""
        for number, entry in self._campaign.streams:
            expected = self._right[number % NUM_VARIANTS]
            if len(entry.ends) != 1:
                yield f"stream {number} ended {len(entry.ends)} times: {entry.ends}"
            if entry.tokens != expected[: len(entry.tokens)] or (entry.ends == ["done"] and entry.tokens != expected):
                yield f"stream {number} has wrong tokens ({len(entry.tokens)} of {len(expected)}, {entry.ends})"
            if f"{CRASHES} workers were lost" in entry.error:
                self.num_set_aside += 1
            elif entry.status not in (0, 200, 503):
                yield f"stream {number}: {entry.status} {entry.error[:200]}"

    def _usage(self) -> Iterator[str]:
        """The days hold the sums of the records; a job's record is compared in ``_jobs``."""
        for column in ("prompt_tokens", "completion_tokens"):
            # In one statement: the usage of the last streams is stored meanwhile.
            sums = f"(select sum({column}) from inference_usagerecord), (select sum({column}) from inference_usageday)"
            ((records, days),) = self._rows(f"select {sums}")
            if records != days:
                yield f"the days count {days} {column}, the records {records}"
        batch = "select completion_tokens from inference_usagerecord where endpoint = 'batch'"
        if self._rows(batch) != self._rows("select completion_tokens from inference_batch"):
            yield f"the batch's charge is {self._rows(batch)}"

    def _left_behind(self) -> Iterator[str]:
        """Leases, messages, admitted requests, chunks and files that belong to nothing any more."""
        client, checkpoint_id = self._site.client, self._site.checkpoint_id
        for key in (redis_keys.MESSAGES, redis_keys.OPEN_REQUESTS, redis_keys.OPEN_ORIGINS,
                    redis_keys.MESSAGE_WORKERS, *redis_keys.model_queues(checkpoint_id)):  # fmt: skip
            if number := _size(client, key):
                yield f"{key}: {number} left"
        totals: Any = client.hgetall(redis_keys.OPEN_TOTALS)
        if held := {name: number for name, number in totals.items() if not name.startswith(b"ends:")}:
            yield f"totals of open requests: {held}"
        for table, condition in (
            ("jobchunk", "1 = 1"),
            ("batchline", "lease_until is not null"),
            ("batch", "lease_until is not null"),
        ):
            ((number,),) = self._rows(f"select count(*) from inference_{table} where {condition}")
            if number:
                yield f"{number} rows of {table} left"
        if files := written_files(self._site):
            yield f"{len(files)} unfinished files"


def written_files(site: Site) -> list[Path]:
    """The unfinished files of living processes; the sweep, an hour later, removes those of dead ones."""
    return [path for path in (site.directory / "files" / "tmp").glob("*") if not is_abandoned(path)]


def _size(client: redis.Redis, key: str) -> int:
    kind: Any = client.type(key)
    sizes = {b"hash": client.hlen, b"zset": client.zcard, b"list": client.llen}
    number: Any = sizes[kind](key) if kind in sizes else 0
    return int(number)
