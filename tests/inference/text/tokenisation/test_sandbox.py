"""The sandbox: calls come back, limits end the child alone, and the next call has a fresh one."""

from __future__ import annotations

import gc
import os
import signal
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference.errors import Unavailable
from inference.host.confinement import confinement
from inference.text.tokenisation import sandbox as sandbox_module
from inference.text.tokenisation.sandbox import Sandbox, SandboxFailure
from inference.values.grammar import Grammar

MEMORY_BYTES = 256 << 20


def make_sandbox(source: str) -> Sandbox:
    """A child that renders one template."""
    return Sandbox("template", memory_bytes=MEMORY_BYTES, first_call={"source": source})


def render(sandbox: Sandbox, cpu_s: float = 5.0, max_reply_bytes: int = 1 << 20, **variables: object) -> str:
    payload = {"variables": variables, "max_chars": 1 << 24}
    return sandbox.call(payload, cpu_s=cpu_s, max_reply_bytes=max_reply_bytes)["text"]


@pytest.fixture
def hostile() -> Iterator[Sandbox]:
    """Echoes, refuses, computes, allocates or writes as much as it is told to."""
    found = make_sandbox(
        "{% if refuse %}{{ raise_exception(refuse) }}{% endif %}"
        "{% if power %}{{ (9 ** power) % 7 }}{% endif %}"
        "{% if bytes %}{{ ('x' * bytes) | length }}{% endif %}"
        "{% if chars %}{% for _ in range(1000) %}{{ 'x' * chars }}{% endfor %}{% endif %}{{ text }}"
    )
    yield found
    found.close()


def test_calls_share_a_child(hostile):
    assert render(hostile, text="Hé\n") == "Hé\n"
    child = hostile._child
    assert render(hostile, text="again") == "again"
    assert hostile._child is child


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("time", {"power": 99_999_999, "cpu_s": 0.2}),
        ("memory", {"bytes": 4 << 30}),
        ("output", {"chars": 100, "max_reply_bytes": 1000}),
        ("refused", {"refuse": "roles must alternate"}),
    ],
)
def test_a_broken_limit_fails_one_call_only(hostile, kind, values):
    with pytest.raises(SandboxFailure) as failure:
        render(hostile, **values)
    assert failure.value.kind == kind
    assert failure.value.reason() == {
        "time": "it takes too long",
        "memory": "it needs too much memory",
        "output": "its output is too large",
        "refused": "roles must alternate",
    }[kind]  # fmt: skip
    assert render(hostile, text="next") == "next"


def test_a_child_that_was_killed_is_started_again(hostile):
    render(hostile, text="a")
    hostile._child.process.kill()
    hostile._child.process.wait(60)
    assert render(hostile, text="b") == "b"


def test_a_child_that_was_replaced_leaves_nothing(hostile):
    render(hostile, text="a")
    child = weakref.ref(hostile._child)
    child().process.kill()
    child().process.wait(60)
    render(hostile, text="b")
    gc.collect()
    assert child() is None


def test_a_child_without_processor_time_is_not_the_programs_fault(hostile):
    render(hostile, text="a")
    os.kill(hostile._child.process.pid, signal.SIGSTOP)
    with pytest.raises(Unavailable, match="did not get enough processor time within 2 s; retry later"):
        render(hostile, cpu_s=0.1, text="b")
    assert render(hostile, text="c") == "c"


def test_a_slow_start_is_no_part_of_the_first_call(monkeypatch):
    """Of three seconds here, as on a busy machine."""
    monkeypatch.setattr(sandbox_module, "_START", "import time; time.sleep(3); " + sandbox_module._START)
    sandbox = make_sandbox("{{ text }}")
    sandbox._first_cpu_s = 0.1
    assert render(sandbox, cpu_s=0.1, text="a") == "a"
    sandbox.close()


def test_a_refused_first_call_is_remembered():
    sandbox = make_sandbox("{% if %}")
    for _ in range(2):
        with pytest.raises(SandboxFailure) as failure:
            render(sandbox)
        assert failure.value.kind == "refused"
        assert sandbox._child is None


def test_a_closed_sandbox_takes_no_calls(hostile):
    render(hostile, text="a")
    process = hostile._child.process
    hostile.close()
    assert process.poll() is not None
    with pytest.raises(SandboxFailure) as failure:
        render(hostile, text="b")
    assert failure.value.kind == "crash"


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@pytest.mark.skipif(bool(confinement().gaps), reason="this kernel can't confine a process")
def test_each_kind_of_child_is_confined_and_has_a_single_thread(hostile, tmp_path):
    """Landlock restricts the calling thread: one that was started before would keep network and files."""
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text('{"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}')
    first = {"path": str(tokenizer), "max_bytes": 1000}
    sandboxes = [
        hostile,
        Sandbox("huggingface", memory_bytes=MEMORY_BYTES, first_call=first, readable=[tokenizer]),
        Sandbox("inference.text.grammars.child", memory_bytes=512 << 20),
    ]
    grammar = {"grammar": Grammar("regex", "a+", "regex").to_dict()}
    calls = [{"variables": {"text": "a"}, "max_chars": 9}, {"vocab_size": 1}, grammar]
    for sandbox, call in zip(sandboxes, calls, strict=True):
        sandbox.call(call, cpu_s=5)
        status = status_of(sandbox._child.process.pid)
        assert (status["NoNewPrivs"], status["Seccomp"], status["Threads"]) == ("1", "2", "1")
        sandbox.close()


@pytest.mark.skipif(bool(confinement().gaps), reason="this kernel can't confine a process")
def test_a_tokenizer_that_is_not_its_own_cannot_be_loaded(tmp_path):
    """CVE-2024-34359 and its kind: what takes over a child finds no file but the one that it was started for."""
    own, other = tmp_path / "tokenizer.json", tmp_path / "secret_key"
    for path in (own, other):
        path.write_text('{"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}')
    sandbox = Sandbox("huggingface", memory_bytes=MEMORY_BYTES, readable=[own])
    sandbox.call({"path": str(own), "max_bytes": 1000}, cpu_s=5)
    for path in (other, Path("/etc/passwd")):
        with pytest.raises(SandboxFailure, match="PermissionError"):
            sandbox.call({"path": str(path), "max_bytes": 1 << 20}, cpu_s=5)
    sandbox.close()
