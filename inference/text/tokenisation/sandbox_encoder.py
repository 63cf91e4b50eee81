"""SandboxEncoder: text to token ids by a library in a child process."""

from __future__ import annotations

from collections.abc import Sequence

from inference.errors import InvalidRequest
from inference.text.tokenisation.sandbox import Sandbox, SandboxFailure

CALL_CPU_S = 1.0
CHARS_PER_S = 300_000
PIECES_PER_S = 10_000
"""What a slow core does at least."""


class SandboxEncoder:
    """An encoder of a tokenizer; see ``inference.text.tokenisation.sandbox``."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def encode(self, pieces: Sequence[tuple[str, bool]], *, first: bool = True) -> list[int]:
        """Ids of consecutive (text, parse_special) pieces, in one call."""
        num_chars = sum(len(text) for text, _ in pieces)
        cpu_s = CALL_CPU_S + num_chars / CHARS_PER_S + len(pieces) / PIECES_PER_S
        try:
            reply = self._sandbox.call({"pieces": pieces, "first": first}, cpu_s=cpu_s)
        except SandboxFailure as failure:
            raise InvalidRequest(
                f"the checkpoint's tokenizer failed on this text of {num_chars} characters: {failure.reason()}.",
                param="prompt",
            ) from None
        ids: list[int] = reply["ids"]
        return ids

    def close(self) -> None:
        """End the child."""
        self._sandbox.close()
