"""What the writers of streamed bodies have sent, and when."""

from __future__ import annotations

import pytest

from inference.api import event_stream as sse

HEARTBEAT = b": keep-alive\n\n"


class SentParts:
    """Each piece that a writer has sent, with the time of its event loop.

    Attributes:
        writers: The writers, in the order of their first pieces.
        pieces: Seconds, and the bytes.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writers: list[sse.ByteWriter] = []
        self.pieces: list[tuple[float, bytes]] = []
        send = sse.ByteWriter.send

        async def recorded(writer: sse.ByteWriter, parts: list[bytes]) -> None:
            if writer not in self.writers:
                self.writers.append(writer)
            self.pieces.append((writer._loop.time(), b"".join(parts)))
            await send(writer, parts)

        monkeypatch.setattr(sse.ByteWriter, "send", recorded)

    @property
    def num_heartbeats(self) -> int:
        """How many have been sent."""
        return sum(piece.count(HEARTBEAT) for _, piece in self.pieces)

    def silences_s(self) -> list[float]:
        """Seconds without a piece before each heartbeat."""
        pairs = zip(self.pieces, self.pieces[1:], strict=False)
        return [at - before for (before, _), (at, piece) in pairs if HEARTBEAT in piece]
