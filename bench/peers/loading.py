"""Our engine, loaded, filled to its last state and unloaded again, with its memory at each point."""

from __future__ import annotations

import gc
import time
from typing import Any

_STARTED = time.perf_counter()

from bench.child import status_bytes  # noqa: E402 (importing is measured)
from bench.peers.engine import EnginePeer  # noqa: E402
from inference.host.machine import return_freed_memory  # noqa: E402

_IMPORT_S = time.perf_counter() - _STARTED


class LoadingPeer(EnginePeer):
    """``EnginePeer`` that tells what its imports took and what its memory was before the load."""

    def load(self) -> dict[str, Any]:
        """Inspect, load, start the engine's thread."""
        before = status_bytes("VmRSS")
        return {**super().load(), "import_s": _IMPORT_S, "resident_before_bytes": before}

    def write_states(self) -> dict[str, Any]:
        """Write every byte of every state, as a cache does that is full. The states are worthless afterwards."""
        written = 0
        for layer in self._llm._running_engine()._runner.layer_states:
            for state in layer.values():
                state.fill_(1)
                written += state.nbytes
        return {"written_bytes": written}

    def unload(self) -> dict[str, Any]:
        """What the worker does with a model that goes; the bytes that stay resident. Nothing can be asked after it."""
        self._loop.stop(drain=True, timeout_s=30)
        self._llm.close()
        del self._loop, self._llm, self._clock
        gc.collect()
        return_freed_memory()
        return {"resident_bytes": status_bytes("VmRSS")}
