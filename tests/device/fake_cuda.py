"""A CUDA device without a device: tensors that say they are on one and hold no numbers.

torch's FakeTensorMode computes shapes, dtypes and devices and refuses what mixes devices. On top of it, each copy
between host and device is counted, and launches of Triton kernels are recorded instead of run. What is read
back from the device is zeros, so that an engine can run its steps.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

DEVICE = "cuda:0"
_CUDA, _META = 1, 14  # c10::DeviceType


@dataclass
class Traffic:
    """What passed between host and device.

    Attributes:
        waits: What the host waited for: reads of the device's memory, and copies to it from pageable memory.
        launches: Kernels with what their compiled form depends on.
        is_capturing: Nothing may pass at all now.
        is_current: The device is the thread's current one, to which kernels go.
    """

    waits: list[str] = field(default_factory=list)
    launches: list[tuple[Any, ...]] = field(default_factory=list)
    uploads: int = 0
    is_capturing: bool = False
    is_current: bool = False
    pinned: set[int] = field(default_factory=set)

    def wait(self, what: str) -> None:
        """The host waits for the device."""
        assert not self.is_capturing, f"{what} during a capture"
        self.waits.append(what)


class _Copies(TorchDispatchMode):
    """Counts copies to the device, and refuses host tensors that would follow unseen."""

    def __init__(self, traffic: Traffic) -> None:
        super().__init__()
        self._traffic = traffic

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        is_copy = name in ("to", "_to_copy")
        options = dict(zip((part.name for part in func._schema.arguments), args, strict=False)) | kwargs
        is_on_host = not any(isinstance(part, FakeTensor) for part in tree_leaves((args, kwargs)))
        names_device = getattr(options.get("device"), "type", "cpu") == "cuda"
        if is_on_host and not names_device:
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        if is_on_host and is_copy:
            # A tensor that isn't fake would be copied for real.
            result = torch.empty(args[0].shape, dtype=options.get("dtype") or args[0].dtype, device=options["device"])
        elif name == "copy_" and not isinstance(args[1], FakeTensor):
            result = args[0]
            assert args[1].shape == result.shape, (args[1].shape, result.shape)
        else:
            result = func(*args, **kwargs)
        if is_copy:
            self._copied(args[0], result, options.get("non_blocking", False))
        elif name == "copy_":
            self._copied(args[1], args[0], len(args) > 2 and args[2])
        elif name in ("index", "index_put", "index_put_", "_index_put_impl_") and args[0].is_cuda:
            for index in args[1]:
                if index is not None and not index.is_cuda:
                    self._traffic.wait(f"{name} by a tensor on the host")
        return result

    def _copied(self, source: torch.Tensor, target: torch.Tensor, is_async: bool) -> None:
        if source.device.type == target.device.type:
            return
        if source.is_cuda:
            self._traffic.wait("a copy to the host")
            return
        self._traffic.uploads += 1
        assert not self._traffic.is_capturing, "a copy to the device during a capture"
        if source.dim() == 0:
            return  # a number, which goes along with a launch
        is_pinned = not isinstance(source, FakeTensor) and _address(source) in self._traffic.pinned
        if not (is_async and is_pinned):
            self._traffic.wait("a copy from pageable memory")


class _Reads(TorchFunctionMode):
    """Reads of the device's memory give zeros; pinned memory is ordinary memory that is known."""

    def __init__(self, traffic: Traffic) -> None:
        super().__init__()
        self._traffic = traffic

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        first = args[0] if args else None
        if name == "pin_memory":
            with unset_fake_temporarily():
                found = first if not isinstance(first, FakeTensor) else _zeros(first)
            self._traffic.pinned.add(_address(found))
            return found
        if isinstance(first, FakeTensor) and first.device.type == "cuda":
            if name in ("tolist", "cpu", "numpy"):
                self._traffic.wait(name)
                found = _zeros(first)
                return found if name == "cpu" else getattr(found, name)()
            if name in ("item", "__bool__", "__int__", "__float__", "__index__"):
                self._traffic.wait(name)
                return getattr(_zeros(first), name)()
            if name == "to" and any(str(value) == "cpu" for value in (*args[1:], *kwargs.values())):
                self._traffic.wait(name)
                return _zeros(first)
        if name in ("zeros", "empty") and kwargs.get("pin_memory"):
            with unset_fake_temporarily():
                found = func(*args, **{key: value for key, value in kwargs.items() if key != "pin_memory"})
            self._traffic.pinned.add(_address(found))
            return found
        return func(*args, **kwargs)


def _zeros(like: torch.Tensor) -> torch.Tensor:
    with unset_fake_temporarily(), torch._C.DisableTorchFunctionSubclass():
        return torch.from_numpy(np.zeros(tuple(like.shape), dtype=str(like.dtype).removeprefix("torch.")))


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _specialisation(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """What Triton compiles a kernel anew for: dtypes, alignment, the integer 1 and multiples of 16, constants."""
    found: list[Any] = [kernel.fn.__name__]
    names = [param.name for param in kernel.params]
    values = dict(zip(names, args, strict=False)) | {name: kwargs[name] for name in names if name in kwargs}
    for param in kernel.params:
        value = values[param.name]
        if isinstance(value, torch.Tensor):
            assert value.is_cuda, f"{kernel.fn.__name__} gets {param.name} from the host"
            aligned = (value.storage_offset() * value.element_size()) % 16 == 0
            found.append((value.dtype, param.do_not_specialize_on_alignment or aligned))
        elif param.is_constexpr:
            found.append(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            wide = not -(2**31) <= value < 2**31
            found.append((wide,) if param.do_not_specialize else (wide, value == 1, value % 16 == 0))
        else:
            found.append(type(value))
    options = sorted((name, value) for name, value in kwargs.items() if name not in names and name != "grid")
    return (*found, *options)


@contextlib.contextmanager
def fake_cuda(monkeypatch) -> Iterator[Traffic]:
    """Within it, ``cuda:0`` is there."""
    from triton.runtime.jit import JITFunction

    from inference.modelling.backends.triton import cuda_graphs

    traffic = Traffic()

    def record(kernel, *args, grid, warmup, **kwargs):
        assert traffic.is_current, f"{kernel.fn.__name__} goes to the thread's current device, whichever that is"
        traffic.launches.append(_specialisation(kernel, args, kwargs))

    monkeypatch.setattr(JITFunction, "run", record)

    @contextlib.contextmanager
    def capturing(*args, **kwargs):
        traffic.is_capturing = True
        try:
            yield
        finally:
            traffic.is_capturing = False

    @contextlib.contextmanager
    def current(device):
        before, traffic.is_current = traffic.is_current, True
        try:
            yield
        finally:
            traffic.is_current = before

    class FakeCaptureStream:
        def beside(self):
            return contextlib.nullcontext()

        def capture(self, graph):
            return capturing()

    monkeypatch.setattr(cuda_graphs, "CaptureStream", FakeCaptureStream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "device", current)
    registry = (ctypes.c_void_p * 32).in_dll(
        ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so")),
        "_ZN3c104impl26device_guard_impl_registryE",
    )
    before = registry[_CUDA]
    if before is None:  # a build without CUDA: the guard of meta tensors, which does nothing, serves as well
        registry[_CUDA] = registry[_META]
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), _Copies(traffic), _Reads(traffic):
            yield traffic
    finally:
        registry[_CUDA] = before


class FakeEvent:
    """Nothing is under way."""

    def record(self) -> None:
        """There is nothing to mark."""

    def synchronize(self) -> None:
        """Nor to wait for."""


class FakeGraph:
    """What is captured is run once, under the rules of a capture; a replay does nothing."""

    def replay(self) -> None:
        """The result lies where it lay."""
