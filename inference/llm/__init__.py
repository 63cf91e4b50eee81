"""One loaded checkpoint: text in, events out; no Django.

``from inference.llm import LLM, SamplingParams`` is the interface for Python programs (docs/python.md).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inference.errors import BlazrError
    from inference.llm.llm import LLM
    from inference.llm.options import LLMOptions
    from inference.values.grammar import Grammar
    from inference.values.sampling_params import SamplingParams

__all__ = ["LLM", "BlazrError", "Grammar", "LLMOptions", "SamplingParams"]

_MODULES = {
    "BlazrError": "inference.errors",
    "Grammar": "inference.values.grammar",
    "LLM": "inference.llm.llm",
    "LLMOptions": "inference.llm.options",
    "SamplingParams": "inference.values.sampling_params",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is used: some modules of this package are needed without torch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
