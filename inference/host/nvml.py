"""Read the energy counter of an NVIDIA device through NVML, the library that comes with NVIDIA's driver.

The library has a stable C interface, of which five functions are called here: no package is needed for that, and none
has to be installed where there is no device. Standard library only.
"""

from __future__ import annotations

import ctypes
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
_SUCCESS = 0
_TEXT_BYTES = 96


class NvmlCounter:
    """The energy of one device. A part of a device (MIG) has no counter of its own: the whole device's is read.

    Args:
        uuid: As CUDA gives it, with or without the prefix ``GPU-``; so the numbers that ``CUDA_VISIBLE_DEVICES``
            gives to devices don't matter.
        library: Name or path of the library.

    Attributes:
        identity: The UUID of the whole device, which is the same in all processes.
        name: The beginning of it, for people: ``GPU-1a2b3c4d``.
        source: ``nvml``.

    Raises:
        OSError: The library is missing, or it doesn't know the device or its energy.
    """

    source = "nvml"

    def __init__(self, uuid: str, library: str = LIBRARY) -> None:
        self._library = ctypes.CDLL(library)
        self._call("nvmlInit_v2")
        self._device = self._find(uuid.removeprefix("GPU-").removeprefix("MIG-"))
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        self._call("nvmlDeviceGetUUID", self._device, text, ctypes.c_uint(_TEXT_BYTES))
        self.identity = text.value.decode()
        self.name = self.identity[:12]
        self._first_mj = self._read_mj()

    def read(self) -> float:
        """Return the joules since the counter was opened.

        Raises:
            OSError: The device doesn't answer any more.
        """
        return (self._read_mj() - self._first_mj) / 1e3

    def _find(self, uuid: str) -> ctypes.c_void_p:
        device = ctypes.c_void_p()
        try:
            self._call("nvmlDeviceGetHandleByUUID", f"GPU-{uuid}".encode(), ctypes.byref(device))
        except OSError as error:
            part, device = ctypes.c_void_p(), ctypes.c_void_p()
            try:
                self._call("nvmlDeviceGetHandleByUUID", f"MIG-{uuid}".encode(), ctypes.byref(part))
                self._call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", part, ctypes.byref(device))
            except OSError:
                raise error from None
        return device

    def _read_mj(self) -> int:
        energy = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetTotalEnergyConsumption", self._device, ctypes.byref(energy))
        return energy.value

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise OSError(f"NVML has no {name}; it needs a newer driver") from None
        status = function(*arguments)
        if status != _SUCCESS:
            words = self._library.nvmlErrorString
            words.restype = ctypes.c_char_p
            raise OSError(f"NVML: {words(status).decode()} ({name})")


def nvml_counters(uuid: str, library: str = LIBRARY) -> tuple[list[NvmlCounter], str]:
    """Return the counter of a device; if there is none, the reason in words."""
    try:
        return [NvmlCounter(uuid, library)], ""
    except OSError as error:
        return [], f"The device reports no energy: {error}. It takes NVIDIA's driver, and a device since Volta."
