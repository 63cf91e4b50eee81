"""Loading a checkpoint, against reading its file, and the memory that it takes: ``python -m bench.load``.

In each round the file is read from beginning to end, loaded in a process of its own, and read again; before each of
the three it is dropped from the kernel's cache (``posix_fadvise``), and the share of it that is still there is counted
(``mincore``) and printed. A load is timed from its call to the first request that could be computed; importing
libraries is told apart. Loads and readings beside which other work was done are refused (``bench.disturbance``).

Peaks are ``VmHWM``: while loading, after a decode of 8 sequences and a prompt of 512 tokens, and after every byte of
every state has been written, when the whole cache budget is in use; beside them weights and cache budget, as stated by
the loaded model. What stays after the unload is ``VmRSS``.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.__main__ import names, positive
from bench.child import forget_file_cache, time_to_read, weight_files
from bench.disturbance import Disturbed, family_of, undisturbed
from bench.processes import Child
from bench.weights import CHECKPOINTS, make_checkpoint

MIB = 1 << 20
_QUANTS = {"16": None, "8": "int8", "4": "int4"}
_ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class Round:
    """What one load took.

    Attributes:
        cached: Greatest share of the file that was in the kernel's cache before one of the three.
        load_s: From the call to the first request that could be computed.
        first_token_s: Of the first request, 16 tokens.
        import_s: Importing libraries, before the call.
        weights_bytes, cache_bytes: As stated by the loaded model.
        load_peak_bytes, work_peak_bytes, full_peak_bytes: While loading; after some work; with every state written.
        after_bytes: Resident after the unload.
    """

    cached: float
    read_before_s: float
    read_after_s: float
    load_s: float
    first_token_s: float
    import_s: float
    before_bytes: int
    weights_bytes: int
    cache_bytes: int
    load_peak_bytes: int
    work_peak_bytes: int
    full_peak_bytes: int
    after_bytes: int

    @property
    def ratio(self) -> float:
        """Load by the mean of the readings around it."""
        return self.load_s / statistics.mean((self.read_before_s, self.read_after_s))

    @property
    def peak_ratio(self) -> float:
        """Peak with every state written, by weights and cache budget."""
        return self.full_peak_bytes / (self.weights_bytes + self.cache_bytes)


def cached_share(path: Path) -> float:
    """Share of the weights' pages that are in the kernel's cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    total = resident = 0
    for file in weight_files(path):
        # A private mapping that could be written, since only such a one has an address for ctypes.
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY) as memory:
            pages = -(-len(memory) // mmap.PAGESIZE)
            found = (ctypes.c_ubyte * pages)()
            view = ctypes.c_char.from_buffer(memory)
            failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(len(memory)), found)
            del view  # the mapping can't be closed before
            if failed:
                raise OSError(ctypes.get_errno(), f"mincore of {file.name}")
            total += pages
            resident += sum(page & 1 for page in found)
    return resident / max(total, 1)


def measure(checkpoint: Path, bits: str, cache_bytes: int) -> Round:
    """One round.

    Raises:
        Disturbed: Other work was done beside each of a few attempts.
    """
    for _ in range(_ATTEMPTS):
        shares = []

        def read() -> dict[str, float]:
            forget_file_cache(checkpoint)
            shares.append(cached_share(checkpoint))  # noqa: B023 (called in this turn only)
            return time_to_read(checkpoint)

        before, _ = undisturbed(list, read)
        forget_file_cache(checkpoint)
        shares.append(cached_share(checkpoint))
        child = Child("loading", checkpoint, quant=_QUANTS[bits], cache_bytes=cache_bytes, cold=True)
        try:
            load_peak = child.run("memory")["peak_bytes"]
            if child.facts["load_disturbed"]:
                continue
            first_token_s = 16 / child.run("prefill", tokens=16)["tokens_per_s"]
            after, _ = undisturbed(family_of(child.process.pid), read)
            child.run("decode", batch=8, prompt=32, new=16)
            child.run("prefill", tokens=512)
            work_peak = child.run("memory")["peak_bytes"]
            child.run("write_states")
            full_peak = child.run("memory")["peak_bytes"]
            resident = child.run("unload")["resident_bytes"]
        finally:
            child.close()
        return Round(
            cached=max(shares),
            read_before_s=before["seconds"],
            read_after_s=after["seconds"],
            load_s=child.facts["load_s"],
            first_token_s=first_token_s,
            import_s=child.facts["import_s"],
            before_bytes=child.facts["resident_before_bytes"],
            weights_bytes=child.facts["weights_bytes"],
            cache_bytes=child.facts["cache_bytes"],
            load_peak_bytes=load_peak,
            work_peak_bytes=work_peak,
            full_peak_bytes=full_peak,
            after_bytes=resident,
        )
    raise Disturbed(child.facts["load_disturbed"])


def line(found: Round) -> str:
    return (
        f"load {found.load_s:.2f} s, reading {found.read_before_s:.2f} and {found.read_after_s:.2f} s "
        f"(at most {found.cached:.1%} of the file was cached), ratio {found.ratio:.2f}; "
        f"first token after {found.first_token_s:.2f} s more; imports {found.import_s:.2f} s before"
    )


def memory(rounds: Sequence[Round]) -> str:
    """Peaks of several rounds, MiB, each the greatest."""
    last = rounds[-1]
    stated = last.weights_bytes + last.cache_bytes

    def most(values: Sequence[int]) -> str:
        return f"{max(values) / MIB:,.0f}"

    return (
        f"MiB: weights {last.weights_bytes / MIB:,.0f}, with the cache budget {stated / MIB:,.0f}; "
        f"peak while loading {most([item.load_peak_bytes for item in rounds])}, "
        f"after 8 sequences and 512 tokens {most([item.work_peak_bytes for item in rounds])}, "
        f"with every state written {most([item.full_peak_bytes for item in rounds])} "
        f"({max(item.peak_ratio for item in rounds):.2f} of weights and budget); "
        f"resident before the load {most([item.before_bytes for item in rounds])}, "
        f"after the unload {most([item.after_bytes for item in rounds])}"
    )


def main() -> None:
    """Print a line for each round, and the memory of all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=names(list(CHECKPOINTS)), default=["llama-1b"])
    parser.add_argument("--bits", type=names(tuple(_QUANTS)), default=["8"])
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--pause", type=float, default=2.0, help="seconds between rounds")
    parser.add_argument("--cache-bytes", type=positive, default=2 << 30, help="memory for states")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "blazr-bench", help="for the weights")
    given = parser.parse_args()
    for model in given.models:
        checkpoint = make_checkpoint(model, given.cache / "checkpoints")
        for bits in given.bits:
            rounds: list[Round] = []
            for _ in range(given.rounds):
                try:
                    rounds.append(measure(checkpoint, bits, given.cache_bytes))
                except Disturbed as error:
                    print(f"{model}, {bits} bits: a round is void: {error}", flush=True)
                    continue
                print(f"{model}, {bits} bits: {line(rounds[-1])}", flush=True)
                time.sleep(given.pause)
            if rounds:
                middle = statistics.median(item.ratio for item in rounds)
                print(f"{model}, {bits} bits: median ratio of {len(rounds)} rounds {middle:.2f}; {memory(rounds)}")


if __name__ == "__main__":
    main()
