"""GrammarChecker: whether a grammar can be followed, found out in a child process under limits.

A schema or an expression comes from a stranger and can be written to take for ever. What has passed compiles here, in
the same time, without surprises.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from inference.errors import InvalidSamplingParams
from inference.text.tokenisation.sandbox import Sandbox, SandboxFailure
from inference.values.grammar import MAX_BYTES, Grammar, check_size

CHILD_MEMORY_BYTES = 512 << 20
MAX_KNOWN = 1024


@dataclass(frozen=True, slots=True)
class GrammarLimits:
    """What a grammar may take.

    Attributes:
        max_bytes: Length of its text, UTF-8.
        compile_s: Processor seconds.
    """

    max_bytes: int = MAX_BYTES
    compile_s: float = 2.0


class GrammarChecker:
    """One child, started with the first check; verdicts are remembered. Thread-safe."""

    def __init__(self, limits: GrammarLimits | None = None) -> None:
        self._limits = limits or GrammarLimits()
        self._sandbox = Sandbox(
            "inference.text.grammars.child", memory_bytes=CHILD_MEMORY_BYTES, purpose="the compiler of grammars"
        )
        self._known: OrderedDict[bytes, str | None] = OrderedDict()
        self._lock = threading.Lock()

    def knows(self, grammar: Grammar) -> bool:
        """Whether ``check`` has its verdict at hand."""
        return grammar.digest in self._known

    def check_size(self, grammar: Grammar) -> None:
        """Refuse a grammar over the limit of bytes.

        Raises:
            InvalidSamplingParams: It is.
        """
        size = len(grammar.text.encode("utf-8", "surrogatepass"))
        check_size(size, grammar.param, most=self._limits.max_bytes)

    def check(self, grammar: Grammar) -> None:
        """Compile a grammar for a trial, unless its verdict is known.

        Raises:
            InvalidSamplingParams: It is wrong, not supported, matches nothing, or breaks a limit.
            Unavailable: Other grammars keep the child busy, or others the machine.
        """
        param = grammar.param
        self.check_size(grammar)
        digest = grammar.digest
        with self._lock:
            is_known = digest in self._known
            if is_known:
                self._known.move_to_end(digest)
            problem = self._known.get(digest)
        if not is_known:
            problem, is_lasting = self._try(grammar)
            with self._lock:
                if is_lasting:
                    self._known[digest] = problem
                while len(self._known) > MAX_KNOWN:
                    self._known.popitem(last=False)
        if problem is not None:
            raise InvalidSamplingParams(f"{param} can't be compiled: {problem}.", param=param)

    def close(self) -> None:
        self._sandbox.close()

    def _try(self, grammar: Grammar) -> tuple[str | None, bool]:
        """Return what is wrong, and whether another try would find the same: a process may also have been killed."""
        try:
            self._sandbox.call({"grammar": grammar.to_dict()}, cpu_s=self._limits.compile_s)
        except SandboxFailure as failure:
            if failure.kind == "refused":
                return failure.message.rstrip("."), True
            limit = f"(limit: {self._limits.compile_s:g} s of processor time)"
            return f"{failure.reason()} {limit}; write a simpler one", failure.kind != "crash"
        return None, True
