"""Load the native kernels once per process, if they have been built for this processor.

``BLAZR_NATIVE``, or ``select`` before the first use, chooses: ``auto`` (default: the library if it is there), ``off``
(PyTorch only), ``generic`` (the variant without this processor's special instructions; for tests).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch

from inference.errors import InvalidRequest
from inference.modelling.backends.native.build import library_path, variant_of_environment

logger = logging.getLogger(__name__)

CHOICES = ("auto", "off", "generic")
_selected: str | None = None


def select(choice: str) -> None:
    """Choose the kernels of this process, in place of the environment's choice; before they are first used."""
    global _selected
    _selected = choice
    is_available.cache_clear()


@lru_cache(maxsize=1)
def is_available() -> bool:
    """Whether ``torch.ops.blazr`` has the kernels; loads them at the first call."""
    choice = _selected or variant_of_environment()
    if choice not in CHOICES:
        raise InvalidRequest(f"BLAZR_NATIVE is {choice!r}; it must be {', '.join(CHOICES)}.", param="BLAZR_NATIVE")
    if choice == "off":
        return False
    path = library_path("generic" if choice == "generic" else "native")
    if not path.exists():
        logger.info(
            "native kernels are not built, PyTorch is used; build them with: "
            "python -m inference.modelling.backends.native.build"
        )
        return False
    try:
        torch.ops.load_library(path)  # type: ignore[no-untyped-call]
    except OSError as error:
        logger.warning("native kernels can't be loaded, PyTorch is used: %s", error)
        return False
    return True


@contextmanager
def matrix_tiles(enabled: bool) -> Iterator[None]:
    """Let the kernels use matrix tiles (AMX, where they may), or not: for comparing both. Holds for all threads."""
    before = torch.ops.blazr.use_amx()
    torch.ops.blazr.set_amx(enabled)
    try:
        yield
    finally:
        torch.ops.blazr.set_amx(before)
