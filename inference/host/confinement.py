"""Deny a child process the network and the file system, by Landlock and seccomp where the kernel has them."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys
import sysconfig
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_RULE_PATH_BENEATH = 1
_VERSION = 1
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_FS_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
"""Number of file system rights by Landlock's version; later versions have 16."""
_TCP_BIND_AND_CONNECT = 0b11  # from version 4
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11  # from version 6
_ATTRIBUTE_BYTES = {1: 8, 2: 8, 3: 8, 4: 16, 5: 16}
"""Size of the ruleset's attributes by version; later versions have 24."""

_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_SET_FILTER, _SECCOMP_IS_AVAILABLE = 1, 2
_SECCOMP_ALL_THREADS = 1
_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_GREATER_OR_EQUAL, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050001, 0x80000000  # refuse: EPERM
_X32 = 0x40000000
"""System calls of x86-64's second table have this bit; a filter of numbers must not miss them."""


_MACHINES = ("x86_64", "aarch64")
_AUDIT_NAMES = (0xC000003E, 0xC00000B7)
_SECCOMP = (317, 277)
_REFUSED_CALLS = {
    "socket": (41, 198),
    "io_uring_setup": (425, 425),  # its operations open sockets and files
    "execve": (59, 221),
    "execveat": (322, 281),
    "kill": (62, 129),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    # Landlock sees none of the following.
    "open_by_handle_at": (304, 265),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
}
"""Numbers of the refused system calls on the machines above; None: the machine doesn't have the call."""


@dataclass(frozen=True, slots=True)
class Confinement:
    """The restrictions that the kernel offers.

    Attributes:
        landlock: Version of Landlock; 0: there is none.
        has_seccomp: Whether system calls can be filtered.
    """

    landlock: int
    has_seccomp: bool

    @property
    def gaps(self) -> tuple[str, ...]:
        """Sentences that say what templates and tokenizers of checkpoints could still reach."""
        gaps = []
        if not self.landlock:
            gaps.append(
                "The kernel has no Landlock: templates and tokenizers of checkpoints could read this user's files."
            )
        if not self.has_seccomp:
            network = "reach the network" if self.landlock < 4 else "send UDP datagrams, use Unix sockets"
            gaps.append(
                "There are no seccomp filters (a kernel without them, or a processor other than x86-64 and ARM64): "
                f"templates and tokenizers of checkpoints could {network}, and change modes of this user's files."
            )
        return tuple(gaps)


def confinement() -> Confinement:
    """Return what ``confine`` can do on this machine."""
    if sys.platform != "linux":
        return Confinement(0, False)
    # Landlock's system calls have the same numbers on all processors.
    version = _libc().syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    machine = _machine_index()
    if machine is None:
        return Confinement(max(version, 0), False)
    action = ctypes.c_uint32(_REFUSE & 0xFFFF0000)
    available = _libc().syscall(_SECCOMP[machine], _SECCOMP_IS_AVAILABLE, 0, ctypes.byref(action))
    return Confinement(max(version, 0), available == 0)


def confine(readable: Iterable[Path] = (), listable: Iterable[Path] = ()) -> None:
    """Deny this process the network and the file system, irrevocably; call it with a single thread.

    The Python library stays readable, because modules are imported when they are needed.

    Args:
        readable: Files that can be read, and directories with all below them.
        listable: Directories whose entries can be listed.

    Raises:
        OSError: The kernel offers a restriction and refuses to set it.
    """
    found = confinement()
    time.tzset()  # reads the time zone's file
    if found.landlock or found.has_seccomp:
        _check(_libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    if found.landlock:
        library = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
        rights = dict.fromkeys(listable, _READ_DIR) | dict.fromkeys((*library, *readable), _READ_FILE | _READ_DIR)
        _restrict_files(found.landlock, rights)
    machine = _machine_index()
    if found.has_seccomp and machine is not None:
        _filter_calls(machine)


def _restrict_files(version: int, allowed: Mapping[Path, int]) -> None:
    handled = (1 << _FS_RIGHTS.get(version, 16)) - 1
    attributes = struct.pack("=QQQ", handled, _TCP_BIND_AND_CONNECT, _ABSTRACT_SOCKETS_AND_SIGNALS)
    attributes = attributes[: _ATTRIBUTE_BYTES.get(version, 24)]
    ruleset = _check(
        _libc().syscall(_LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0), "ruleset"
    )
    try:
        for path, rights in allowed.items():
            _allow(ruleset, path, rights)
        _check(_libc().syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0), "restrict_self")
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # it can't be read in any case
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _READ_FILE
        rule = struct.pack("=Qi", rights, descriptor)
        _check(_libc().syscall(_LANDLOCK_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0), f"rule of {path}")
    finally:
        os.close(descriptor)


def _filter_calls(machine: int) -> None:
    refused = [numbers[machine] for numbers in _REFUSED_CALLS.values() if numbers[machine] is not None]
    num = len(refused)
    program = [
        (_LOAD, 0, 0, 4),  # the architecture
        (_JUMP_IF_EQUAL, 1, 0, _AUDIT_NAMES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),  # the call's number
        (_JUMP_IF_GREATER_OR_EQUAL, num + 1, 0, _X32),
        *((_JUMP_IF_EQUAL, num - index, 0, number) for index, number in enumerate(refused)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    body = ctypes.create_string_buffer(code)
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(body)))
    _check(_libc().syscall(_SECCOMP[machine], _SECCOMP_SET_FILTER, _SECCOMP_ALL_THREADS, header), "seccomp")


def _machine_index() -> int | None:
    """Index of this machine's system calls; None: another operating system or processor."""
    name = os.uname().machine
    return _MACHINES.index(name) if sys.platform == "linux" and name in _MACHINES else None


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
