"""Make requests from the OpenAPI document as callers of three roles: ``python -m tests.live.conformance --minutes 15``.

Half of the requests fit the document, the others break it. Models and ids of earlier responses stand in half of the
places that take one, so that requests reach more than the first check. Each response is compared with the document;
an object belongs to the role that made it, and is gone once it was deleted.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
import time
import zlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from prometheus_client.parser import text_string_to_metric_families
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.faults.campaigns import add_argument, record
from tests.live.conftest import DEVICE, LiveServer

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
MODEL = "demo"
LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")
REMOTE = {"X-Forwarded-For": "192.0.2.7"}
"""A request that a proxy has forwarded needs a key, on this machine too."""
TIMEOUT_S = 60
MAX_BLOCK_S = 0.05
"""Of the event loop."""
ROUNDS_OF_SEED = 1000
"""Each round of a seed has a number of its own."""


NEEDED = {
    *("model", "messages", "prompt", "input", "query", "documents", "content", "tokens", "max_tokens", "stream"),
    *("input_prefix", "input_suffix", "endpoint", "body", "name"),
}
"""Members without which a request doesn't get far."""
SESSION_PATHS = "/registry/"

_SET_UP = """
from django.contrib.auth.models import User
from django.test import Client
from inference.access.api_keys import api_key_create
client = Client()
client.force_login(User.objects.get(is_superuser=True))
print(api_key_create(name="member")[1], client.cookies["sessionid"].value)
"""


def roles_of(server: LiveServer) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Return the headers of the callers, and those of an admin's session.

    The callers are one without a key on the server's machine, an ordinary key, and one with all scopes.
    """
    member, session = server.manage(_SET_UP).split()[-2:]
    roles = {
        "local": {},
        "member": {**REMOTE, "Authorization": f"Bearer {member}"},
        "admin": {**REMOTE, **server.admin_headers},
    }
    token = "c" * 32
    return roles, {"Cookie": f"sessionid={session}; csrftoken={token}", "X-CSRFToken": token}


@dataclass
class Campaign:
    """Requests to one server, what came of them, and the objects that they made.

    Attributes:
        server: The server; its objects are made, changed and deleted.
        number: Names the requests; the same number gives the same.
        statuses: How often each role got each status.
        problems: What was wrong, by operation and role.
    """

    server: LiveServer
    number: int
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    ids: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    """Ids of objects and the roles that made them, by the path of their collection."""
    deleted: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.roles, self._session_headers = roles_of(self.server)
        document = schemathesis.openapi.from_url(f"{self.server.url}/schema?format=json")
        document.config.generation.update(with_security_parameters=False)  # the roles have theirs
        self.operations = [found.ok() for found in document.get_all_operations()]
        self._session = requests.Session()
        self._random = random.Random(self.number)
        self.ids["/registry/checkpoints"][self.server.checkpoint_id(MODEL)] = "admin"
        self.ids["/v1/models"][MODEL] = "all"

    @property
    def num_requests(self) -> int:
        """How many requests were sent."""
        return sum(self.statuses.values())

    def blocks(self) -> dict[float, int]:
        """How often the web process's event loop was blocked for longer than a time, by that time in seconds."""
        text = requests.get(f"{self.server.url}/metrics", timeout=TIMEOUT_S).text
        families = {family.name: family for family in text_string_to_metric_families(text)}
        buckets = {
            float(sample.labels["le"]): int(sample.value)
            for sample in families["blazr_event_loop_blocked_seconds"].samples
            if sample.name.endswith("_bucket")
        }
        return {bound: buckets[math.inf] - number for bound, number in buckets.items() if bound < math.inf}

    def run_round(self, examples: int, *, until: float = float("inf")) -> None:
        """Send requests of both kinds to each operation, by any of the roles.

        Args:
            examples: Requests of each kind.
            until: When to stop at the latest, on the monotonic clock.
        """
        for operation in self.operations:
            for mode in GenerationMode:
                if time.monotonic() > until:
                    return
                self._run(operation, mode, examples)
        self.number += 1

    def _run(self, operation: Any, mode: GenerationMode, examples: int) -> None:
        @seed(zlib.crc32(f"{self.number} {operation.label} {mode.value}".encode()))
        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def send(case: Any) -> None:
            self._send(case, self._random.choice(list(self.roles)))

        try:
            send()
        except (Exception, BaseExceptionGroup) as error:  # several failures of one response are a group
            if "Unsatisfiable" not in type(error).__name__:  # nothing breaks a request that takes no values
                self.problems.append(f"{operation.label}: {error}")

    def _send(self, case: Any, role: str) -> None:
        used = self._use_known(case)
        is_of_pages = role == "admin" and case.operation.path.startswith(SESSION_PATHS)
        headers = self._session_headers if is_of_pages else self.roles[role]
        response = case.call(headers=headers, session=self._session, timeout=TIMEOUT_S)
        self.statuses[role, response.status_code] += 1
        case.validate_response(response, checks=CHECKS)
        is_success = 200 <= response.status_code < 300
        if used not in (None, MODEL) and is_success:  # a renamed model's name may be an alias's, deleted and made again
            assert used not in self.deleted, f"{used} was deleted and is used again"
            collection = case.operation.path.partition("/{")[0]
            owner = self.ids[collection].get(used)
            assert role == "admin" or owner in (None, "all", role), (
                f"{used} is of {owner}, and {role} got {response.text}"
            )
            if case.method == "DELETE":
                self.deleted.add(used)
        if is_success:
            self._remember(case, role, response)
            self._check_key(case, role)

    def _use_known(self, case: Any) -> str | None:
        """Put the model's name and an id of an object into some of the requests; return the id."""
        body = case.body
        if isinstance(body, dict) and self._random.random() < 0.5:
            for name in [name for name in body if name not in NEEDED and self._random.random() < 0.9]:
                del body[name]
        if isinstance(body, dict) and isinstance(body.get("model"), str) and self._random.random() < 0.7:
            if case.method != "DELETE":  # the model is needed further
                body["model"] = MODEL
            for name in LENGTHS:  # some of the lengths that the document allows take minutes
                if type(body.get(name)) is int and body[name] > 2:
                    body[name] = 2
        collection = case.operation.path.partition("/{")[0]
        known = [] if (case.method, collection) == ("DELETE", "/registry/checkpoints") else list(self.ids[collection])
        if not known or not case.path_parameters or self._random.random() < 0.3:
            return None
        used = self._random.choice(known[-20:])
        case.path_parameters[next(iter(case.path_parameters))] = used
        return used

    def _remember(self, case: Any, role: str, response: Any) -> None:
        if case.method != "POST" or "json" not in response.headers.get("Content-Type", ""):
            return
        found = response.json()
        for item in [found, *(found.get("data") or [])] if isinstance(found, dict) else []:
            if isinstance(item, dict) and isinstance(item.get("id"), str):
                self.ids[case.operation.path.partition("/{")[0]].setdefault(item["id"], role)

    def _check_key(self, case: Any, role: str) -> None:
        """The request without its key, and with a wrong one, is refused."""
        is_public = not case.operation.definition.raw.get("security")
        if role == "local" or is_public or case.operation.path.startswith(SESSION_PATHS) or self._random.random() > 0.1:
            return
        for headers in (REMOTE, {**REMOTE, "Authorization": "Bearer blazr_00000000_" + "0" * 46}):
            status = case.call(headers=headers, session=self._session, timeout=TIMEOUT_S).status_code
            assert status == 401, f"{status} without a valid key"


def main() -> int:
    """Return 0 if nothing was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.live.conformance", description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=1)
    add_argument(parser)
    given_arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="blazr-conformance-"))
    server = LiveServer(directory / "data", *DEVICE)
    started = time.monotonic()
    until = started + 60 * given_arguments.minutes
    try:
        server.wait_ready()
        campaign = Campaign(server, given_arguments.seed * ROUNDS_OF_SEED)
        while campaign.num_requests < given_arguments.requests and time.monotonic() < until:
            campaign.run_round(20, until=until)
            blocks = campaign.blocks()
            long = {bound: number for bound, number in blocks.items() if number and bound >= MAX_BLOCK_S}
            sys.stdout.write(f"{campaign.num_requests} requests, {len(campaign.problems)} problems, blocks {long}\n")
            sys.stdout.flush()
        if long:
            campaign.problems.append(f"the event loop was blocked for longer than some seconds so often: {long}")
        is_alive = server.process.poll() is None
    finally:
        if server.process.poll() is None:
            server.stop()
    record(
        given_arguments.record, "conformance", seed=given_arguments.seed, size=campaign.num_requests,
        failures=len(campaign.problems) + (not is_alive), seconds=time.monotonic() - started,
        figures={f"{role} {status}": number for (role, status), number in sorted(campaign.statuses.items())},
    )  # fmt: skip
    for (role, status), number in sorted(campaign.statuses.items()):
        sys.stdout.write(f"  {role} {status}: {number}\n")
    for problem in campaign.problems:
        sys.stdout.write(f"\n{problem}\n")
    sys.stdout.write(f"the server {'ran on' if is_alive else 'ended'}; its log and data: {directory}\n")
    return 1 if campaign.problems or not is_alive else 0


if __name__ == "__main__":
    sys.exit(main())
