"""Tests of the device path. With a CUDA device they run there; with TRITON_INTERPRET=1 on the CPU; else not at all.

Nothing here imports the platform: a bare GPU machine runs these tests with torch, triton, numpy and pytest.
"""

from __future__ import annotations

import functools
import inspect

import pytest
import torch

from inference.modelling.backends import backend as kernels


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs a CUDA device, and nothing of the platform")
    config.addinivalue_line("markers", "device_only: needs a CUDA device; Triton's interpreter isn't enough")


def pytest_collection_modifyitems(items):
    on_device = torch.cuda.is_available() and kernels.PRESENT and not kernels.INTERPRETED
    for item in items:
        if "tests/gpu/" not in item.path.as_posix():
            continue
        item.add_marker(pytest.mark.gpu)
        if on_device:
            continue
        if not kernels.PRESENT:
            item.add_marker(pytest.mark.skip(reason="triton is not installed"))
        elif not kernels.INTERPRETED:
            item.add_marker(pytest.mark.skip(reason="no CUDA device, and TRITON_INTERPRET=1 is not set"))
        elif item.get_closest_marker("device_only") is not None:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device; Triton's interpreter isn't enough"))


@pytest.fixture
def device() -> torch.device:
    """Where the kernels run."""
    return torch.device("cpu" if kernels.INTERPRETED else "cuda")


@pytest.fixture(params=["float32", "float16", "bfloat16"])
def dtype(request) -> torch.dtype:
    """The dtypes of weights."""
    if request.param == "bfloat16" and kernels.INTERPRETED:
        # It multiplies the bits of bfloat16 operands as if they were integers (triton 3.9, create_dot).
        pytest.skip("Triton's interpreter can't multiply bfloat16 matrices")
    return getattr(torch, request.param)


@pytest.fixture(autouse=True)
def few_parts(monkeypatch):
    """The interpreter runs one program after the other: a context is cut into 4 parts there instead of 64."""
    if kernels.INTERPRETED:
        from inference.modelling.backends.triton import attention

        monkeypatch.setattr(attention, "MAX_PARTS", 4)


WHOLE_NETWORKS = ("test_networks", "test_quantised_networks", "test_cuda_graphs", "test_bench")


@functools.cache
def builtins_of(package):
    """Functions of the language that the interpreter replaces, which each call within a kernel would look for."""
    from triton.language.core import is_builtin

    return inspect.getmembers(package, is_builtin)


@pytest.fixture(autouse=True)
def quick_interpreter(request, monkeypatch):
    """Without half of the interpreter's work: looking for what it replaces, and the check of sums for overflow.

    The kernels' own tests in float32 have the check; their integers are the same in other dtypes and whole networks.
    """
    if not kernels.INTERPRETED:
        return
    from triton.runtime import interpreter

    def patch_builtin(package, builder, scope):
        for name, member in builtins_of(package):
            if getattr(package, name) is member:
                interpreter._patch_attr(package, name, member, builder, scope)

    monkeypatch.setattr(interpreter, "_patch_builtin", patch_builtin)
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    if request.path.stem in WHOLE_NETWORKS or str(parameters.get("dtype", "float32")).endswith("16"):
        options = interpreter.InterpreterOptions(sanitize_overflow=False)
        monkeypatch.setattr(interpreter.interpreter_builder, "options", options)


@pytest.fixture(autouse=True)
def seeded():
    """The same numbers in each run."""
    torch.manual_seed(265877660)
