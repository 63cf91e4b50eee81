"""Hostile patterns and schemas: a verdict in time, nothing fetched, and a cache that doesn't grow."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inference.errors import InvalidSamplingParams
from inference.text.grammars.checker import MAX_KNOWN, GrammarChecker, GrammarLimits
from inference.values.grammar import Grammar

MIB = 1 << 20
CPU_S = 2
DEPTH = 10_000


def nested(depth: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def schema_of(number: int) -> Grammar:
    name = f"p{number}"
    return Grammar("json_schema", {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]})


@pytest.fixture
def checker() -> Iterator[GrammarChecker]:
    found = GrammarChecker()
    yield found
    found.close()


@pytest.fixture
def trap() -> Iterator[socket.socket]:
    """A listener of this machine that nobody may connect to."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


def memory_bytes(pid: int) -> int:
    """What a process occupies."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.fault(
    "F56",
    provoked="`(a+)+b`, repetitions in repetitions, schemas that refer to themselves, to a server and to a file, "
    "10,000 levels, an enum of 100,000, and 2,000 schemas that nobody has sent before",
    holds="each is compiled or refused within 2 s of the processor, and what is refused says why; nothing is fetched; "
    "the verdicts take less than 64 MiB and the compiler too",
)
def test_f56_grammars_get_a_verdict_in_time_and_memory(checker: GrammarChecker, trap: socket.socket) -> None:
    refused = {
        "matches no text": {"$ref": "#"},
        "retriev": {"$ref": f"http://127.0.0.1:{trap.getsockname()[1]}/schema.json"},
        "Default retriever does not fetch": {"$ref": "file:///etc/hostname"},
        "deeper than 100 levels": nested(DEPTH),
        "at most 262,144 are compiled": {"enum": [f"v{number}" for number in range(100_000)]},
    }
    assert GrammarLimits().compile_s <= CPU_S
    before_s = time.process_time()
    for reason, schema in refused.items():
        with pytest.raises(InvalidSamplingParams, match=reason) as caught:
            checker.check(Grammar("json_schema", schema))
        assert len(caught.value.message) < 800
    for pattern in ("(a+)+b", "((a{1,1000}){1,1000})"):
        checker.check(Grammar("regex", pattern))
    assert time.process_time() - before_s < CPU_S
    with pytest.raises(BlockingIOError):
        trap.accept()

    child = checker._sandbox._child
    assert child is not None
    processes = os.getpid(), child.process.pid
    before = [memory_bytes(pid) for pid in processes]
    for number in range(2000):
        checker.check(schema_of(number))
    assert [pid for pid, old in zip(processes, before, strict=True) if memory_bytes(pid) - old > 64 * MIB] == []
    assert checker.knows(schema_of(1999))
    assert not checker.knows(schema_of(2000 - MAX_KNOWN - 1)), "old verdicts are forgotten"
