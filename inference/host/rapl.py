"""Read the energy counters of the machine's processors (RAPL) from the kernel's powercap directory.

AMD's processors have the same files under the same names. Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MISSING = (
    "This machine reports no energy: its kernel shows no counter of a processor (RAPL). "
    "Virtual machines and containers usually have none."
)
UNREADABLE = (
    "The kernel lets only root read the processor's energy counter (RAPL). "
    "The rule for udev in docs/operations.md gives it to the server's group."
)


class RaplCounter:
    """The energy of one processor package, and of its memory where that has a counter of its own.

    Attributes:
        identity: The same in all processes of this machine until it restarts.
        name: The kernel's name of the zone: ``package-0``.
        source: ``rapl``.
    """

    source = "rapl"

    def __init__(self, identity: str, name: str, zones: Sequence[Path]) -> None:
        self.identity = identity
        self.name = name
        self._zones = [_Zone(zone) for zone in zones]

    def read(self) -> float:
        """Return the joules since the counter was opened.

        Raises:
            OSError: A file can't be read any more.
        """
        return sum(zone.read() for zone in self._zones)


class _Zone:
    """One counter of the kernel, which begins again at 0 after its largest value."""

    def __init__(self, path: Path) -> None:
        self._file = path / "energy_uj"
        self._largest_uj = _number(path / "max_energy_range_uj")
        self._last_uj = _number(self._file)
        self._total_uj = 0

    def read(self) -> float:
        now_uj = _number(self._file)
        self._total_uj += advance(self._last_uj, now_uj, self._largest_uj)
        self._last_uj = now_uj
        return self._total_uj / 1e6


def advance(before: int, now: int, largest: int) -> int:
    """Return by how much a counter has grown that goes back to 0 after ``largest``, at most once in between."""
    return (now - before) % (largest + 1)


def rapl_counters(root: Path = POWERCAP) -> tuple[list[RaplCounter], str]:
    """Return the counters of all processor packages; if there are none, the reason in words.

    Zones inside a package are parts of it, but for ``dram``. The zone ``psys`` is the whole board, with the packages.
    """
    zones = {zone: _name(zone) for zone in sorted(root.glob("intel-rapl:*")) if zone.name.count(":") == 1}
    packages = {zone: name for zone, name in zones.items() if name.startswith("package")}
    if not packages:
        return [], MISSING
    boot = _boot_id()
    found = []
    for zone, name in packages.items():
        memory = [part for part in sorted(root.glob(f"{zone.name}:*")) if _name(part) == "dram"]
        try:
            found.append(RaplCounter(f"{boot}/{zone.name}", name, [zone, *memory]))
        except PermissionError:
            return [], UNREADABLE
        except OSError as error:
            return [], f"The processor's energy counter (RAPL) can't be read: {error}."
    return found, ""


def _name(zone: Path) -> str:
    try:
        return (zone / "name").read_text().strip()
    except OSError:
        return ""


def _number(file: Path) -> int:
    """Return the number that a file of the kernel holds.

    Raises:
        OSError: The file can't be read, or holds no number.
    """
    text = file.read_text().strip()
    if not (text.isascii() and text.isdecimal()):
        raise OSError(f"{file} holds {text[:40]!r}, which is no number")
    return int(text)


def _boot_id() -> str:
    """Return what names this machine until it restarts, in all of its containers."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return os.uname().nodename
